"""Runs steps: a plan in, a result out, with the model between. Straight line, no choice.

Owns the order of things in a step. A step's work is only enqueued on CUDA; `to_host` is what waits.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from proa.ops.interface import Model
from proa.ops.sample_inputs import Logprobs, SampleOutputs
from proa.ops.step import Step
from proa.ops.torch_ops import TorchOps
from proa.sched.plan import LogprobColumns, PlanLimits, StepMode, StepPlan, StepResult
from proa.worker.batch import BatchBuilder
from proa.worker.device import Device
from proa.worker.sampling_rows import SamplingRows


class Runner:
    """One model with its cache and the state of its rows.

    Args:
        num_reachable: ids below it can be drawn.
    """

    def __init__(self, model: Model, ops: TorchOps, limits: PlanLimits, num_reachable: int, device: Device) -> None:
        self._model, self._ops = model, ops
        self._batch = BatchBuilder(limits, device)
        self._sampling = SamplingRows(limits, num_reachable, device)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> SampleOutputs:
        """Run (on CUDA: enqueue) a step and return its outputs on the device."""
        if plan.updates is not None:
            self._sampling.update(plan.updates)
        self._batch.update_table(plan)
        prefill_rows, decode_groups = self._batch.rows(plan)
        positions, slots, logit_token = self._batch.columns(plan)
        step = Step(
            token_ids=self._batch.token_ids(plan),
            positions=positions,
            slots=slots,
            logit_token=logit_token,
            prefill_rows=prefill_rows,
            decode_groups=decode_groups,
            sample=self._sampling.inputs(plan),
        )
        self._ops.step = step
        self._model.forward(self._ops)
        assert step.outputs is not None, "a forward pass ends with its draw"
        self._batch.keep_drawn(step.outputs.sampled_ids)
        self._sampling.remember(plan, step.outputs.sampled_ids)
        return step.outputs


def to_pinned(outputs: SampleOutputs) -> SampleOutputs:
    """Return the outputs in pinned host memory; the copies join the stream."""

    def pinned(tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        return host

    def columns(logprobs: Logprobs | None) -> Logprobs | None:
        if logprobs is None:
            return None
        return Logprobs(*(pinned(t) for t in (logprobs.value, logprobs.rank, logprobs.top_ids, logprobs.top_values)))

    return SampleOutputs(
        pinned(outputs.sampled_ids),
        pinned(outputs.nonfinite),
        columns(outputs.logprobs),
        columns(outputs.prompt_logprobs),
    )


def to_result(step: int, outputs: SampleOutputs, device_ns: int) -> StepResult:
    """Return outputs that are on the host as a `StepResult`."""
    return StepResult(
        step=step,
        sampled_ids=_host(outputs.sampled_ids),
        nonfinite=_host(outputs.nonfinite),
        logprobs=_columns(outputs.logprobs),
        prompt_logprobs=_columns(outputs.prompt_logprobs),
        mode=StepMode.EAGER,
        device_ns=device_ns,
    )


def _host(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.numpy()
    return array


def _columns(logprobs: Logprobs | None) -> LogprobColumns | None:
    if logprobs is None:
        return None
    return LogprobColumns(
        _host(logprobs.value), _host(logprobs.rank), _host(logprobs.top_ids), _host(logprobs.top_values)
    )
