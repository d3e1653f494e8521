"""The torch executor: runs models on a CPU or on CUDA, for whatever `worker` has loaded.

Owns threads, streams and the completion descriptor. On a CPU one thread of its own runs the steps in order; on CUDA the
caller's thread enqueues them on a stream and a thread of its own waits for their events.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from proa.config.engine_config import EngineConfig
from proa.executor.interface import ExecutorFacts, ReportPhase, StepFailed, Ticket
from proa.sched.plan import StepPlan, StepResult
from proa.worker.loading import Loader
from proa.worker.runner import Runner, to_pinned, to_result


class TorchExecutor:
    """See `Executor`."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._thread = ThreadPoolExecutor(1, "torch-step")
        self._outstanding: deque[tuple[int, Future[StepResult]]] = deque()
        self._runner: Runner | None = None
        self._stream: Any = None
        self._closed = False

    @property
    def completion_fd(self) -> int:
        """See `Executor`."""
        return self._fd

    def start(self, report: ReportPhase) -> ExecutorFacts:
        """See `Executor`."""
        self._runner, facts, device = Loader(self._config, report).load()
        if device.is_cuda:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return facts

    def submit(self, plan: StepPlan) -> Ticket:
        """See `Executor`; raises `StepFailed` when CUDA does not take the step."""
        if self._stream is None:
            future = self._thread.submit(self._run_on_cpu, plan)
        else:
            future = self._launch(plan)
        self._outstanding.append((plan.step, future))
        return Ticket(plan.step)

    def masks(self, ticket: Ticket, buffer: NDArray[np.uint32]) -> None:
        """See `Executor`; the capability table says that there are no grammars here."""
        raise StepFailed(f"step {ticket.step}: the torch executor takes no grammar masks")

    def collect(self, ticket: Ticket) -> StepResult:
        """See `Executor`."""
        step, future = self._outstanding.popleft()
        assert ticket.step == step, "tickets are collected in order"
        try:
            return future.result()
        except Exception as error:
            raise _step_failed(step, error) from error
        finally:
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """See `Executor`."""
        if not self._closed:
            self._closed = True
            self._thread.shutdown()
            os.close(self._fd)

    # ---- how a step runs --------------------------------------------------------------------------------------------

    def _run_on_cpu(self, plan: StepPlan) -> StepResult:
        assert self._runner is not None, "started before the first step"
        begun = time.monotonic_ns()
        try:
            outputs = self._runner.run(plan)
            return to_result(plan.step, outputs, time.monotonic_ns() - begun)
        finally:
            os.eventfd_write(self._fd, 1)  # before the result is there, so that whoever takes it finds the count

    def _launch(self, plan: StepPlan) -> Future[StepResult]:
        """Enqueue a step and its copies to the host; nothing here waits for the device."""
        assert self._runner is not None, "started before the first step"
        try:
            with torch.cuda.stream(self._stream):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record()
                outputs = to_pinned(self._runner.run(plan))
                end.record()
        except Exception as error:
            raise _step_failed(plan.step, error) from error

        def wait() -> StepResult:
            try:
                end.synchronize()
                return to_result(plan.step, outputs, int(begin.elapsed_time(end) * 1e6))
            finally:
                os.eventfd_write(self._fd, 1)

        return self._thread.submit(wait)


def _step_failed(step: int, error: Exception) -> StepFailed:
    line = (str(error).splitlines() or [""])[0]
    return StepFailed(f"step {step}: {type(error).__name__}: {line}")
