"""A device's view of the plans: block tables built from deltas, and a KV cache whose entries know their whole past.

The K and V of a token depend on all tokens before it. Here the entry in a slot is a hash of the entry before it and of
its own id, so a wrong block, a stale table entry or a block reused too early gives a wrong hash.
"""

from __future__ import annotations

import numpy as np

from proa.sched.plan import HOST, PlanLimits, StepPlan

_ROOT = 0


def chain(ids: list[int]) -> list[int]:
    """The entry of each token of a sequence."""
    entries, last = [], _ROOT
    for token in ids:
        last = hash((last, token))
        entries.append(last)
    return entries


class KvMirror:
    """Runs plans in the order of submission and checks what each token sees."""

    def __init__(self, limits: PlanLimits) -> None:
        self._size = limits.block_size
        self._table = np.full((limits.max_num_seqs, -(-limits.max_model_len // limits.block_size)), -1)
        self._cache: dict[int, int] = {}
        self._sampled: list[int] = []

    def run(self, plan: StepPlan, sampled_ids: list[int]) -> dict[int, int]:
        """Execute a plan; returns the entry of the last token of each row: what its next token is drawn from.

        Args:
            sampled_ids: the ids this step draws, which the next step may take from the device.
        """
        self._table[plan.table_row, plan.table_index] = plan.table_block
        last: dict[int, int] = {}
        for i, row in enumerate(plan.row.tolist()):
            for t in range(int(plan.query_start[i]), int(plan.query_start[i + 1])):
                position = int(plan.positions[t])
                source = int(plan.token_source[t])
                token = int(plan.token_ids[t]) if source == HOST else self._sampled[source]
                before = _ROOT if position == 0 else self._cache[self._slot(row, position - 1)]
                slot = self._slot(row, position)
                assert slot == plan.slot_mapping[0, t], "the executor's table says otherwise"
                self._cache[slot] = last[row] = hash((before, token))
        self._sampled = sampled_ids
        return last

    def _slot(self, row: int, position: int) -> int:
        block = int(self._table[row, position // self._size])
        assert block >= 0, "a token in a block the executor was never told of"
        return block * self._size + position % self._size
