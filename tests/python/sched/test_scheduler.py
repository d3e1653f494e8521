"""Single rules of the scheduler, one small scene each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from harness import Harness, make_request

from proa.errors import FinishCode
from proa.sched.plan import PlanLimits
from proa.sched.scheduler import Pause, SchedulerConfig
from proa.sched.waiting import Cause

Make = Callable[..., Harness]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Harness] = []

    def build(config: SchedulerConfig | None = None, **changes: int) -> Harness:
        values = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "num_blocks": 64}
        values |= {"block_size": 4, "vocab_size": 50} | changes
        made.append(Harness(PlanLimits(**values), config or SchedulerConfig(max_prefill_chunk=16)))
        return made[-1]

    yield build
    for harness in made:
        harness.close()


def finish(h: Harness) -> None:
    h.drain()
    for key in h.asked:
        h.check_end(key)
    assert (h.scheduler.audit().held, h.scheduler.blocks.num_computing) == (0, 0)


def test_a_long_prompt_never_holds_up_a_decoding_row(make: Make) -> None:
    h = make(SchedulerConfig(max_prefill_chunk=8), max_num_batched_tokens=8)
    h.add(make_request(1, [1], 30))
    h.turn()
    h.add(make_request(2, [2] * 60, 2))
    before = len(h.plans)
    for _ in range(10):
        h.turn()
    for plan in h.plans[before:]:
        lengths = dict(zip(plan.row.tolist(), np.diff(plan.query_start).tolist(), strict=True))
        assert lengths[0] == 1 and sum(lengths.values()) <= 8
    assert any(plan.num_rows == 2 for plan in h.plans[before:])
    finish(h)


def test_no_more_rows_are_admitted_than_a_step_has_tokens(make: Make) -> None:
    h = make(max_num_batched_tokens=2)
    for key in range(1, 5):
        h.add(make_request(key, [key], 20))
    for _ in range(10):
        h.turn()
    assert h.scheduler.waiting.causes()[Cause.TOKEN_BUDGET] == 2
    assert len(h.told[1].tokens) == len(h.told[2].tokens) == 9, "each decoding row gets a token every step"
    finish(h)


def test_rows_whose_logprobs_pass_the_step_budget_take_turns(make: Make) -> None:
    whole = 8 * 51
    h = make(SchedulerConfig(max_prefill_chunk=16, logprob_bytes=2 * whole))
    for key in range(1, 5):
        h.add(make_request(key, [key], 12, num_logprobs=-2))
    h.drain()
    assert max(plan.num_sampled for plan in h.plans) == 2
    finish(h)


def test_only_a_stop_id_costs_a_surplus_row_and_only_one(make: Make) -> None:
    h = make()
    h.add(make_request(1, [1], 10))
    h.add(make_request(2, [2] * 60, 10))
    finish(h)
    assert h.told[2].finish == FinishCode.CONTEXT_FULL
    assert h.scheduler.counters.finished_row_tokens == 0
    h.add(make_request(3, [3], 30))
    h.drain()
    stop = h.told[3].tokens[4]
    h.add(make_request(4, [3], 30, stream_key=3 * 7919, stop_ids=np.array([stop], np.int32)))
    finish(h)
    assert h.told[4].finish == FinishCode.STOP_TOKEN
    assert h.scheduler.counters.finished_row_tokens == 1


def test_more_stop_ids_than_columns(make: Make) -> None:
    h = make()
    h.add(make_request(1, [1], 30))
    h.drain()
    stop = h.told[1].tokens[6]
    others = [token for token in range(50) if token not in h.told[1].tokens][:20]
    h.add(make_request(2, [1], 30, stream_key=7919, stop_ids=np.array([*others, stop], np.int32)))
    finish(h)
    assert h.told[2].finish == FinishCode.STOP_TOKEN and h.told[2].stop_token == stop


@pytest.mark.parametrize(
    ("changes", "running", "waiting", "cause"),
    [
        ({"max_num_seqs": 1}, 0, 0, Cause.SEATS),
        ({"num_blocks": 8}, 0, 0, Cause.KV_BLOCKS),
        ({"num_blocks": 8}, -1, 0, Cause.PRIORITY),
        ({"max_num_batched_tokens": 8}, 0, 0, Cause.TOKEN_BUDGET),
    ],
)
def test_why_a_request_waits(make: Make, changes: dict, running: int, waiting: int, cause: Cause) -> None:
    h = make(**changes)
    h.add(make_request(1, [1] * 20, 9, priority=running))
    h.launch()
    h.add(make_request(2, [2] * 20, 9, priority=waiting))
    h.launch()
    assert h.scheduler.waiting.cause_of(2) is cause
    assert h.scheduler.waiting.causes()[cause] == 1
    finish(h)


def test_a_request_waits_for_a_block_that_another_computes(make: Make) -> None:
    h = make(SchedulerConfig(max_prefill_chunk=4))
    h.add(make_request(1, [1] * 20, 4))
    h.launch()
    h.add(make_request(2, [1] * 20, 4))
    h.add(make_request(3, [2] * 4, 4))
    h.launch()
    assert h.scheduler.waiting.cause_of(2) is Cause.KV_LOAD
    assert 3 in h.scheduler.service.row_of, "nobody is held up by one that waits for a block"
    finish(h)
    assert h.told[1].prefill == (20, 0) and h.told[2].prefill == (4, 16)


@pytest.mark.parametrize("ends", ["abort", "deadline", "corrupted"])
def test_when_the_computing_request_ends_the_waiting_one_computes_itself(make: Make, ends: str) -> None:
    h = make(SchedulerConfig(max_prefill_chunk=4))
    h.add(make_request(1, [1] * 40, 4, deadline_ns=3 if ends == "deadline" else None))
    h.launch()
    h.add(make_request(2, [1] * 40, 4))
    h.launch()
    assert h.scheduler.waiting.cause_of(2) is Cause.KV_LOAD
    if ends == "abort":
        h.abort(1)
    if ends == "corrupted":
        h.bad_prompts = {1}
    finish(h)
    assert h.told[2].tokens == h.expected(2)


def test_better_classes_go_first_and_worse_ones_give_way(make: Make) -> None:
    h = make(num_blocks=12, max_num_seqs=2)
    h.add(make_request(1, [1] * 4, 40, priority=5))
    h.add(make_request(2, [2] * 4, 40, priority=0))
    h.add(make_request(3, [3] * 4, 4, priority=1))
    finish(h)
    assert h.told[2].stamps == [0, 1], "the best class is never preempted"
    assert 2 in h.told[1].stamps


def test_a_preempted_request_keeps_its_tokens_and_its_place(make: Make) -> None:
    h = make(num_blocks=12, max_num_seqs=2)
    h.add(make_request(1, [1] * 4, 40))
    h.add(make_request(2, [2] * 4, 40, num_prompt_logprobs=1, reads_cache=False))
    h.add(make_request(3, [3] * 4, 4))
    finish(h)
    assert 2 in h.told[2].stamps and h.told[1].stamps == [0, 1]
    recomputed = h.scheduler.counters.recomputed_tokens
    assert recomputed > 0 and h.usage[2] == recomputed
    assert h.usage[1] == 0


def corrupting(make: Make) -> Harness:
    """Request 1 has computed shared blocks and goes on; 2 began on them, 3 on nothing of them."""
    h = make(SchedulerConfig(max_prefill_chunk=16), max_num_batched_tokens=64)
    h.add(make_request(1, [1] * 16, 12))
    for _ in range(3):
        h.turn()
    h.add(make_request(2, [1] * 16 + [2] * 8, 30))
    h.add(make_request(3, [3] * 16, 30))
    for _ in range(3):
        h.turn()
    assert h.told[2].prefill == (8, 16)
    return h


def test_a_corrupted_request_takes_its_blocks_along_and_its_readers_are_computed_again(make: Make) -> None:
    h = corrupting(make)
    computed_before = h.scheduler.blocks.blocks_of(h.scheduler.service.row_of[2])
    h.bad_rows[1] = {8}
    while h.told[1].finish is None:
        h.turn()
    assert h.told[1].finish == FinishCode.CORRUPTED
    assert not any(h.scheduler.pool.is_findable(block) for block in computed_before)
    held_at = len(h.told[2].tokens)
    for _ in range(4):
        h.turn()
    assert len(h.told[2].tokens) >= held_at
    h.add(make_request(4, [1] * 16 + [4], 3))
    h.add(make_request(5, [3] * 16 + [4], 3))
    finish(h)
    assert h.told[2].stamps == [0, 1, 2], "computed again, once"
    assert h.told[3].stamps == [0, 1], "a stranger does not notice"
    assert h.told[5].prefill == (1, 16)
    assert h.scheduler.counters.num_corrupted == 1


def test_nothing_drawn_from_withdrawn_blocks_in_flight_is_told(make: Make) -> None:
    h = corrupting(make)
    h.bad_rows[1] = {8}
    # The reader's step in flight gives logits that are not finite too: it is a victim, not a second culprit.
    while h.told[1].finish is None:
        row = h.scheduler.service.row_of[2]
        position = int(h.scheduler.rows.applied[row] - h.scheduler.rows.prompt_len[row])
        h.bad_rows[2] = {position, position + 1} if h.will_corrupt(1) else set()
        h.turn()
    assert h.told[2].finish is None
    h.bad_rows[2] = set()
    finish(h)
    assert h.told[2].finish == FinishCode.MAX_TOKENS


def test_a_bad_prompt_score_ends_its_request_alone(make: Make) -> None:
    h = make(SchedulerConfig(max_prefill_chunk=4))
    h.add(make_request(1, [1] * 20, 4, num_prompt_logprobs=0, reads_cache=False))
    h.add(make_request(2, [2] * 20, 4, num_prompt_logprobs=0, reads_cache=False))
    h.bad_prompts = {1}
    h.drain()
    assert h.told[1].finish == FinishCode.CORRUPTED and h.told[1].detail and not h.told[1].prompt_positions
    h.check_end(2)


def test_a_paused_engine_plans_nothing_and_counts_what_waits(make: Make) -> None:
    h = make()
    h.add(make_request(1, [1], 20))
    h.turn()
    h.scheduler.pause = Pause.NEW
    h.add(make_request(2, [2], 4))
    assert not h.scheduler.is_paused
    for _ in range(40):
        h.turn()
    assert h.told[1].finish == FinishCode.MAX_TOKENS and h.scheduler.is_paused
    assert h.scheduler.waiting.causes()[Cause.PAUSED] == 1
    finish(h)


def test_a_reset_leaves_nothing_to_be_found(make: Make) -> None:
    h = make()
    h.add(make_request(1, [1] * 12, 20))
    for _ in range(3):
        h.turn()
    h.launch()
    h.scheduler.reset_cache()
    h.check()
    for _ in range(2):
        h.collect()
    assert h.scheduler.pool.num_findable == 0, "steps in flight publish nothing"
    finish(h)


def test_deadline_entries_of_ended_requests_do_not_pile_up(make: Make) -> None:
    h = make(max_num_batched_tokens=64)
    for key in range(1, 1500):
        h.add(make_request(key, [1], 0, deadline_ns=10**18))
        h.abort(key)
    assert len(h.scheduler._deadlines) < 1100
    finish(h)
