"""The column scheduler: decides which tokens run next, one step ahead of what has been applied.

There are no phases. A request has known and computed tokens; a step lets computed catch up with known under one token
budget. Chunked prefill, prefix hits and resuming after preemption are all this one idea.

`schedule` makes a plan from what is known now; `apply` (sched/apply.py) takes a step's result in. Between the two, one
further step may be planned: its rows take their ids from the step before it on the device (`token_source`). Blocks and
rows of an ended request are given back only when the last step that reads them has been applied.

Order of service: rows that owe one token first (decode is never starved by prefill), then running prompts, then
waiting ones, each by (priority, arrival).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proa.errors import FinishCode
from proa.kvcache.block_hash import chain
from proa.kvcache.block_pool import Audit, BlockPool
from proa.request import NO_LOGPROBS, Request
from proa.sched.counters import Counters
from proa.sched.events import Ended, Stamp
from proa.sched.plan import PlanLimits, RowUpdates, StepPlan
from proa.sched.plan_builder import build_plan, row_updates
from proa.sched.rows import Rows
from proa.sched.waiting import Cause, WaitingQueue


@dataclass(slots=True, frozen=True)
class SchedulerConfig:
    """Policy choices; limits of memory and shape are `PlanLimits`.

    Attributes:
        max_prefill_chunk: most tokens of one prompt in a step.
        enable_prefix_caching: whether blocks are published and looked up.
        logprob_bytes: most bytes of logprobs a step may bring back.
    """

    max_prefill_chunk: int
    enable_prefix_caching: bool = True
    logprob_bytes: int = 64 << 20


@dataclass(slots=True)
class Share:
    """Tokens of one row in the step being planned."""

    row: int
    count: int


class Scheduler:
    """Owns waiting and running requests, their blocks, and the order of service."""

    def __init__(self, limits: PlanLimits, config: SchedulerConfig) -> None:
        self.limits = limits
        self.config = config
        self.pool = BlockPool(limits.num_blocks)
        self.rows = Rows(limits.max_num_seqs, limits.max_model_len, limits.block_size)
        self.waiting = WaitingQueue()
        self.counters = Counters()
        self.row_of: dict[int, int] = {}
        self.frozen = False  # pause in mode keep: nothing runs
        self.admits = True  # pause in mode wait: running requests go on, no new one gets a row
        self.step = 0
        self.applied_step = 0
        self.stamps: list[tuple[int, int, int]] = []
        self.ended: list[Ended] = []
        self.waiting_causes = [0] * len(Cause)
        self.cause_of: dict[int, Cause] = {}
        self.computing: dict[bytes, int] = {}
        self._running: list[int] = []
        self._running_array: NDArray[np.int64] | None = None
        self._leaving: dict[int, Request | None] = {}
        self._leaving_blocks = 0
        self._filled: list[int] = []
        self.head_cause: Cause | None = None
        self._arrivals = 0

    # ---- requests come and go ---------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request that has passed every check; refuse it at once if it can never fit."""
        request.arrival = self._arrivals
        self._arrivals += 1
        self.stamps.append((request.key, Stamp.QUEUED, request.queued_ns))
        tokens = max(
            min(request.prompt_len + request.max_tokens, self.limits.max_model_len) - 1, len(request.known_ids)
        )
        blocks = -(-tokens // self.limits.block_size)
        if blocks > self.limits.num_blocks:
            detail = f"needs {blocks} KV blocks, the pool has {self.limits.num_blocks}"
            self.ended.append(Ended(request.key, FinishCode.NEVER_FITS, detail))
        else:
            self.waiting.push(request)

    def end(self, key: int, finish: int | None, detail: str = "") -> bool:
        """End a request from outside; with `finish` None without a row (an abort). False if the key is unknown."""
        request = self.waiting.remove(key)
        if request is None:
            row = self.row_of.get(key)
            if row is None:
                return False
            request = self.rows.request[row]
            if row in self._leaving:
                self.end_leaving(row)
            else:
                self.retire(row)
        if finish is not None:
            recomputed = request.num_recomputed if request is not None else 0
            self.ended.append(Ended(key, finish, detail, recomputed))
        self.cause_of.pop(key, None)
        return True

    def end_unknown(self, key: int, finish: int, detail: str) -> None:
        """Answer a request that was refused before it was queued."""
        if not self.knows(key):
            self.ended.append(Ended(key, finish, detail))

    def knows(self, key: int) -> bool:
        """Whether a request with this key waits or runs."""
        return key in self.waiting or key in self.row_of

    def retire(self, row: int) -> None:
        """Take a row out of service; it is cleared when no step that reads it is in flight."""
        request = self.rows.request[row]
        assert request is not None
        del self.row_of[request.key]
        self._leave(row, None)

    def expire(self, now_ns: int) -> None:
        """End requests whose deadline has passed: queued ones unscheduled, running ones with what they have."""
        for request in self.waiting.expired(now_ns):
            self.ended.append(Ended(request.key, FinishCode.DEADLINE, num_recomputed=request.num_recomputed))
        for row in np.flatnonzero(self.rows.alive & (self.rows.deadline_ns <= now_ns)).tolist():
            if row in self._leaving:
                continue
            self.end(int(self.rows.key[row]), FinishCode.DEADLINE)

    @property
    def is_paused(self) -> bool:
        """Whether a pause has been reached: nothing runs, and nothing will until it is lifted."""
        return self.frozen or (not self.admits and not self._running)

    @property
    def num_running(self) -> int:
        """Requests with a row, ended ones excluded."""
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether a step could be planned now or after a resume."""
        return bool(self._running) or len(self.waiting) > 0

    def audit(self) -> Audit:
        """Count every block; taken between steps."""
        return self.pool.audit(self.rows.all_held())

    # ---- leaving ----------------------------------------------------------------------------------------------------

    def _leave(self, row: int, resume: Request | None) -> None:
        self._running.remove(row)
        self._running_array = None
        if resume is None:
            self.rows.alive[row] = False
        request = self.rows.request[row]
        if request is not None:
            self._stop_computing(request)
        self._leaving[row] = resume
        self._leaving_blocks += int(self.rows.num_blocks[row])
        if self.rows.planned_step[row] <= self.applied_step:
            self._clear(row)

    def release_left(self) -> None:
        """Clear rows whose last step has been applied. Called by `apply`."""
        for row in [r for r in self._leaving if self.rows.planned_step[r] <= self.applied_step]:
            self._clear(row)

    def _clear(self, row: int) -> None:
        resume = self._leaving.pop(row)
        self._leaving_blocks -= int(self.rows.num_blocks[row])
        if resume is not None and self.rows.alive[row]:
            applied = int(self.rows.applied[row])
            del self.row_of[resume.key]
            resume.num_emitted += applied - len(resume.known_ids)
            resume.known_ids = self.rows.tokens[row, :applied].copy()
            lost = min(int(self.rows.computed[row]), applied)
            resume.num_recomputed += lost
            self.counters.recomputed_tokens += lost
            self.waiting.push(resume)
        self.rows.clear(row, self.pool)

    def _in_service(self, row: int) -> bool:
        return self.rows.request[row] is not None and row not in self._leaving

    def is_leaving(self, row: int) -> bool:
        """Whether the row is out of service but not cleared."""
        return row in self._leaving

    def _stop_computing(self, request: Request) -> None:
        for content in request.block_hashes:
            if self.computing.get(content) == request.key:
                del self.computing[content]

    def end_leaving(self, row: int) -> None:
        """End a request that was preempted while a step of it is in flight: it does not come back."""
        del self.row_of[int(self.rows.key[row])]
        self.rows.alive[row] = False
        self._leaving[row] = None

    def preempt(self, row: int, now_ns: int) -> None:
        """Put a running request back to the queue; its KV is recomputed later from the ids it has by then."""
        request = self.rows.request[row]
        assert request is not None
        request.num_preemptions += 1
        self.stamps.append((request.key, Stamp.PREEMPTED, now_ns))
        self._leave(row, request)

    # ---- planning ---------------------------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> StepPlan | None:
        """Plan the next step from what is known now; None if nothing can run.

        A returned plan must be submitted: the scheduler already counts its tokens as computed.
        """
        self.expire(now_ns)
        self._filled = []
        if self.frozen:
            self._set_causes([], Cause.PAUSED)
            return None
        budget = self.limits.max_num_batched_tokens
        singles, budget = self._plan_decodes(budget, now_ns)
        shares, budget = self._plan_prefills(budget, now_ns)
        # A row may have been preempted for the sake of one planned after it.
        shares = [Share(row, 1) for row in singles.tolist()] + shares
        shares = [share for share in shares if self._in_service(share.row)]
        shares += self._admit(budget, now_ns)
        if not shares:
            return None
        self.step += 1
        updates: RowUpdates | None = row_updates(self.rows, self._filled) if self._filled else None
        rows = np.array([share.row for share in shares], np.int64)
        return build_plan(self, rows, np.array([share.count for share in shares], np.int32), updates)

    def running_rows(self) -> NDArray[np.int64]:
        """Rows in service, in the order of service."""
        if self._running_array is None:
            self._running_array = np.array(self._running, np.int64)
        return self._running_array

    def _owed(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        r = self.rows
        return np.minimum(r.length[rows], r.needed[rows]) - r.computed[rows]

    def _plan_decodes(self, budget: int, now_ns: int) -> tuple[NDArray[np.int64], int]:
        running = self.running_rows()
        ready = running[(self._owed(running) == 1) & (self.rows.computed[running] > 0)][:budget]
        bs = self.limits.block_size
        short = ready[self.rows.computed[ready] // bs >= self.rows.num_blocks[ready]]
        for row in short.tolist():
            if self._in_service(row) and not self._grow(row, 1, now_ns):
                ready = ready[ready != row]
        return ready, budget - len(ready)

    def _plan_prefills(self, budget: int, now_ns: int) -> tuple[list[Share], int]:
        running = self.running_rows()
        owed = self._owed(running)
        chunked = (owed > 1) | ((owed == 1) & (self.rows.computed[running] == 0))
        shares = []
        for row, count in zip(running[chunked].tolist(), owed[chunked].tolist(), strict=True):
            if not self._in_service(row):
                continue  # preempted a moment ago
            count = min(count, self.config.max_prefill_chunk, budget, self._scorable(row))
            if count > 0 and self._grow(row, count, now_ns):
                shares.append(Share(row, count))
                budget -= count
        return shares, budget

    def _scorable(self, row: int) -> int:
        """Tokens of a row whose prompt logprobs fit the step's byte budget; at least one, or nothing would ever run."""
        k = int(self.rows.prompt_k[row])
        if k == NO_LOGPROBS:
            return self.limits.max_num_batched_tokens
        return max(self.config.logprob_bytes // (8 * (1 + (k if k >= 0 else self.limits.vocab_size))), 1)

    def _grow(self, row: int, count: int, now_ns: int) -> bool:
        """Give a row the blocks for `count` more tokens, preempting later rows if need be. False: not in this step."""
        missing = -(-(int(self.rows.computed[row]) + count) // self.limits.block_size) - int(self.rows.num_blocks[row])
        if missing <= 0:
            return True
        while True:
            blocks = self.pool.take(missing)
            if blocks is not None:
                start = int(self.rows.num_blocks[row])
                self.rows.blocks[row, start : start + missing] = blocks
                self.rows.num_blocks[row] += missing
                return True
            if self.pool.num_available + self._leaving_blocks >= missing:
                return False  # blocks of rows in flight come back within a step
            victim = self._running[-1]
            self.preempt(victim, now_ns)
            if victim == row:
                return False

    # ---- admission --------------------------------------------------------------------------------------------------

    def _admit(self, budget: int, now_ns: int) -> list[Share]:
        if not self.admits:
            self._set_causes([], Cause.PAUSED)
            return []
        shares: list[Share] = []
        waits: list[tuple[Request, Cause]] = []
        blocked: Cause | None = None
        reserved = self._reserved_blocks()
        for request in self.waiting.in_order():
            share, cause = self._try_admit(request, budget, reserved, now_ns)
            if share is not None:
                shares.append(share)
                budget -= share.count
                reserved = self._reserved_blocks()
            elif cause == Cause.KV_LOAD:
                waits.append((request, cause))
            else:
                blocked = cause
                break
        self._set_causes(waits, blocked)
        return shares

    def _set_causes(self, waits: list[tuple[Request, Cause]], blocked: Cause | None) -> None:
        """Count causes: the given ones, and for all others the one that stopped the queue's head."""
        self.cause_of = {request.key: cause for request, cause in waits}
        counts = [0] * len(Cause)
        for _, cause in waits:
            counts[cause] += 1
        self.head_cause = blocked
        if blocked is not None:
            counts[blocked] += len(self.waiting) - len(waits)
        self.waiting_causes = counts

    def _reserved_blocks(self) -> int:
        """Blocks that running prompts still need: promised to them before any new request."""
        rows = self.running_rows()
        wanted = -(-self.rows.length[rows] // self.limits.block_size) - self.rows.num_blocks[rows]
        return int(np.maximum(wanted, 0).sum())

    def _try_admit(
        self, request: Request, budget: int, reserved: int, now_ns: int
    ) -> tuple[Share | None, Cause | None]:
        if budget <= 0:
            return None, Cause.TOKEN_BUDGET
        if self.rows.num_free == 0:
            return None, Cause.SEATS
        hits, loading = self._look_up(request)
        if loading:
            return None, Cause.KV_LOAD
        bs = self.limits.block_size
        known = len(request.known_ids)
        unheld = sum(1 for block in hits if self.pool.num_references(block) == 0)
        if -(-known // bs) - len(hits) + reserved > self.pool.num_available - unheld:
            return None, Cause.PRIORITY if self._outranked(request) else Cause.KV_BLOCKS
        for block in hits:
            self.pool.hold(block)
        row = self._seat(request, hits, now_ns)
        count = min(known - len(hits) * bs, self.config.max_prefill_chunk, budget, self._scorable(row))
        grown = self._grow(row, count, now_ns)
        assert grown, "admission has counted the blocks"
        return Share(row, count), None

    def _outranked(self, request: Request) -> bool:
        """Whether running requests of a better class are what keeps a request waiting."""
        head = self.rows.request[self._running[-1]] if self._running else None
        return head is not None and head.priority < request.priority

    def _look_up(self, request: Request) -> tuple[list[int], bool]:
        """Return the cached blocks of a request's beginning, and whether its next one is just being computed."""
        if not self.config.enable_prefix_caching:
            return [], False
        if not request.reads_cache:
            return [], False
        self.hash_blocks(request)
        hits: list[int] = []
        usable = (len(request.known_ids) - 1) // self.limits.block_size
        for content in request.block_hashes[:usable]:
            block = self.pool.find(content)
            if block is None:
                return hits, content in self.computing
            hits.append(block)
        return hits, False

    def hash_blocks(self, request: Request) -> None:
        """Bring `block_hashes` up to the full blocks of `known_ids`."""
        bs = self.limits.block_size
        if len(request.block_hashes) < len(request.known_ids) // bs:
            request.block_hashes = list(chain(request.known_ids, bs, request.salt))

    def _seat(self, request: Request, hits: list[int], now_ns: int) -> int:
        self.waiting.remove(request.key)
        bs = self.limits.block_size
        row = self.rows.fill(request, hits, bs)
        self.row_of[request.key] = row
        self._insert_in_order(row, request)
        self._filled.append(row)
        self.counters.count_lookup(len(request.known_ids), len(hits) * bs, request)
        if not request.scheduled_before:
            request.scheduled_before = True
            self.stamps.append((request.key, Stamp.SCHEDULED, now_ns))
        if self.config.enable_prefix_caching:
            self.hash_blocks(request)
            for content in request.block_hashes[len(hits) :]:
                self.computing.setdefault(content, request.key)
        return row

    def _insert_in_order(self, row: int, request: Request) -> None:
        place = len(self._running)
        rank = (request.priority, request.arrival)
        while place > 0:
            other = self.rows.request[self._running[place - 1]]
            if other is None or (other.priority, other.arrival) <= rank:
                break
            place -= 1
        self._running.insert(place, row)
        self._running_array = None
