"""The engine as a process, with the null executor, against a front end that speaks the wire."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import zmq
from front_end import VOCAB, FrontEnd, ask, expected_tokens, make_add

from proa.errors import FinishCode
from proa.wire import (
    FLAG_PROGRESS,
    FLAG_SKIP_PREFIX_CACHE,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Hello,
    LogitBias,
    Shutdown,
    ShutdownMode,
    Utility,
    encode,
)


@pytest.fixture
def front() -> FrontEnd:
    with FrontEnd() as made:
        yield made


def test_the_handshake_tells_the_limits_and_shutdown_ends_with_0(front: FrontEnd) -> None:
    ready = front.start()
    assert (ready.protocol_major, ready.protocol_minor) == (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    assert ready.incarnation == int.from_bytes(front.identity[3:], "little") != 0
    facts = ready.facts
    assert facts is not None and facts.pid == front.process.pid
    assert (facts.max_model_len, facts.vocab_size, facts.block_size) == (256, VOCAB, 16)
    assert (facts.num_blocks, facts.max_num_seqs, facts.max_num_batched_tokens) == (128, 8, 64)
    assert [loading.phase for loading in front.loading] == ["weights"]
    assert facts.step_group == 0 and facts.identity_hash == bytes(32) and facts.config_hash != bytes(32)
    front.send(Shutdown(ShutdownMode.NOW, 1000))
    assert front.exit_code() == 0


def test_tokens_finish_codes_and_counts_are_right(front: FrontEnd) -> None:
    front.start()
    stop = expected_tokens(2, 6)[5]
    front.add(
        ask(1, [1, 2, 3]),
        ask(2, [4] * 40, 30, stop_ids=[stop, 999]),
        ask(3, [5] * 250, 100),
        ask(4, [6] * 20, 1),
        ask(5, [7] * 10, 0),
        ask(6, [8] * 256, 5),
    )
    front.await_finish(1, 2, 3, 4, 5, 6)
    told = front.told
    assert told[1].tokens == expected_tokens(1, 8) and told[1].finish == FinishCode.MAX_TOKENS
    assert told[2].tokens == expected_tokens(2, 6)
    assert (told[2].finish, told[2].stop_token) == (FinishCode.STOP_TOKEN, stop)
    assert told[3].tokens == expected_tokens(3, 6) and told[3].finish == FinishCode.CONTEXT_FULL
    assert told[4].tokens == expected_tokens(4, 1) and told[4].finish == FinishCode.MAX_TOKENS
    assert told[5].tokens == [] and told[5].finish == FinishCode.MAX_TOKENS and told[5].prefill == (10, 0)
    assert told[6].tokens == [] and told[6].finish == FinishCode.CONTEXT_FULL
    assert all(told[key].stamps == [0, 1] for key in told)
    front.await_idle()
    assert front.call("block_audit").value["held"] == 0


def test_an_equal_beginning_is_read_from_the_cache_unless_asked_not_to(front: FrontEnd) -> None:
    front.start()
    prompt = list(range(50))
    front.add(ask(1, prompt))
    front.await_finish(1)
    front.add(
        ask(2, prompt),
        ask(3, prompt, flags=FLAG_SKIP_PREFIX_CACHE),
        ask(4, prompt, rare={"salt": b"other"}),
        ask(5, prompt, num_prompt_logprobs=0),
        ask(6, prompt[:48]),
    )
    front.await_finish(2, 3, 4, 5, 6)
    assert front.told[2].prefill == (2, 48)
    assert front.told[3].prefill == front.told[4].prefill == front.told[5].prefill == (50, 0)
    assert front.told[6].prefill == (16, 32), "the last known token is always computed"
    front.await_idle()
    assert front.call("block_audit").value["leaked"] == 0
    assert front.call("reset_prefix_cache", running=False, external=False).value is True
    front.add(ask(7, prompt))
    front.await_finish(7)
    assert front.told[7].prefill == (50, 0)


def test_a_burst_of_one_prompt_computes_it_once(front: FrontEnd) -> None:
    front.start(max_num_batched_tokens=16, max_prefill_chunk=16)
    front.add(*(ask(key, list(range(100))) for key in range(1, 7)))
    front.await_finish(*range(1, 7))
    assert sorted(front.told[key].prefill for key in range(1, 7)) == [(4, 96)] * 5 + [(100, 0)]


def test_logprobs_of_drawn_and_prompt_tokens(front: FrontEnd) -> None:
    front.start(max_num_batched_tokens=7, max_logprobs=-1)
    prompt = list(range(100, 120))
    front.add(
        ask(1, prompt, 3, num_logprobs=2, num_prompt_logprobs=1),
        ask(2, prompt, 3),
        ask(3, prompt, 2, num_logprobs=-2),
        ask(4, prompt, 2, num_logprobs=0, num_prompt_logprobs=0),
    )
    front.await_finish(1, 2, 3, 4)
    one = front.told[1]
    assert [(value, rank) for value, rank, _ in one.logprobs] == [(0.0, 1)] * 3
    assert [ids[0] for _, _, ids in one.logprobs] == one.tokens and len(one.logprobs[0][2]) == 2
    assert {at: ids for at, (_, _, ids) in one.prompt_logprobs.items()} == {at: [prompt[at]] for at in range(1, 20)}
    assert not front.told[2].logprobs and not front.told[2].prompt_logprobs
    assert all(len(ids) == VOCAB for _, _, ids in front.told[3].logprobs)
    assert len(front.told[4].logprobs) == 2 and all(ids == [] for _, _, ids in front.told[4].logprobs)
    assert sorted(front.told[4].prompt_logprobs) == list(range(1, 20))


def test_emitted_tokens_count_as_output(front: FrontEnd) -> None:
    front.start()
    emitted = expected_tokens(9, 5)
    front.add(ask(1, [1, 2, 3, *emitted], 8, num_emitted=5, stream_key=9))
    front.await_finish(1)
    assert front.told[1].tokens == expected_tokens(9, 3, first=5)
    assert sum(front.told[1].prefill) == 3


def test_preempted_requests_give_the_same_tokens(front: FrontEnd) -> None:
    front.start(kv_cache_memory_bytes=320, max_num_seqs=6)
    front.add(*(ask(key, [key] * 30, 150) for key in range(1, 7)))
    front.await_finish(*range(1, 7))
    assert all(front.told[key].tokens == expected_tokens(key, 150) for key in range(1, 7))
    assert any(2 in front.told[key].stamps for key in range(1, 7))
    front.await_idle()
    assert front.stats.recomputed_tokens > 0
    assert front.call("block_audit").value["leaked"] == 0


def test_what_can_never_fit_is_refused_at_once(front: FrontEnd) -> None:
    front.start(kv_cache_memory_bytes=64)
    front.add(ask(1, [1] * 60, 30), ask(2, [1] * 10, 30))
    front.await_finish(1, 2)
    assert front.told[1].finish == FinishCode.NEVER_FITS and "blocks" in front.told[1].detail
    assert front.told[2].tokens == expected_tokens(2, 30)


BAD_ROWS = {
    "prompt id": ask(9, [VOCAB], 1),
    "empty prompt": ask(9, [], 1),
    "long prompt": ask(9, [1] * 257, 1),
    "stop id": ask(9, [1], 1, stop_ids=[VOCAB]),
    "temperature": ask(9, [1], 1, temperature=float("nan")),
    "top_p": ask(9, [1], 1, top_p=1.5),
    "repetition": ask(9, [1], 1, repetition_penalty=0.0),
    "num_emitted": ask(9, [1], 1, num_emitted=1),
    "min above max": ask(9, [1], 1, min_tokens=2),
    "num_logprobs": ask(9, [1], 1, num_logprobs=21),
    "whole vocabulary": ask(9, [1], 1, num_logprobs=-2),
    "num_prompt_logprobs": ask(9, [1], 1, num_prompt_logprobs=21),
    "priority": ask(9, [1], 1, priority=1),
    "pooling flag": ask(9, [1], 1, flags=1),
    "unknown flag": ask(9, [1], 1, flags=1 << 31),
    "adapter": ask(9, [1], 1, rare={"lora": "x"}),
    "bias": ask(9, [1], 1, rare={"logit_bias": LogitBias(np.array([VOCAB], "<u4"), np.array([1], "<f4"))}),
}


@pytest.fixture(scope="module")
def shared() -> FrontEnd:
    with FrontEnd() as made:
        made.start()
        yield made


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_refused_and_its_neighbours_are_served(shared: FrontEnd, name: str) -> None:
    key = 1000 + 10 * list(BAD_ROWS).index(name)
    shared.add(ask(key, [1]), BAD_ROWS[name] | {"request_key": key + 1}, ask(key + 2, [2]))
    shared.await_finish(key, key + 1, key + 2)
    assert shared.told[key].tokens == expected_tokens(key, 8)
    assert shared.told[key + 2].tokens == expected_tokens(key + 2, 8)
    assert shared.told[key + 1].finish == FinishCode.REFUSED and shared.told[key + 1].detail
    assert shared.told[key + 1].tokens == []


def test_the_largest_numbers_are_served_or_refused(front: FrontEnd) -> None:
    front.start(max_logprobs=-1, scheduling_policy="priority")
    most = 2**32 - 1
    front.add(
        ask(2**64 - 1, [1], most, min_tokens=most, top_k=most, stream_key=2**64 - 1, priority=2**63 - 1),
        ask(2, [1], 2, num_logprobs=VOCAB, priority=-(2**63)),
        ask(3, [1], 2, num_logprobs=VOCAB + 1),
        ask(4, [1], 2, num_prompt_logprobs=2**31 - 1),
        ask(5, [1], 2, deadline_ms=most - 1),
        ask(6, [1], 2, deadline_ms=0),
    )
    front.await_finish(2**64 - 1, 2, 3, 4, 5, 6)
    assert front.told[2**64 - 1].tokens == expected_tokens(2**64 - 1, 255)
    assert all(len(ids) == VOCAB for _, _, ids in front.told[2].logprobs) and len(front.told[2].logprobs) == 2
    assert front.told[3].finish == front.told[4].finish == FinishCode.REFUSED
    assert front.told[5].finish == FinishCode.MAX_TOKENS and front.told[6].finish == FinishCode.DEADLINE


def test_a_doubled_key_is_served_once(shared: FrontEnd) -> None:
    shared.add(ask(500, [1]), ask(500, [2]))
    shared.await_finish(500)
    assert shared.told[500].tokens == expected_tokens(500, 8)


def test_columns_that_do_not_match_are_answered_for_every_readable_key(shared: FrontEnd) -> None:
    frames = encode(make_add(ask(600, [1, 2]), ask(601, [3])))
    at = 2 + list(make_add(ask(1, [1])).columns.__slots__).index("prompt_ids")
    frames[at] = frames[at][:-4]
    shared.send_frames(frames)
    shared.await_finish(600, 601)
    assert shared.told[600].finish == shared.told[601].finish == FinishCode.REFUSED


def test_garbage_is_dropped_and_counted(front: FrontEnd) -> None:
    front.start()
    good = encode(make_add(ask(1, [1, 2, 3])))
    utility = encode(Utility(1, "is_paused", {}))
    garbage = {
        "kind": [
            [b"\x99", b"\x80"],
            [b"", b""],
            [b"\x82", b"\x80"],
            [b"xx", b"\x80"],
            encode(Hello(1, 0, "again", 0, 1000, bytes(16))),
        ],
        "decode": [[b"\x02"], [b"\x02", b"\xc1"], [b"\x04", b"\x91" * 100_000], [b"\x04", utility[1] + b"\x00"]],
        "columns": [[*good, b"1234"], good[:-1], [b"\x04", b"\x81\xa1x\x01"]],
    }
    for reason, messages in garbage.items():
        for frames in messages:
            front.send_frames(frames)
        assert reason
    front.abort(12345)
    assert front.call("is_paused").value is False
    front.add(ask(2, [1, 2, 3]))
    front.await_finish(2)
    assert front.told[2].tokens == expected_tokens(2, 8)
    assert front.stats.fallbacks == {f"wire/{reason}": len(messages) for reason, messages in garbage.items()}


def test_an_aborted_request_says_nothing_more_and_gives_its_blocks_back(front: FrontEnd) -> None:
    front.start()
    front.add(ask(1, [1] * 30, 200), ask(2, [2] * 30, 200))
    front.until(lambda: len(front.told[1].tokens) > 3)
    front.abort(1, 77)
    front.await_finish(2)
    front.await_idle()
    assert front.told[1].finish is None
    assert front.told[2].tokens == expected_tokens(2, 200)
    assert front.call("block_audit").value == front.call("block_audit").value | {"held": 0, "leaked": 0}


def test_a_deadline_ends_queued_and_running_requests(front: FrontEnd) -> None:
    front.start(max_num_seqs=1)
    assert front.call("pause", mode="keep", clear_cache=False).value is True
    front.add(ask(1, [1], deadline_ms=1), ask(2, [2]))
    front.await_finish(1)
    assert front.told[1].finish == FinishCode.DEADLINE and front.told[1].stamps == [0]
    front.call("resume")
    front.await_finish(2)


def test_pause_modes(front: FrontEnd) -> None:
    front.start()
    front.add(ask(1, [1] * 4, 200))
    front.until(lambda: len(front.told[1].tokens) > 3)
    assert front.call("pause", mode="keep", clear_cache=False).value is True
    front.until(lambda: front.stats.paused)
    assert front.call("pause", mode="wait", clear_cache=True).error.kind == "Conflict"
    assert front.call("pause", mode="foo").error.kind == "InvalidValue"
    assert front.call("pause", mode="keep", clear_cache=True).error.kind == "InvalidValue"
    assert front.call("pause", mode="keep", extra=1).error.kind == "UnknownField"
    assert front.call("is_paused").value is True
    front.add(ask(2, [2]))
    front.until(lambda: front.stats.num_waiting == 1)
    assert front.stats.waiting_causes[7] == 1
    assert front.told[1].finish is None and front.told[2].tokens == []
    front.call("resume")
    front.await_finish(1, 2)
    assert front.told[1].tokens == expected_tokens(1, 200), "as if nothing had happened"

    front.add(ask(3, [1] * 4, 240))
    front.until(lambda: len(front.told[3].tokens) > 3)
    front.call("pause", mode="abort", clear_cache=True)
    front.await_finish(3)
    assert front.told[3].finish == FinishCode.PAUSED
    front.until(lambda: front.stats.paused and front.stats.kv_blocks_used == 0)
    front.add(ask(4, [1] * 40))
    front.call("resume")
    front.await_finish(4)
    assert front.told[4].prefill == (40, 0), "the cache was cleared"

    front.add(ask(5, [5], 50))
    front.until(lambda: bool(front.told[5].tokens))
    front.call("pause", mode="wait", clear_cache=False)
    front.await_finish(5)
    assert front.told[5].tokens == expected_tokens(5, 50)
    front.until(lambda: front.stats.paused)


def test_utility_calls_that_do_not_exist_or_do_not_fit(front: FrontEnd) -> None:
    front.start()
    assert front.call("load_lora", name="x", path="/x").error.kind == "NotSupported"
    assert front.call("sleep", level=1, mode="wait").error.kind == "NotSupported"
    assert front.call("explain", keys="text").error.kind == "InvalidType"
    assert front.call("explain", keys=b"123").error.kind == "InvalidValue"
    assert front.call("get_settings").value == {}
    assert front.call("set_settings", max_num_seqs=4).error.kind == "Conflict"


def test_explain_and_progress_of_waiting_requests(front: FrontEnd) -> None:
    front.start(max_num_seqs=1)
    front.call("pause", mode="keep", clear_cache=False)
    front.add(ask(1, [1] * 20, flags=FLAG_PROGRESS), ask(2, [2] * 20, flags=FLAG_PROGRESS))
    front.until(lambda: bool(front.told[2].progress))
    value = front.call("explain", keys=np.array([2, 9, 1], "<u8").tobytes()).value
    assert np.frombuffer(value["key"], "<u8").tolist() == [2, 1]
    assert np.frombuffer(value["state"], "u1").tolist() == [0, 0]
    assert np.frombuffer(value["reason"], "u1").tolist() == [7, 7]
    assert np.frombuffer(value["position"], "<u4").tolist() == [1, 0]
    assert front.told[2].progress[0] == (7, 0)
    front.call("resume")
    front.await_finish(1, 2)


def test_drain_completes_and_now_does_not(front: FrontEnd) -> None:
    front.start()
    front.add(*(ask(key, [key] * 20, 100) for key in range(1, 20)))
    front.send(Shutdown(ShutdownMode.DRAIN, 20_000))
    front.await_finish(*range(1, 20))
    assert front.exit_code() == 0


def test_a_drain_that_cannot_end_stops_at_its_deadline(front: FrontEnd) -> None:
    front.start()
    front.call("pause", mode="keep", clear_cache=False)
    front.add(ask(1, [1]))
    front.send(Shutdown(ShutdownMode.DRAIN, 50))
    assert front.exit_code() == 0


def test_requests_before_ready_are_a_fault_and_shutdown_is_heard_early(front: FrontEnd) -> None:
    front.spawn()
    front.await_knock()
    front.send(make_add(ask(1, [1])))
    front.send_hello()
    front.until(lambda: front.ready is not None)
    front.add(ask(2, [1]))
    front.await_finish(2)
    assert front.stats.fallbacks == {"wire/kind": 1}
    assert 1 not in front.told


def test_shutdown_during_the_handshake(front: FrontEnd) -> None:
    front.spawn()
    front.await_knock()
    front.send(Shutdown(ShutdownMode.NOW, 1000))
    assert front.exit_code() == 0


def test_another_major_version_is_refused_for_good(front: FrontEnd) -> None:
    front.spawn()
    front.await_knock()
    front.send_hello(major=PROTOCOL_MAJOR + 1)
    front.until(lambda: front.failed is not None)
    assert front.failed.kind.value == "start_config"
    assert str(PROTOCOL_MAJOR) in front.failed.cause and str(PROTOCOL_MAJOR + 1) in front.failed.cause
    assert front.exit_code() == 2


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"schema": 2}', "schema"),
        ('{"schema": 1, "connect": "ipc:///x", "model_path": "/x", "max_model_length": 1}', "max_model_len"),
        ('{"schema": 1, "connect": "ipc:///x", "model_path": "/x", "block_size": true}', "block_size"),
        ('{"schema": 1, "connect": "ipc:///x", "model_path": "/x", "block_size": 0}', "block_size"),
        ('{"schema": 1, "connect": "ipc:///x", "model_path": "/x", "scheduling_policy": "fifo"}', "fcfs"),
        ('{"schema": 1, "model_path": "/x"}', "connect"),
    ],
)
def test_a_bad_configuration_ends_the_start(front: FrontEnd, document: str, named: str) -> None:
    front.spawn_document(document)
    assert front.exit_code() == 2
    assert named in front.process.stderr.read().decode()


def test_an_executor_this_build_lacks_is_refused_by_name(front: FrontEnd) -> None:
    front.spawn(executor="torch", device="null")
    front.await_knock()
    front.send_hello()
    front.until(lambda: front.failed is not None)
    assert front.failed.kind.value == "start_config"
    assert front.exit_code() == 2


def test_an_engine_whose_parent_is_gone_ends(front: FrontEnd) -> None:
    front.spawn(parent_pid=1)
    assert front.exit_code() == 0


def test_ctrl_c_is_left_to_the_front_end(front: FrontEnd) -> None:
    front.start()
    front.process.send_signal(signal.SIGINT)
    front.add(ask(1, [1]))
    front.await_finish(1)


def test_heartbeats_come_from_an_idle_engine(front: FrontEnd) -> None:
    front.spawn()
    front.shake_hands(heartbeat_ms=20)
    front.until(lambda: front.stats is not None and front.stats.seq >= 3)
    assert front.stats.step_age_ms == 0 and front.stats.step_num_tokens == 0


def test_a_front_end_that_takes_nothing_stops_the_steps_and_loses_nothing() -> None:
    with FrontEnd() as front:
        front.socket.setsockopt(zmq.RCVHWM, 1)
        front.start(max_model_len=20_000, kv_cache_memory_bytes=40_000, max_num_seqs=1)
        front.add(ask(1, [1], 15_000))
        front.until(lambda: bool(front.told[1].tokens))
        front.await_finish(1)
        assert front.told[1].tokens == expected_tokens(1, 15_000)
