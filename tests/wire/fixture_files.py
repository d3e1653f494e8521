"""The golden messages: made from plain JSON by rules of their own, not by the code under test.

`tests/fixtures/wire/NAME.json` says what `NAME.bin` holds (u32 frame length + frame, repeated):

    good  {"from": "engine", "kind": 130, "body": {...}, "columns": {"finish": [0, 4]}}
    bad   {"from": "engine", "reason": "columns", "why": "..."}; its bytes stand in make_fixtures.py

Bytes in a body are {"$bin": "hex"}; NaN and infinities in columns are "nan", "inf", "-inf". Column types are in
`columns.json`.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgpack

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "wire"
COLUMN_TYPES: dict[str, str] = json.loads((FOLDER / "columns.json").read_text())
_FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q", "f32": "f"}


def names(bad: bool) -> list[str]:
    """Names of the good or the bad fixtures."""
    found = sorted(path.stem for path in FOLDER.glob("*.bin"))
    return [name for name in found if ("reason" in read_json(name)) == bad]


def read_json(name: str) -> dict[str, Any]:
    """What the fixture holds."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return document


def read_frames(name: str) -> list[bytes]:
    """The frames of a fixture."""
    return split_frames((FOLDER / f"{name}.bin").read_bytes())


def split_frames(data: bytes) -> list[bytes]:
    """The frames of a file's bytes."""
    frames = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        frames.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return frames


def join_frames(frames: list[bytes]) -> bytes:
    """The file's bytes of frames."""
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def frames_of(document: dict[str, Any]) -> list[bytes]:
    """The frames a good fixture's JSON stands for."""
    body = dict(_plain(document["body"]))
    columns = document.get("columns", {})
    if columns:
        body["columns"] = list(columns)
    frames = [column_bytes(COLUMN_TYPES[name], values) for name, values in columns.items()]
    return [bytes([document["kind"]]), msgpack.packb(body), *frames]


def column_bytes(type_: str, values: list[int | float | str]) -> bytes:
    """One column frame."""
    numbers = [float(value) if isinstance(value, str) else value for value in values]
    return struct.pack(f"<{len(numbers)}{_FORMATS[type_]}", *numbers)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["$bin"]:
            return bytes.fromhex(value["$bin"])
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
