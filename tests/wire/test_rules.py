"""Rules of the wire that no golden message can show: versions, faulty snapshots, readable keys, single rows."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from fixture_files import read_frames
from hypothesis import given
from hypothesis import strategies as st

from proa import wire
from proa.errors import FailureKind

ENGINE, FRONT_END = wire.Direction.FROM_ENGINE, wire.Direction.FROM_FRONT_END


def edit(frames: list[bytes], **changes: object) -> list[bytes]:
    """The frames with body keys changed, added or (for `...`) removed."""
    body = msgpack.unpackb(frames[1]) | changes
    kept = {key: value for key, value in body.items() if value is not ...}
    return [frames[0], msgpack.packb(kept), *frames[2:]]


def reason(direction: wire.Direction, frames: list[bytes], minor: int = 0) -> wire.BadFrame:
    with pytest.raises(wire.BadFrame) as caught:
        wire.decode(direction, minor, frames)
    return caught.value


def test_unknown_names_of_a_higher_minor_are_skipped() -> None:
    frames = read_frames("step_two_rows")
    columns = [*msgpack.unpackb(frames[1])["columns"], "new"]
    newer = [*edit(frames, columns=columns, added={"a": [1]}), b"odd"]
    assert reason(ENGINE, newer).reason is wire.Reason.COLUMNS
    assert wire.encode(wire.decode(ENGINE, 1, newer)) == frames


def test_hello_and_ready_are_read_by_the_minor_they_name() -> None:
    for direction, name in ((FRONT_END, "hello"), (ENGINE, "ready"), (ENGINE, "ready_loading")):
        frames = read_frames(name)
        assert reason(direction, edit(frames, added=1)).reason is wire.Reason.COLUMNS
        wire.decode(direction, 0, edit(frames, added=1, protocol_minor=1))
        with_column = [*edit(frames, added=1, protocol_minor=1, columns=["new"]), b"x"]
        wire.decode(direction, 0, with_column)
        assert reason(direction, with_column[:-1]).reason is wire.Reason.COLUMNS


def test_loading_refuses_the_facts_of_ready() -> None:
    frames = read_frames("ready_loading")
    assert reason(ENGINE, edit(frames, vocab_size=5)).reason is wire.Reason.COLUMNS


@pytest.mark.parametrize("key", sorted(msgpack.unpackb(read_frames("step_stats_full")[1])["stats"]))
def test_a_faulty_snapshot_leaves_the_rows(key: str) -> None:
    stats = msgpack.unpackb(read_frames("step_stats_full")[1])["stats"]
    for damaged in (stats | {key: "wrong"}, stats | {key: None}):
        frames = edit(read_frames("step_two_rows"), stats=damaged)
        # The key `columns` must stay last for the bytes, not for the reader.
        outputs = wire.decode(ENGINE, 0, frames)
        assert isinstance(outputs, wire.StepOutputs)
        assert outputs.stats_faulty and outputs.stats is None
        assert outputs.rows is not None and outputs.rows.request_key.tolist() == [7, 8]


def test_a_required_gauge_is_missed_and_an_unknown_one_refused() -> None:
    stats = msgpack.unpackb(read_frames("step_stats_full")[1])["stats"]
    del stats["num_running"]
    for damaged in (stats, stats | {"num_running": 1, "color": 1}, 7, None):
        outputs = wire.decode(ENGINE, 0, edit(read_frames("step_two_rows"), stats=damaged))
        assert isinstance(outputs, wire.StepOutputs) and outputs.stats_faulty
    newer = wire.decode(ENGINE, 1, edit(read_frames("step_two_rows"), stats=stats | {"num_running": 1, "color": 1}))
    assert isinstance(newer, wire.StepOutputs) and not newer.stats_faulty and newer.stats is not None


def test_keys_of_a_refused_message_can_be_answered() -> None:
    frames = read_frames("add_ragged")
    bad = reason(FRONT_END, frames[:-1] + [frames[-1] + b"\0"])
    assert bad.reason is wire.Reason.COLUMNS and bad.kind == "AddRequests"
    assert bad.request_keys == [1, 2**32, 2**64 - 1]
    assert reason(FRONT_END, [frames[0], frames[1][:-1], *frames[2:]]).request_keys == []


def test_long_grammars_pass_and_no_other_long_string() -> None:
    add = wire.decode(FRONT_END, 0, read_frames("add_rare"))
    assert isinstance(add, wire.AddRequests) and add.rare[0].grammar is not None
    add.rare[0].grammar.text = "é" * (1 << 20)
    assert wire.encode(wire.decode(FRONT_END, 0, wire.encode(add))) == wire.encode(add)
    add.rare[0].grammar.text += "x"
    assert reason(FRONT_END, wire.encode(add)).reason is wire.Reason.DECODE
    add.rare[0].grammar.text = ""
    add.rare[0].lora = "x" * 65_536
    wire.decode(FRONT_END, 0, wire.encode(add))
    add.rare[0].lora += "x"
    assert reason(FRONT_END, wire.encode(add)).reason is wire.Reason.DECODE


def test_body_limits() -> None:
    huge = wire.encode(wire.Utility(1, "m", {"a": [bytes(2 << 20)] * 8}))
    assert reason(FRONT_END, huge).what == "the body is too long"
    assert (
        reason(FRONT_END, wire.encode(wire.Utility(1, "m", {"a": bytes((2 << 20) + 1)}))).reason is wire.Reason.DECODE
    )
    assert reason(FRONT_END, wire.encode(wire.Utility(1, "m", {"a": [0] * 65_537}))).reason is wire.Reason.DECODE
    wire.decode(FRONT_END, 0, wire.encode(wire.Utility(1, "m", {"a": [0] * 65_536})))
    many = wire.Utility(1, "m", {"a": [[0] * 65_536 for _ in range(17)]})
    assert reason(FRONT_END, wire.encode(many)).what == "too many values"


def test_texts_of_a_failing_engine_are_cut_not_refused() -> None:
    failed = wire.EngineFailed("é" * 300, FailureKind.STEP_FAILED, "t" * 100_000)
    decoded = wire.decode(ENGINE, 0, wire.encode(failed))
    assert isinstance(decoded, wire.EngineFailed)
    assert decoded.cause == "é" * 256 and len(decoded.traceback) == 65_536
    assert wire.cut("a\ud800é", 3) == "a?"


def test_columns_are_never_cast() -> None:
    keys: Any = np.array([1], np.int64)
    abort = wire.Abort(keys, np.array([1], np.uint8))
    with pytest.raises(TypeError, match="request_key"):
        wire.encode(abort)


def test_decoded_columns_are_read_only() -> None:
    abort = wire.decode(FRONT_END, 0, read_frames("abort"))
    assert isinstance(abort, wire.Abort)
    with pytest.raises(ValueError, match="read-only"):
        abort.cause[0] = 9


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=40), max_size=20))
def test_bad_words_have_one_reading(words: list[list[int]]) -> None:
    add = wire.decode(FRONT_END, 0, read_frames("add_one"))
    assert isinstance(add, wire.AddRequests)
    add.rare = [wire.Rare(0, bad_words=[np.array(word, np.uint32) for word in words])]
    again = wire.decode(FRONT_END, 0, wire.encode(add))
    assert isinstance(again, wire.AddRequests) and again.rare[0].bad_words is not None
    # Empty sequences at the end add lengths without ids and are kept too: the bin's size tells.
    assert [word.tolist() for word in again.rare[0].bad_words] == words


def test_every_row_rule_of_requests() -> None:
    good = wire.decode(FRONT_END, 0, read_frames("add_one"))
    assert isinstance(good, wire.AddRequests)
    assert wire.request_faults(good, 49_152) == {}
    assert wire.request_faults(good, 49_151) == {0: "a prompt id is not below vocab_size"}
    changes = {
        "request_key": 0,
        "num_emitted": 3,
        "min_tokens": 17,
        "temperature": np.nan,
        "top_p": 1.5,
        "min_p": -0.5,
        "presence_penalty": np.inf,
        "frequency_penalty": -2.5,
        "repetition_penalty": 0,
        "num_logprobs": -3,
        "num_prompt_logprobs": -3,
        "stop_ids": 49_152,
    }
    for name, value in changes.items():
        add = wire.decode(FRONT_END, 0, read_frames("add_one"))
        assert isinstance(add, wire.AddRequests)
        setattr(add.columns, name, np.array([value], getattr(add.columns, name).dtype))
        assert wire.request_faults(add, 49_152).keys() == {0}, name


def test_a_bad_row_harms_no_neighbour() -> None:
    add = wire.decode(FRONT_END, 0, read_frames("add_ragged"))
    assert isinstance(add, wire.AddRequests)
    add.columns.request_key = np.array([5, 6, 5], np.uint64)
    add.columns.num_emitted = np.zeros(3, np.uint32)
    add.columns.min_tokens = np.zeros(3, np.uint32)
    assert wire.request_faults(add, 49_152) == {2: "request_key is doubled"}
    assert wire.request_faults(add, 20).keys() == {1, 2}
    add.rare = [wire.Rare(1, allowed_ids=np.array([], np.uint32)), wire.Rare(0, logprob_ids=np.array([3], np.uint32))]
    assert wire.request_faults(add, 49_152) == {1: "allowed_ids is empty", 2: "request_key is doubled"}


def test_identity_is_as_the_spec_prints_it() -> None:
    identity = wire.Identity(3, 0x0102030405060708)
    assert identity.to_bytes() == bytes.fromhex("5003000807060504030201")
    assert wire.Identity.from_bytes(identity.to_bytes()) == identity
    for raw in (b"P" * 10, b"P" * 12, b"Q" + identity.to_bytes()[1:], b"P" + bytes(10)):
        assert wire.Identity.from_bytes(raw) is None
