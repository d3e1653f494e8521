"""The scheduler under random operations, against what each request must give whatever happens around it."""

from __future__ import annotations

import numpy as np
from harness import VOCAB, Harness, make_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proa.errors import FinishCode
from proa.sched.plan import PlanLimits
from proa.sched.scheduler import Pause, SchedulerConfig

LOGPROBS = st.sampled_from([-1, -1, 0, 2, -2])

operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.fixed_dictionaries(
                {
                    "prompt_len": st.integers(1, 40),
                    "flavour": st.integers(0, 2),
                    "max_tokens": st.integers(0, 40),
                    "min_tokens": st.sampled_from([0, 0, 2]),
                    "stops": st.lists(st.integers(0, VOCAB - 1), max_size=12),
                    "priority": st.integers(-1, 1),
                    "lifetime": st.none() | st.integers(1, 60),
                    "reads_cache": st.booleans(),
                    "num_logprobs": LOGPROBS,
                    "num_prompt_logprobs": LOGPROBS,
                    "emitted": st.integers(0, 3),
                    "salt": st.sampled_from([b"", b"", b"tenant"]),
                    "bad_at": st.none() | st.none() | st.none() | st.integers(0, 6),
                }
            ),
        ),
        st.tuples(st.just("burst"), st.integers(1, 12), st.integers(1, 20), st.integers(0, 2)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("turn"), st.integers(1, 6)),
        st.tuples(st.just("launch"), st.just(0)),
        st.tuples(st.just("collect"), st.just(0)),
        st.tuples(st.just("pause"), st.sampled_from(list(Pause))),
        st.tuples(st.just("end_all"), st.just(0)),
        st.tuples(st.just("reset_cache"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
    ),
    max_size=50,
)

limits = st.builds(
    PlanLimits,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 24),
    max_model_len=st.sampled_from([24, 64]),
    num_blocks=st.integers(3, 40),
    block_size=st.sampled_from([1, 4, 16]),
    vocab_size=st.just(VOCAB),
)
configs = st.builds(
    SchedulerConfig,
    max_prefill_chunk=st.integers(1, 16),
    enable_prefix_caching=st.booleans(),
    logprob_bytes=st.sampled_from([100, 1000, 1 << 20]),
)


def add(h: Harness, key: int, what: dict) -> None:
    length = min(what["prompt_len"], h.limits.max_model_len)
    # Few prompts, so that beginnings are shared.
    prompt = [(what["flavour"] + i // 8) % VOCAB for i in range(length)]
    max_tokens = what["max_tokens"]
    emitted = min(what["emitted"], length - 1, max_tokens)
    request = make_request(
        key,
        prompt,
        max_tokens,
        min_tokens=min(what["min_tokens"], max_tokens),
        stop_ids=np.array(what["stops"], np.int32),
        priority=what["priority"],
        deadline_ns=None if what["lifetime"] is None else h.now + what["lifetime"],
        num_logprobs=what["num_logprobs"],
        num_prompt_logprobs=what["num_prompt_logprobs"],
        num_emitted=emitted,
        salt=what["salt"],
        reads_cache=what["reads_cache"] and what["num_prompt_logprobs"] == -1,
    )
    if what["bad_at"] is not None:
        h.bad_rows[key] = {what["bad_at"]}
    h.add(request)


def run(h: Harness, ops: list) -> int:
    key = 0
    for name, *arguments in ops:
        if name == "add":
            key += 1
            add(h, key, arguments[0])
        elif name == "burst":
            count, length, flavour = arguments
            for i in range(count):
                key += 1
                h.add(make_request(key, [flavour] * length, 3 + 2 * i))
        elif name == "abort" and key:
            h.abort(arguments[0] % key + 1)
        elif name == "turn":
            for _ in range(arguments[0]):
                h.turn()
        elif name == "launch":
            h.launch()
        elif name == "collect":
            h.collect()
        elif name == "pause":
            h.scheduler.pause = arguments[0]
        elif name == "end_all":
            for open_key in h.scheduler.in_flight_keys():
                h.scheduler.end(open_key, FinishCode.PAUSED)
            h.check()
        elif name == "reset_cache":
            h.scheduler.pool.reset_cache()
            h.check()
        elif name == "wait":
            h.now += arguments[0]
    return key


@settings(
    max_examples=max(300, settings.default.max_examples), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(operations, limits, configs)
def test_every_request_ends_once_with_its_own_tokens(ops: list, limits: PlanLimits, config: SchedulerConfig) -> None:
    h = Harness(limits, config)
    try:
        last = run(h, ops)
        h.drain()
        for key in range(1, last + 1):
            h.check_end(key)
        audit = h.scheduler.audit()
        assert (audit.held, audit.leaked) == (0, 0)
        assert h.scheduler.blocks.num_computing == 0 and not h.scheduler.service.row_of
        assert h.scheduler.rows.num_free == limits.max_num_seqs and h.scheduler.rows.top == 0
        assert h.scheduler.rows.total_logprob_bytes == 0 and h.scheduler.service.leaving_blocks == 0
        assert h.scheduler.next_deadline_ns is None
    finally:
        h.close()
