"""The scheduler under random operations, against what each request must give whatever happens around it."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proa.executor.null import NullExecutor, token_of
from proa.request import Request
from proa.sched.apply import apply, idle_events
from proa.sched.events import StepEvents
from proa.sched.plan import PlanLimits, StepPlan
from proa.sched.plan_check import check_plan
from proa.sched.scheduler import Scheduler, SchedulerConfig

VOCAB = 50


class Harness:
    """A scheduler, the null executor behind it one step ahead, and a record of what came out."""

    def __init__(self, num_blocks: int, rows: int, budget: int, chunk: int, caching: bool) -> None:
        self.limits = PlanLimits(rows, budget, 64, num_blocks, 4, VOCAB)
        self.scheduler = Scheduler(self.limits, SchedulerConfig(chunk, caching))
        self.executor = NullExecutor(self.limits)
        self.in_flight: list[tuple[StepPlan, object]] = []
        self.previous: StepPlan | None = None
        self.tokens: dict[int, list[int]] = {}
        self.finish: dict[int, int] = {}
        self.requests: dict[int, Request] = {}
        self.now = 0

    def take(self, events: StepEvents) -> None:
        assert len(set(events.key.tolist())) == len(events.key)
        for key, token, count, finish in zip(
            events.key.tolist(), events.token.tolist(), events.num_tokens.tolist(), events.finish.tolist(), strict=True
        ):
            assert key not in self.finish, "a row after the terminal one"
            assert count or finish
            if count:
                self.tokens.setdefault(key, []).append(token)
            if finish:
                self.finish[key] = finish

    def turn(self) -> None:
        """One turn of the loop: plan, submit, then apply the step before."""
        self.now += 1
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            check_plan(plan, self.limits, self.previous)
            self.previous = plan
            self.in_flight.append((plan, self.executor.submit(plan)))
        if len(self.in_flight) > (1 if plan is not None else 0):
            done, ticket = self.in_flight.pop(0)
            self.take(apply(self.scheduler, done, self.executor.collect(ticket)))
        else:
            self.take(idle_events(self.scheduler))
        self.check()

    def check(self) -> None:
        s = self.scheduler
        audit = s.audit()
        assert audit.leaked == 0
        assert audit.held + audit.cached + audit.free == self.limits.num_blocks
        assert sum(s.waiting_causes) <= len(s.waiting) + 64
        assert len(s.row_of) <= self.limits.max_num_seqs

    def expected(self, request: Request) -> list[int]:
        keys = np.full(request.max_tokens, request.stream_key, np.uint64)
        ids = token_of(keys, np.arange(request.max_tokens, dtype=np.int32), VOCAB).tolist()
        room = min(request.max_tokens, self.limits.max_model_len - request.prompt_len)
        out = []
        for position, token in enumerate(ids[:room]):
            out.append(token)
            if token in request.stop_ids and position >= request.min_tokens:
                break
        return out


def make_request(key: int, prompt: list[int], max_tokens: int, **changes: object) -> Request:
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
        "num_logprobs": -1,
        "num_prompt_logprobs": -1,
        "stop_ids": np.array([3, 5], np.int32),
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


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 24), st.integers(1, 40), st.integers(0, 3), st.integers(-1, 1)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("turn"), st.integers(1, 6)),
        st.tuples(st.just("burst"), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2)),
        st.tuples(st.just("pause")),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    operations,
    st.integers(3, 30),
    st.integers(1, 6),
    st.integers(1, 24),
    st.integers(1, 16),
    st.booleans(),
)
def test_every_request_ends_once_with_its_own_tokens(
    ops: list[tuple], num_blocks: int, rows: int, budget: int, chunk: int, caching: bool
) -> None:
    h = Harness(num_blocks, rows, budget, chunk, caching)
    key = 0
    aborted: set[int] = set()
    for op in ops:
        if op[0] == "add":
            key += 1
            _, prompt_len, max_tokens, flavour, priority = op
            # Few prompts, so that beginnings are shared.
            prompt = [(flavour + i // 8) % VOCAB for i in range(prompt_len)]
            stop = np.array([3, 5] if flavour == 0 else [], np.int32)
            scored = 0 if flavour == 3 else -1
            request = make_request(
                key, prompt, max_tokens, priority=priority, num_prompt_logprobs=scored, stop_ids=stop
            )
            request.reads_cache = flavour != 3
            h.requests[key] = request
            h.scheduler.add(request)
        elif op[0] == "abort" and key:
            victim = op[1] % key + 1
            if victim not in h.finish and h.scheduler.end(victim, None):
                aborted.add(victim)
        elif op[0] == "turn":
            for _ in range(op[1]):
                h.turn()
        elif op[0] == "burst":
            for i in range(op[1]):
                key += 1
                h.requests[key] = make_request(key, [op[3]] * op[2], 5 + 2 * i, stop_ids=np.array([], np.int32))
                h.scheduler.add(h.requests[key])
        elif op[0] == "pause":
            h.scheduler.frozen = not h.scheduler.frozen
    h.scheduler.frozen = False
    for _ in range(4000):
        h.turn()
        if not h.scheduler.has_work and not h.in_flight:
            break
    h.turn()
    assert not h.scheduler.has_work
    for k, request in h.requests.items():
        if k in aborted:
            assert k not in h.finish
        elif h.finish[k] == 11:
            assert k not in h.tokens
        else:
            assert h.tokens.get(k, []) == h.expected(request), (k, h.finish[k])
    audit = h.scheduler.audit()
    assert (audit.held, audit.leaked) == (0, 0)
    assert not h.scheduler.computing and not h.scheduler.row_of
