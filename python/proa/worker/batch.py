"""Turns a `StepPlan` into the tensors of a `Step`: ids (carried over where the host does not know them), positions,
slots, and rows grouped for attention.

Owns the block table on the device and the ids drawn by the previous step. Knows no model and no sampling.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proa.ops.step import DecodeGroup, PrefillRow
from proa.sched.plan import HOST, PlanLimits, StepPlan
from proa.worker.device import Device


class BatchBuilder:
    """Builds the inputs of one step after another."""

    def __init__(self, limits: PlanLimits, device: Device) -> None:
        self._device = device
        self._block_size = limits.block_size
        blocks_per_row = -(-limits.max_model_len // limits.block_size)
        # Entries that were never named are 0: a block of the pool, so that no index leaves it.
        self._table = torch.zeros((limits.max_num_seqs, blocks_per_row), dtype=torch.int64, device=device.torch_device)
        self._drawn = torch.zeros(0, dtype=torch.int64, device=device.torch_device)

    def update_table(self, plan: StepPlan) -> None:
        """Take the plan's new blocks into the table."""
        if len(plan.table_block):
            row, index, block = (
                self._upload(column) for column in (plan.table_row, plan.table_index, plan.table_block)
            )
            self._table[row, index] = block

    def keep_drawn(self, ids: Tensor) -> None:
        """Remember the ids i32[S] this step draws, for the next one."""
        self._drawn = ids.to(torch.int64)

    def token_ids(self, plan: StepPlan) -> Tensor:
        """i64[T]."""
        ids = self._upload(plan.token_ids)
        if (plan.token_source == HOST).all():
            return ids
        source = self._upload(plan.token_source)
        return torch.where(source == HOST, ids, self._drawn[source.clamp(min=0)])

    def columns(self, plan: StepPlan) -> tuple[Tensor, Tensor, Tensor]:
        """positions i64[T], slots i64[T], logit_token i64[L]."""
        return (
            self._upload(plan.positions),
            self._device.upload(plan.slot_mapping[0]),
            self._upload(plan.logit_token),
        )

    def rows(self, plan: StepPlan) -> tuple[list[PrefillRow], list[DecodeGroup]]:
        """Every row of the plan once: alone if it has several tokens, else among rows of like context length."""
        num_new = np.diff(plan.query_start)
        prefill = [self._prefill_row(plan, i) for i in np.flatnonzero(num_new > 1).tolist()]
        decoding = np.flatnonzero(num_new == 1)
        # Lengths within a factor of two share a group, so that padding at most doubles the work.
        scale = np.frexp(plan.context_len[decoding].astype(np.float64) - 0.5)[1]
        return prefill, [self._group(plan, decoding[scale == value]) for value in np.unique(scale)]

    def _prefill_row(self, plan: StepPlan, i: int) -> PrefillRow:
        context = int(plan.context_len[i])
        place = torch.arange(context, device=self._device.torch_device)
        blocks = self._table[int(plan.row[i])]
        start, end = int(plan.query_start[i]), int(plan.query_start[i + 1])
        return PrefillRow(start, end, self._slots(blocks[None], place[None])[0], context)

    def _group(self, plan: StepPlan, members: NDArray[np.int64]) -> DecodeGroup:
        lengths = plan.context_len[members]
        longest = int(lengths.max())
        ramp = torch.arange(longest, device=self._device.torch_device)
        row, length = self._upload(plan.row[members]), self._upload(lengths)
        last = length[:, None] - 1
        slots = self._slots(self._table[row], torch.minimum(ramp, last))
        mask = None if (lengths == longest).all() else (ramp <= last)[:, None, None]
        return DecodeGroup(self._upload(plan.query_start[members]), slots, mask)

    def _slots(self, blocks: Tensor, places: Tensor) -> Tensor:
        """i64[B, n]: slots of places i64[B, n] under block tables i64[B, blocks]."""
        index = places // self._block_size
        return blocks.gather(-1, index) * self._block_size + places % self._block_size

    def _upload(self, column: NDArray[np.int32]) -> Tensor:
        return self._device.upload(column.astype(np.int64))
