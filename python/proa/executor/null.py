"""The null executor: no model, tokens at once. Engine tests and loop benchmarks run on it.

The drawn id is a pure function of the row's stream key and the token's position, so that a request's output does not
depend on its neighbours, on chunking or on preemption.
"""

from __future__ import annotations

import os
from collections import deque

import numpy as np
from numpy.typing import NDArray

from proa.executor.interface import ExecutorFacts, KernelChoice, ReportPhase, Ticket
from proa.sched.plan import NO_TOKEN, LogprobColumns, PlanLimits, StepMode, StepPlan, StepResult

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(33)


class NullExecutor:
    """Answers every step in `submit`."""

    def __init__(self, limits: PlanLimits) -> None:
        self._limits = limits
        self._stream_key = np.zeros(limits.max_num_seqs, np.uint64)
        self._num_logprobs = np.full(limits.max_num_seqs, -1, np.int32)
        self._results: deque[StepResult] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._closed = False

    @property
    def completion_fd(self) -> int:
        """See `Executor`."""
        return self._fd

    def start(self, report: ReportPhase) -> ExecutorFacts:
        """See `Executor`; there is nothing to load."""
        report("weights", 1.0)
        return ExecutorFacts(
            limits=self._limits,
            device="null",
            dtype="float32",
            cache_dtype="float32",
            block_bytes=0,
            memory_bytes={"weights": 0, "kv": 0, "workspace": 0},
            weights_identity=b"null",
            kernels=(KernelChoice("step", "null", "chosen by --device null: no model runs"),),
        )

    def submit(self, plan: StepPlan) -> Ticket:
        """See `Executor`."""
        if plan.updates is not None:
            self._stream_key[plan.updates.row] = plan.updates.stream_key
            self._num_logprobs[plan.updates.row] = plan.updates.num_logprobs
        ids = token_of(self._stream_key[plan.sample_row], plan.sample_position, self._limits.vocab_size)
        self._results.append(
            StepResult(
                step=plan.step,
                sampled_ids=ids,
                nonfinite=np.zeros(plan.num_sampled + plan.num_prompt_scored, np.uint8),
                logprobs=self._logprobs(ids, self._num_logprobs[plan.sample_row]) if plan.want_logprobs else None,
                prompt_logprobs=self._logprobs(plan.prompt_target, plan.prompt_k) if plan.num_prompt_scored else None,
                mode=StepMode.EAGER,
            )
        )
        os.eventfd_write(self._fd, 1)
        return Ticket(plan.step)

    def _logprobs(self, ids: NDArray[np.int32], ks: NDArray[np.int32]) -> LogprobColumns:
        """Every token is certain: logprob 0, rank 1; the places below it hold the next ids at -1, -2, ..."""
        wanted = np.where(ks == -2, self._limits.vocab_size, ks)
        width = max(int(wanted.max(initial=0)), 0)
        offset = np.arange(width, dtype=np.int32)
        top_ids = (ids[:, None] + offset) % self._limits.vocab_size
        shown = offset < wanted[:, None]
        return LogprobColumns(
            value=np.zeros(len(ids), np.float32),
            rank=np.ones(len(ids), np.int32),
            top_ids=np.where(shown, top_ids, NO_TOKEN).astype(np.int32),
            top_values=np.where(shown, -offset.astype(np.float32), -np.inf).astype(np.float32),
        )

    def masks(self, ticket: Ticket, buffer: NDArray[np.uint32]) -> None:
        """See `Executor`; there are no logits to mask."""
        raise NotImplementedError(f"step {ticket.step}: the null executor has no logits to mask")

    def collect(self, ticket: Ticket) -> StepResult:
        """See `Executor`."""
        os.eventfd_read(self._fd)
        result = self._results.popleft()
        assert result.step == ticket.step, "tickets are collected in order"
        return result

    def close(self) -> None:
        """See `Executor`."""
        if not self._closed:
            self._closed = True
            os.close(self._fd)


def token_of(stream_key: NDArray[np.uint64], position: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    """Return the id that the null executor draws for each (stream key, output position)."""
    mixed = (stream_key + position.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
    return ((mixed >> _SHIFT) % np.uint64(vocab_size)).astype(np.int32)
