"""The golden messages in Python: decoded, compared with their JSON, encoded to the same bytes."""

from __future__ import annotations

from typing import Any

import fixture_files
import numpy as np
import pytest

from proa import wire
from proa.wire_columns import _GROUPS
from proa.wire_fields import pack_record

GOOD = fixture_files.names(bad=False)
BAD = fixture_files.names(bad=True)


def direction(document: dict[str, Any]) -> wire.Direction:
    return wire.Direction(document["from"])


def test_there_are_enough() -> None:
    assert len(GOOD) >= 15
    assert len(BAD) >= 20
    kinds = {fixture_files.read_json(name)["kind"] for name in GOOD}
    assert kinds == {int(kind) for kind in wire.Kind}


def test_column_types_are_those_of_the_code() -> None:
    names = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i32": "<i4", "i64": "<i8", "f32": "<f4"}
    for group in _GROUPS.values():
        for name, dtype in group.items():
            assert dtype == np.dtype(names[fixture_files.COLUMN_TYPES[name]]), name


@pytest.mark.parametrize("name", GOOD)
def test_good(name: str) -> None:
    document = fixture_files.read_json(name)
    frames = fixture_files.read_frames(name)
    assert frames == fixture_files.frames_of(document), "the .bin is not that of the .json: run make_fixtures.py"
    message = wire.decode(direction(document), 0, frames)
    assert wire.KINDS[type(message)] == document["kind"]
    assert_columns(message, document.get("columns", {}))
    assert wire.encode(message) == frames
    with pytest.raises(wire.BadFrame) as caught:
        other = next(d for d in wire.Direction if d is not direction(document))
        wire.decode(other, 0, frames)
    assert caught.value.reason is wire.Reason.KIND


def assert_columns(message: wire.Message, columns: dict[str, list[Any]]) -> None:
    """Every column of the JSON stands in the message under its name, and no other does."""
    found: dict[str, Any] = {}
    parts = [message, *(getattr(message, name) for name in getattr(message, "__slots__", ()))]
    for part in parts:
        for name in _GROUPS.get(type(part), {}):
            if len(getattr(part, name)) or name in columns:
                found[name] = getattr(part, name)
    for name in ("lp_ask_values", "request_key"):
        array = getattr(message, name, None)
        if array is not None and len(array):
            found[name] = array
    assert found.keys() == columns.keys()
    for name, values in columns.items():
        expected = fixture_files.column_bytes(fixture_files.COLUMN_TYPES[name], values)
        assert found[name].tobytes() == expected, name


@pytest.mark.parametrize("name", BAD)
def test_bad(name: str) -> None:
    document = fixture_files.read_json(name)
    with pytest.raises(wire.BadFrame) as caught:
        wire.decode(direction(document), 0, fixture_files.read_frames(name))
    assert caught.value.reason.value == document["reason"], caught.value.what


def test_body_values_of_a_decoded_message() -> None:
    rare = wire.decode(wire.Direction.FROM_FRONT_END, 0, fixture_files.read_frames("add_rare"))
    assert isinstance(rare, wire.AddRequests)
    first = rare.rare[0]
    assert (first.row, first.salt, first.lora, first.thinking_budget) == (1, b"salt", "Ünïcode", 0)
    assert first.bad_words is not None and [word.tolist() for word in first.bad_words] == [[7], [8, 9]]
    assert first.logit_bias is not None and first.logit_bias.values.tolist() == [1.0, -1.0]
    assert first.allowed_ids is not None and first.allowed_ids.tolist() == [1, 2]
    stats = wire.decode(wire.Direction.FROM_ENGINE, 0, fixture_files.read_frames("step_stats_full"))
    assert isinstance(stats, wire.StepOutputs) and stats.stats is not None
    assert pack_record(stats.stats) == fixture_files.read_json("step_stats_full")["body"]["stats"]
