"""The column scheduler: decides which tokens run next, one step ahead of what has been applied.

There are no phases. A request has known and computed tokens; a step lets computed catch up with known under one token
budget. Chunked prefill, prefix hits and resuming after preemption are all this one idea.

`schedule` makes a plan from what is known now; `apply` (sched/apply.py) takes a step's result in. Between the two, one
further step may be planned: its rows take their ids from the step before it on the device (`token_source`). Blocks and
rows of an ended request are given back only when the last step that reads them has been applied.

Order of service: decoding rows first (prefill never starves them), then running prompts, then waiting requests, each by
(priority, arrival). Whoever is last in that order gives way when blocks run out.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from proa.errors import FinishCode
from proa.kvcache.block_manager import BlockManager
from proa.kvcache.block_pool import Audit, BlockPool
from proa.request import Request
from proa.sched.admission import Admission, StepBudget
from proa.sched.counters import Counters
from proa.sched.events import Ended, Stamp
from proa.sched.plan import LOGPROBS_VOCABULARY, PlanLimits, StepPlan
from proa.sched.plan_builder import Chunk, PlanBuilder, Planned
from proa.sched.rows import Rows
from proa.sched.service import Service
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


class Pause(Enum):
    """What may be planned (beam-search-and-pause.md section 5)."""

    RUNNING = "running"
    NEW = "paused_new"
    ALL = "paused_all"


class Scheduler:
    """Owns waiting and running requests, their blocks, and the order of service.

    Attributes:
        stamps, ended, usage: what is to be told with the next message; `apply` takes them.
        planned: plans whose results have not been applied, oldest first.
        last_now_ns: time of the last planning.
    """

    def __init__(self, limits: PlanLimits, config: SchedulerConfig) -> None:
        if limits.num_groups != 1:
            raise ValueError(f"{limits.num_groups} KV groups; this scheduler has one block manager")
        self.limits = limits
        self.config = config
        self.pool = BlockPool(limits.num_blocks)
        self.blocks = BlockManager(self.pool, limits.block_size, limits.max_num_seqs, limits.max_model_len)
        self.rows = Rows(limits.max_num_seqs, limits.max_model_len, limits.vocab_size)
        self.service = Service(self.rows, self.blocks)
        self.waiting = WaitingQueue()
        self.counters = Counters()
        self.planned: deque[Planned] = deque()
        self.pause = Pause.RUNNING
        self.applied_step = 0
        self.last_now_ns = 0
        self.stamps: list[tuple[int, int, int]] = []
        self.ended: dict[int, Ended] = {}
        self.usage: list[tuple[int, int]] = []
        # One scored and one drawn token fit any step, or they would wait for ever.
        self._logprob_bytes = max(config.logprob_bytes, 2 * self.rows.bytes_of(LOGPROBS_VOCABULARY))
        self._builder = PlanBuilder(self.rows, self.blocks, limits.max_num_seqs)
        self._admission = Admission(self)
        self._step = 0
        self._arrivals = 0
        self._preempted = False
        self._deadlines: list[tuple[int, int]] = []

    # ---- requests come and go ---------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request that has passed every check; refuse it at once if it can never fit."""
        request.arrival = self._arrivals
        self._arrivals += 1
        self.stamps.append((request.key, Stamp.QUEUED, request.queued_ns))
        end = min(request.prompt_len + request.max_tokens, self.limits.max_model_len)
        blocks = self.blocks.blocks_for(max(end - 1, len(request.known_ids)))
        if blocks > self.limits.num_blocks:
            detail = f"needs {blocks} KV blocks, the pool has {self.limits.num_blocks}"
            self._tell_end(request, FinishCode.NEVER_FITS, detail)
            return
        self.waiting.push(request)
        if request.deadline_ns is not None:
            heapq.heappush(self._deadlines, (request.deadline_ns, request.key))
            self._prune_deadlines()

    def refuse(self, key: int, finish: FinishCode, detail: str) -> None:
        """Answer a request that is not queued; an open key keeps its first request."""
        if not self.knows(key):
            self.ended[key] = Ended(key, finish, detail)

    def abort(self, key: int) -> bool:
        """End a request whose record the front end has closed: no row answers. False if the key is unknown."""
        return self._take_out(key) is not None

    def end(self, key: int, finish: FinishCode, detail: str = "") -> bool:
        """End a request from outside, with a row that says so. False if the key is unknown."""
        request = self._take_out(key)
        if request is None:
            return False
        self._tell_end(request, finish, detail)
        return True

    def _take_out(self, key: int) -> Request | None:
        request = self.waiting.remove(key)
        if request is not None:
            return request
        row = self.service.row_of.get(key)
        if row is None:
            return None
        request = self.service.request_of(row)
        self.service.end(row, self.applied_step)
        return request

    def _tell_end(self, request: Request, finish: FinishCode, detail: str = "") -> None:
        self.ended[request.key] = Ended(request.key, finish, detail)
        self.usage.append((request.key, request.num_recomputed))

    def knows(self, key: int) -> bool:
        """Whether a request with this key waits or runs, or its end is still to be told."""
        return key in self.waiting or key in self.service.row_of or key in self.ended

    def in_flight_keys(self) -> list[int]:
        """Keys of requests that were admitted at least once: running ones, and preempted ones in the queue."""
        resuming = [request.key for request in self.waiting.in_order() if request.scheduled_before]
        return [*self.service.row_of, *resuming]

    def expire(self, now_ns: int) -> None:
        """End requests whose deadline has passed: queued ones unscheduled, running ones with what they have."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, key = heapq.heappop(self._deadlines)
            self.end(key, FinishCode.DEADLINE)

    def _prune_deadlines(self) -> None:
        """Ended requests leave their entry behind; it must not stay for the hours a deadline may lie ahead."""
        if len(self._deadlines) > 1024 + 2 * (len(self.waiting) + self.service.num_running):
            self._deadlines = [entry for entry in self._deadlines if self.knows(entry[1])]
            heapq.heapify(self._deadlines)

    @property
    def next_deadline_ns(self) -> int | None:
        """When `expire` may have something to do; None = never."""
        while self._deadlines and not self.knows(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def is_paused(self) -> bool:
        """Whether a pause has been reached: no step is in flight, and none will be until it is lifted."""
        if self.pause is Pause.ALL:
            return not self.planned
        return self.pause is Pause.NEW and not self.in_flight_keys()

    @property
    def num_running(self) -> int:
        """Requests that hold blocks and take part in steps."""
        return self.service.num_running

    @property
    def has_work(self) -> bool:
        """Whether a request is open."""
        return self.service.num_running > 0 or len(self.waiting) > 0

    def reset_cache(self) -> None:
        """Forget every cached block; requests that hold any are preempted, and no block of before is found again."""
        for row in self.service.in_order():
            self.preempt(row, self.last_now_ns)
        for row in self.service.leaving:
            self.blocks.stop_publishing(row)
        self.pool.reset_cache()

    def audit(self) -> Audit:
        """Count every block; exact at any time between two calls of this class."""
        return self.blocks.audit()

    # ---- planning ---------------------------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> StepPlan | None:
        """Plan the next step from what is known now; None if nothing can run.

        A returned plan must be submitted: the scheduler already counts its tokens as computed.
        """
        self.last_now_ns = now_ns
        if self._deadlines:
            self.expire(now_ns)
        if self.pause is Pause.ALL:
            self.waiting.note(Cause.PAUSED, {})
            return None
        self._preempted = False
        budget = StepBudget(self.limits.max_num_batched_tokens, self._logprob_bytes)
        decodes = self._grow_decodes(self._owing(budget), now_ns)
        budget.tokens -= len(decodes)
        chunks = self._running_chunks(budget, now_ns)
        if self._preempted:
            decodes = decodes[self.rows.decode_end[decodes] > 0]
            chunks = [chunk for chunk in chunks if self.service.has(chunk.row)]
        filled: list[int] = []
        if len(self.waiting):
            if self.pause is Pause.RUNNING:
                filled = self._admission.admit(budget, chunks, now_ns)
            else:
                self.waiting.note(Cause.PAUSED, {})
        if len(decodes) == 0 and not chunks:
            return None
        self._step += 1
        planned = self._builder.build(self._step, decodes, chunks, filled)
        for row in planned.completed:
            self.service.prefilled(row)
        self.planned.append(planned)
        return planned.plan

    def _owing(self, budget: StepBudget) -> NDArray[np.int64]:
        """Decoding rows that owe a token, as many as the budget holds; those served longest ago first."""
        rows = self.rows
        (owing,) = (rows.computed[: rows.top] < rows.decode_end[: rows.top]).nonzero()
        if len(owing) <= budget.tokens and rows.total_logprob_bytes <= budget.logprob_bytes:
            if rows.total_logprob_bytes:
                budget.logprob_bytes -= int(rows.logprob_bytes[owing].sum())
            return owing
        order = owing[np.argsort(rows.planned_step[owing], kind="stable")][: budget.tokens]
        spent = np.cumsum(rows.logprob_bytes[order])
        fitting = max(int(np.searchsorted(spent, budget.logprob_bytes, side="right")), 1)
        chosen = np.sort(order[:fitting])
        budget.logprob_bytes -= int(rows.logprob_bytes[chosen].sum())
        return chosen

    def _grow_decodes(self, decodes: NDArray[np.int64], now_ns: int) -> NDArray[np.int64]:
        """Give every row that begins a block one; returns the rows that can run."""
        short = decodes[self.rows.computed[decodes] >= self.blocks.capacity[decodes]]
        if len(short) == 0 or self.blocks.grow_each(short):
            return decodes
        needy = set(short.tolist())
        refused = []
        for row in self.service.in_order():
            if row in needy and self.service.has(row):
                if not self._grow(row, int(self.rows.computed[row]) + 1, now_ns):
                    refused.append(row)
        return decodes[(self.rows.decode_end[decodes] > 0) & ~np.isin(decodes, refused)]

    def _running_chunks(self, budget: StepBudget, now_ns: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for row in self.service.prefilling():
            if not self.service.has(row):
                continue  # preempted a moment ago
            start, end = int(self.rows.computed[row]), int(self.rows.prefill_end[row])
            request = self.service.request_of(row)
            count = self.chunk_size(request, start, end, budget)
            if count > 0 and self._grow(row, start + count, now_ns):
                chunks.append(Chunk(row, count, request))
                budget.take(count, self.chunk_bytes(request, start, count))
        return chunks

    def chunk_size(self, request: Request, start: int, end: int, budget: StepBudget) -> int:
        """Tokens of a prompt that the step has room for: from `start`, at most to `end`."""
        count = min(end - start, self.config.max_prefill_chunk, budget.tokens)
        each = self.rows.bytes_of(request.num_prompt_logprobs)
        if each:
            count = min(count, budget.logprob_bytes // each)
        if count > 0 and self.chunk_bytes(request, start, count) > budget.logprob_bytes:
            count -= 1  # without the last known token nothing is drawn
        return max(count, 0)

    def chunk_bytes(self, request: Request, start: int, count: int) -> int:
        """Bytes of logprobs that a chunk brings back: of its prompt tokens, and of what is drawn behind the last."""
        scored = self.rows.bytes_of(request.num_prompt_logprobs) * count
        ends = start + count == len(request.known_ids)
        return scored + (self.rows.bytes_of(request.num_logprobs) if ends else 0)

    def _grow(self, row: int, num_tokens: int, now_ns: int) -> bool:
        """Make room for a row's tokens, preempting from the end of the order if need be. False: not in this step."""
        while not self.blocks.grow(row, num_tokens):
            missing = self.blocks.blocks_for(num_tokens) - int(self.blocks.num_blocks[row])
            if self.pool.num_available + self.service.leaving_blocks >= missing and self.service.leaving:
                return False  # blocks of rows in flight come back within a step
            victim = self.service.last
            self.preempt(victim, now_ns)
            if victim == row:
                return False
        return True

    def preempt(self, row: int, now_ns: int) -> None:
        """Send a running request back to the queue; its K and V are recomputed later from the ids it has by then."""
        request = self.service.request_of(row)
        self._preempted = True
        request.num_lost = int(self.rows.computed[row])
        self.stamps.append((request.key, Stamp.PREEMPTED, now_ns))
        resumed = self.service.leave(row, self.applied_step, True)
        if resumed is not None:
            self.waiting.push(resumed)

    def release_left(self) -> None:
        """Clear rows whose last step has been applied. Called by `apply`."""
        for request in self.service.release(self.applied_step):
            self.waiting.push(request)
