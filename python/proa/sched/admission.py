"""Gives waiting requests rows: who, in which order, and why not.

Strictly in the order of service: the first request that does not fit stops all behind it, so nobody is overtaken for
ever. The one exception waits for a block that another request is just computing; it holds nobody up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proa.request import Request
from proa.sched.events import Stamp
from proa.sched.plan_builder import Chunk
from proa.sched.waiting import Cause

if TYPE_CHECKING:
    from proa.sched.scheduler import Scheduler

#: One block in this many is kept free of new requests while others run: else a request admitted into the last blocks
#: is preempted by the next one that grows.
_RESERVE = 64


@dataclass(slots=True)
class StepBudget:
    """What is left of a step: tokens, and bytes of logprobs to bring back."""

    tokens: int
    logprob_bytes: int

    def take(self, tokens: int, logprob_bytes: int) -> None:
        """Spend."""
        self.tokens -= tokens
        self.logprob_bytes -= logprob_bytes


class Admission:
    """Moves requests from the queue to rows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def admit(self, budget: StepBudget, chunks: list[Chunk], now_ns: int) -> list[int]:
        """Seat requests as long as they fit, append their first chunks to `chunks`, and return their rows."""
        s = self._scheduler
        filled: list[int] = []
        skipped: dict[int, Cause] = {}
        blocked = Cause.TOKEN_BUDGET
        promised = self._promised_blocks()
        for request in s.waiting.in_order():
            outcome = self._try(request, budget, promised, now_ns)
            if isinstance(outcome, Chunk):
                filled.append(outcome.row)
                chunks.append(outcome)
                promised += s.blocks.blocks_for(len(request.known_ids)) - int(s.blocks.num_blocks[outcome.row])
            elif outcome is Cause.KV_LOAD:
                skipped[request.key] = outcome
            else:
                blocked = outcome
                break
        s.waiting.note(blocked, skipped)
        return filled

    def _promised_blocks(self) -> int:
        """Blocks that prompts in prefill still need: theirs before any new request's."""
        s = self._scheduler
        return sum(
            max(s.blocks.blocks_for(int(s.rows.prefill_end[row])) - int(s.blocks.num_blocks[row]), 0)
            for row in s.service.prefilling()
        )

    def _try(self, request: Request, budget: StepBudget, promised: int, now_ns: int) -> Chunk | Cause:
        s = self._scheduler
        if budget.tokens <= 0:
            return Cause.TOKEN_BUDGET
        if s.rows.num_free == 0:
            return Cause.SEATS
        hits: list[int] = []
        if s.config.enable_prefix_caching and request.reads_cache:
            found = s.blocks.look_up(request)
            if found.is_loading:
                return Cause.KV_LOAD
            hits = found.blocks
        known = len(request.known_ids)
        needed = s.blocks.blocks_for(known) - len(hits) + promised
        spare = min(s.limits.num_blocks // _RESERVE, s.service.num_running)
        if needed + spare > s.pool.num_available - s.blocks.num_unheld(hits):
            return Cause.PRIORITY if self._is_outranked(request) else Cause.KV_BLOCKS
        start = len(hits) * s.limits.block_size
        count = s.chunk_size(request, start, known, budget)
        if count <= 0:
            return Cause.TOKEN_BUDGET
        row = self._seat(request, hits, now_ns)
        grown = s.blocks.grow(row, start + count)
        assert grown, "the blocks have been counted"
        budget.take(count, s.chunk_bytes(request, start, count))
        return Chunk(row, count, request)

    def _is_outranked(self, request: Request) -> bool:
        """Whether only requests of a better class hold the blocks."""
        s = self._scheduler
        if s.service.num_in_service == 0:
            return False
        return s.service.request_of(s.service.last).priority < request.priority

    def _seat(self, request: Request, hits: list[int], now_ns: int) -> int:
        s = self._scheduler
        s.waiting.remove(request.key)
        row = s.service.seat(request, hits)
        s.counters.count_seat(request, len(hits) * s.limits.block_size)
        if not request.scheduled_before:
            request.scheduled_before = True
            s.stamps.append((request.key, Stamp.SCHEDULED, now_ns))
        if s.config.enable_prefix_caching:
            s.blocks.announce(request, len(hits))
        return row
