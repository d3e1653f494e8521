"""A scheduler with a scripted executor behind it, one step ahead, and every invariant checked after each operation."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from kv_mirror import KvMirror, chain

from proa.errors import FinishCode
from proa.executor.null import NullExecutor, token_of
from proa.request import NO_LOGPROBS, Request
from proa.sched.apply import apply, idle_events
from proa.sched.events import StepEvents
from proa.sched.plan import PlanLimits, StepPlan, StepResult
from proa.sched.plan_check import check_plan
from proa.sched.scheduler import Pause, Scheduler, SchedulerConfig

VOCAB = 50


def make_request(key: int, prompt: list[int], max_tokens: int, **changes: object) -> Request:
    """A plain greedy request; `changes` overwrite fields."""
    values: dict[str, object] = {
        "key": key,
        "known_ids": np.array(prompt, np.int32),
        "num_emitted": 0,
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "top_k": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stream_key": key * 7919,
        "num_logprobs": NO_LOGPROBS,
        "num_prompt_logprobs": NO_LOGPROBS,
        "stop_ids": np.array([], np.int32),
        "priority": 0,
        "deadline_ns": None,
        "flags": 0,
        "salt": b"",
        "extras": None,
        "arrival": 0,
        "queued_ns": 0,
    }
    values.update(changes)
    return Request(**values)  # type: ignore[arg-type]


@dataclass
class Told:
    """Everything the front end was told of one request."""

    tokens: list[int] = field(default_factory=list)
    finish: int | None = None
    stop_token: int = -1
    detail: str = ""
    prefill: tuple[int, int] | None = None
    stamps: list[int] = field(default_factory=list)
    prompt_positions: list[int] = field(default_factory=list)


@dataclass
class Asked:
    """A request as it was asked, apart from the object that the scheduler changes."""

    prompt: list[int]
    max_tokens: int
    min_tokens: int
    stop_ids: list[int]
    stream_key: int
    emitted: list[int]
    scores_prompt: bool


class Harness:
    """Drives a scheduler the way the engine loop does."""

    def __init__(self, limits: PlanLimits, config: SchedulerConfig) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits, config)
        self.executor = NullExecutor(limits)
        self.in_flight: deque[tuple[StepPlan, object]] = deque()
        self.previous: StepPlan | None = None
        self.told: dict[int, Told] = {}
        self.asked: dict[int, Asked] = {}
        self.aborted: set[int] = set()
        self.now = 0
        self.plans: list[StepPlan] = []
        self.bad_rows: dict[int, set[int]] = {}
        self.bad_prompts: set[int] = set()
        self.usage: dict[int, int] = {}
        self.mirror = KvMirror(limits)
        self.reads: list[dict[int, tuple[int, set[int]]]] = []

    def close(self) -> None:
        self.executor.close()

    # ---- operations -------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        ids = request.known_ids.tolist()
        self.asked[request.key] = Asked(
            ids[: request.prompt_len],
            request.max_tokens,
            request.min_tokens,
            request.stop_ids.tolist(),
            request.stream_key,
            ids[request.prompt_len :],
            request.num_prompt_logprobs != NO_LOGPROBS,
        )
        self.told[request.key] = Told()
        self.scheduler.add(request)
        self.check()

    def abort(self, key: int) -> None:
        if self.scheduler.abort(key):
            self.aborted.add(key)
        self.check()

    def launch(self) -> bool:
        """Plan and submit one step, at most two in flight."""
        if len(self.in_flight) == 2:
            return False
        self.now += 1
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            check_plan(plan, self.limits, self.previous)
            self.check_plan_against_rows(plan)
            self.previous = plan
            self.plans.append(plan)
            self.in_flight.append((plan, self.executor.submit(plan)))
            self.execute(plan)
        self.check()
        return plan is not None

    def collect(self) -> None:
        """Apply the oldest step, or take what there is to tell without one."""
        if self.in_flight:
            plan, ticket = self.in_flight.popleft()
            self.reads.pop(0)
            result = self.executor.collect(ticket)  # type: ignore[arg-type]
            self.poison(plan, result)
            self.take(apply(self.scheduler, result))
        else:
            self.take(idle_events(self.scheduler))
        self.check()

    def turn(self) -> None:
        """One turn of the loop: plan, submit, then apply the step before."""
        launched = self.launch()
        if len(self.in_flight) > (1 if launched else 0) or not self.in_flight:
            self.collect()

    def drain(self, turns: int = 5000) -> None:
        """Turn until nothing is open."""
        self.scheduler.pause = Pause.RUNNING
        for _ in range(turns):
            self.turn()
            if not self.scheduler.has_work and not self.in_flight:
                break
        self.collect()
        assert not self.scheduler.has_work, "requests are stuck"

    def execute(self, plan: StepPlan) -> None:
        """Run a plan on the mirror: each row must see exactly the tokens of its request."""
        rows, sampled = self.scheduler.rows, plan.sample_row.tolist()
        streams = rows.key[plan.sample_row]
        keys = np.array([self.asked[int(key)].stream_key for key in streams], np.uint64)
        ids = token_of(keys, plan.sample_position, VOCAB).tolist()
        entries = self.mirror.run(plan, ids)
        for i, row in enumerate(plan.row.tolist()):
            key = int(rows.key[row])
            whole = self.asked[key].prompt + self.asked[key].emitted + self.unending(key)
            assert entries[row] == chain(whole[: int(plan.context_len[i])])[-1], "a row sees other tokens than its own"
            if row in sampled:
                at = int(plan.sample_position[sampled.index(row)])
                assert len(self.asked[key].prompt) + at == plan.context_len[i]
        self.reads.append({row: (int(rows.key[row]), set(self.scheduler.blocks.blocks_of(row))) for row in plan.row})

    def unending(self, key: int) -> list[int]:
        """What the request would draw if only the context ended it, after its emitted tokens."""
        asked = self.asked[key]
        positions = np.arange(len(asked.emitted), self.limits.max_model_len, dtype=np.int32)
        ids: list[int] = token_of(np.full(len(positions), asked.stream_key, np.uint64), positions, VOCAB).tolist()
        return ids

    def poison(self, plan: StepPlan, result: StepResult) -> None:
        """Make logits not finite: of chosen output positions by key, and of all prompt scores and draws of others."""
        for i, row in enumerate(plan.sample_row.tolist()):
            key = int(self.scheduler.rows.key[row])
            position = int(plan.sample_position[i])
            if position in self.bad_rows.get(key, ()) or key in self.bad_prompts:
                result.nonfinite[i] = 1
                result.sampled_ids[i] = (result.sampled_ids[i] + 1) % VOCAB  # undefined: nobody may look at it
        token_row = np.repeat(plan.row, np.diff(plan.query_start))
        for i, token in enumerate(plan.logit_token[plan.num_sampled :].tolist()):
            if int(self.scheduler.rows.key[token_row[token]]) in self.bad_prompts:
                result.nonfinite[plan.num_sampled + i] = 1

    def will_corrupt(self, key: int) -> bool:
        """Whether the step collected next has bad logits for the request."""
        if not self.in_flight:
            return False
        plan = self.in_flight[0][0]
        return any(
            int(self.scheduler.rows.key[row]) == key and int(position) in self.bad_rows.get(key, ())
            for row, position in zip(plan.sample_row, plan.sample_position, strict=True)
        )

    # ---- checks -----------------------------------------------------------------------------------------------------

    def take(self, events: StepEvents) -> None:
        drawn = events.drawn
        if drawn is not None:
            keys = drawn.key.tolist()
            assert len(set(keys)) == len(keys)
            for i, key in enumerate(keys):
                told = self.told[key]
                assert told.finish is None, "a row after the terminal one"
                assert key not in self.aborted, "a row of an aborted request"
                if drawn.num_tokens[i]:
                    told.tokens.append(int(drawn.token[i]))
                if drawn.finish[i]:
                    told.finish, told.stop_token = int(drawn.finish[i]), int(drawn.stop_token[i])
                    told.detail = events.details.get(key, "")
                assert drawn.num_tokens[i] or drawn.finish[i]
        for end in events.ended:
            told = self.told.setdefault(end.key, Told())
            assert told.finish is None, "two terminal rows"
            told.finish, told.detail = int(end.finish), end.detail
        for prefill in events.prefills:
            assert self.told[prefill.key].prefill is None, "two prefill rows"
            self.told[prefill.key].prefill = (prefill.computed, prefill.cached)
        for chunk in events.prompt_logprobs:
            assert len(chunk.columns.value) == chunk.count
            self.told[chunk.key].prompt_positions += range(chunk.start, chunk.start + chunk.count)
        for key, kind, _ in events.stamps:
            self.told[key].stamps.append(kind)
        self.usage |= dict(events.usage)

    def check_plan_against_rows(self, plan: StepPlan) -> None:
        """Slots are those of the row's own table, and no findable or foreign block is written."""
        s, size = self.scheduler, self.limits.block_size
        token_row = np.repeat(plan.row, np.diff(plan.query_start))
        blocks = plan.slot_mapping[0] // size
        assert (s.blocks.table[token_row, plan.positions // size] == blocks).all()
        assert (plan.slot_mapping[0] % size == plan.positions % size).all()
        for block in set(blocks.tolist()):
            assert s.pool.num_references(block) == 1, "a shared block is written"
            assert not s.pool.is_findable(block), "a findable block is written"

    def check(self) -> None:
        s = self.scheduler
        audit = s.audit()
        assert audit.leaked == 0
        assert audit.held + audit.cached + audit.free == self.limits.num_blocks
        assert sum(s.waiting.causes()) == len(s.waiting)
        assert min(s.waiting.causes()) >= 0
        r, b = s.rows, s.blocks
        for step in self.reads:
            for row, (key, blocks) in step.items():
                assert r.key[row] == key, "a row was given away while a step reads it"
                assert blocks <= set(b.blocks_of(row)), "blocks were given away while a step reads them"
        for row in s.service.in_order():
            hit, published = int(b.num_hit[row]), int(b.num_published[row])
            computed, capacity = int(r.computed[row]), int(b.capacity[row])
            assert hit <= published <= computed // self.limits.block_size
            assert computed <= capacity == int(b.num_blocks[row]) * self.limits.block_size
            assert computed <= r.needed[row] and r.applied[row] <= r.limit[row]
            for block in b.blocks_of(row)[published:]:
                assert s.pool.num_references(block) == 1, "an unpublished block is shared"
        lead = s.rows.top
        assert all(request is None for request in r.request[lead:])
        open_keys = {k for k, t in self.told.items() if t.finish is None and k in self.asked} - self.aborted
        assert all(s.knows(k) for k in open_keys), "an open request was lost"

    def expected(self, key: int) -> list[int]:
        """Tokens that the request gets when nothing ends it early, whatever runs beside it."""
        asked = self.asked[key]
        room = min(asked.max_tokens, self.limits.max_model_len - len(asked.prompt))
        stream = np.full(max(room, 0), asked.stream_key, np.uint64)
        out = []
        for position, token in enumerate(token_of(stream, np.arange(len(stream), dtype=np.int32), VOCAB).tolist()):
            if position < len(asked.emitted):
                continue
            out.append(token)
            if token in asked.stop_ids and position >= asked.min_tokens:
                break
        return out

    def check_end(self, key: int) -> None:
        """The one terminal event of a request and everything before it are right."""
        told, asked = self.told[key], self.asked[key]
        expected = self.expected(key)
        if key in self.aborted:
            assert told.finish is None
            assert told.tokens == expected[: len(told.tokens)]
            return
        assert told.finish is not None, "no terminal event"
        if told.finish == FinishCode.NEVER_FITS:
            end = min(len(asked.prompt) + asked.max_tokens, self.limits.max_model_len)
            needed = max(end - 1, len(asked.prompt) + len(asked.emitted))
            assert needed > self.limits.num_blocks * self.limits.block_size and not told.tokens
        elif told.finish in (FinishCode.DEADLINE, FinishCode.PAUSED):
            assert told.tokens == expected[: len(told.tokens)]
        elif key in self.bad_prompts:
            assert told.finish == FinishCode.CORRUPTED and told.detail and not told.tokens
        elif (bad_at := self.bad_position(key)) is not None:
            assert told.finish == FinishCode.CORRUPTED and told.detail
            assert told.tokens == expected[: bad_at - len(asked.emitted)]
        else:
            assert told.tokens == expected
            self._check_finish(told, asked)
        if told.prefill is not None:
            assert sum(told.prefill) == len(asked.prompt)
            assert told.prefill[1] % self.limits.block_size == 0 or told.prefill[1] == len(asked.prompt)
            scored = range(1, len(asked.prompt)) if asked.scores_prompt else range(0)
            assert told.prompt_positions == list(scored), "each prompt position is scored once, in order"
        if told.tokens:
            assert told.prefill is not None
            assert told.stamps[:2] == [0, 1] and set(told.stamps[2:]) <= {2}

    def bad_position(self, key: int) -> int | None:
        """The first output position at which the request's logits are not finite, if it gets there."""
        first = len(self.asked[key].emitted)
        reached = range(first, first + len(self.expected(key)))
        return min((position for position in self.bad_rows.get(key, ()) if position in reached), default=None)

    def _check_finish(self, told: Told, asked: Asked) -> None:
        emitted = len(asked.emitted) + len(told.tokens)
        if told.finish == FinishCode.STOP_TOKEN:
            assert told.stop_token == told.tokens[-1] and told.stop_token in asked.stop_ids
        elif told.finish == FinishCode.MAX_TOKENS:
            assert emitted >= asked.max_tokens
        else:
            assert told.finish == FinishCode.CONTEXT_FULL
            assert len(asked.prompt) + emitted == self.limits.max_model_len
