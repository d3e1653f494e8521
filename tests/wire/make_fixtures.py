"""Writes `tests/fixtures/wire/NAME.bin` of every good JSON, and both files of every bad message.

    python tests/wire/make_fixtures.py

Run it after a change to a JSON; the suites of both languages compare with what is checked in.
"""

from __future__ import annotations

import json
from typing import Any

import msgpack
from fixture_files import FOLDER, column_bytes, frames_of, join_frames

Bad = tuple[str, str, str, list[bytes]]
_ROW_COLUMNS = ["request_key", "num_tokens", "token_ids", "finish", "stop_token"]


def _body(**entries: Any) -> bytes:
    packed: bytes = msgpack.packb(entries)
    return packed


def _step(entries: dict[str, Any], **columns: bytes) -> list[bytes]:
    body = {"step_stamp_ns": 1, **entries}
    if columns:
        body["columns"] = list(columns)
    return [b"\x82", msgpack.packb(body), *columns.values()]


def _rows(num_rows: int = 1) -> dict[str, bytes]:
    """Row columns with one token per row."""
    return {
        "request_key": column_bytes("u64", list(range(1, num_rows + 1))),
        "num_tokens": column_bytes("u16", [1] * num_rows),
        "token_ids": column_bytes("u32", [5] * num_rows),
        "finish": column_bytes("u8", [0] * num_rows),
        "stop_token": column_bytes("i32", [-1] * num_rows),
    }


def _nested(depth: int) -> bytes:
    """A Utility whose args bring the body to `depth` containers inside each other."""
    value: Any = []
    for _ in range(depth - 3):
        value = [value]
    return _body(call_id=1, method="m", args={"a": value})


BAD_KIND: list[Bad] = [
    ("bad_kind_unknown", "kind", "no kind has this byte", [b"\x06", b"\x80"]),
    ("bad_kind_direction", "kind", "only the front end aborts", [b"\x83", _body(call_id=1, ok=True, value=None)]),
    ("bad_kind_two_bytes", "kind", "the first frame is one byte", [b"\x03\x03", b"\x80"]),
    ("bad_kind_no_frame", "kind", "there is no first frame", []),
]


_UTILITY = _body(call_id=1, method="m", args={})
BAD_DECODE: list[Bad] = [
    ("bad_decode_no_body", "decode", "the body is missing", [b"\x03"]),
    ("bad_decode_empty_body", "decode", "an empty body is no map", [b"\x03", b""]),
    ("bad_decode_list", "decode", "the body is a list", [b"\x03", b"\x90"]),
    ("bad_decode_truncated", "decode", "the body is cut short", [b"\x04", _UTILITY[:-1]]),
    ("bad_decode_trailing", "decode", "a byte follows the map", [b"\x04", _UTILITY + b"\xc0"]),
    (
        "bad_decode_duplicate_key",
        "decode",
        "mode stands twice",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa1m\xa4args\x82\xa4mode\x01\xa4mode\x01"],
    ),
    (
        "bad_decode_int_key",
        "decode",
        "keys are strings",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa1m\xa4args\x81\x01\x02"],
    ),
    (
        "bad_decode_bin_key",
        "decode",
        "keys are strings",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa1m\xa4args\x81\xc4\x01a\x02"],
    ),
    (
        "bad_decode_extension",
        "decode",
        "no extension types",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa1m\xa4args\x81\xa1a\xd4\x05\x00"],
    ),
    (
        "bad_decode_timestamp",
        "decode",
        "no extension types",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa1m\xa4args\x81\xa1a\xd6\xff\x00\x00\x00\x01"],
    ),
    (
        "bad_decode_utf8",
        "decode",
        "a string is not UTF-8",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa1\xff\xa4args\x80"],
    ),
    (
        "bad_decode_surrogate",
        "decode",
        "a lone surrogate is not UTF-8",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xa3\xed\xa0\x80\xa4args\x80"],
    ),
    ("bad_decode_nesting", "decode", "17 containers inside each other", [b"\x04", _nested(17)]),
    ("bad_decode_long_string", "decode", "65,537 bytes", [b"\x04", _body(call_id=1, method="m" * 65_537, args={})]),
    (
        "bad_decode_lying_string",
        "decode",
        "claims 4 GiB",
        [b"\x04", b"\x83\xa7call_id\x01\xa6method\xdb\xff\xff\xff\xff"],
    ),
    ("bad_decode_lying_map", "decode", "claims 2^32 - 1 entries", [b"\x03", b"\xdf\xff\xff\xff\xff\xa1a\x01"]),
    (
        "bad_decode_lying_list",
        "decode",
        "claims 2^32 - 1 entries",
        [b"\x03", b"\x81\xa7columns\xdd\xff\xff\xff\xff"],
    ),
    (
        "bad_decode_many_columns",
        "decode",
        "65 columns",
        [b"\x03", _body(columns=[f"c{i}" for i in range(65)]), *[b""] * 65],
    ),
    (
        "bad_decode_long_detail",
        "decode",
        "513 bytes",
        _step({"details": [{"row": 0, "message": "x" * 513}]}, **_rows()),
    ),
]


_ONE_ROW = _rows()
_SHORT = {name: _ONE_ROW[name] for name in _ROW_COLUMNS[:-1]}
_LOGPROBS = {
    "lp_value": column_bytes("f32", [0.0]),
    "lp_rank": column_bytes("u32", [1]),
    "lp_top_ids": b"",
    "lp_top_values": b"",
}
BAD_COLUMNS: list[Bad] = [
    ("bad_columns_missing", "columns", "stop_token is missing", _step({}, **_SHORT)),
    (
        "bad_columns_doubled",
        "columns",
        "request_key stands twice",
        [b"\x03", _body(columns=["request_key", "cause", "request_key"]), bytes(8), b"\x01", bytes(8)],
    ),
    ("bad_columns_width", "columns", "15 bytes of u64", _step({}, **_ONE_ROW | {"request_key": bytes(15)})),
    ("bad_columns_length", "columns", "two finishes for one row", _step({}, **_ONE_ROW | {"finish": bytes(2)})),
    (
        "bad_columns_sum",
        "columns",
        "num_tokens says 1, token_ids has 2",
        _step({}, **_ONE_ROW | {"token_ids": bytes(8)}),
    ),
    ("bad_columns_extra_frame", "columns", "a frame has no name", [*_step({}, **_ONE_ROW), b""]),
    ("bad_columns_missing_frame", "columns", "a name has no frame", _step({}, **_ONE_ROW)[:-1]),
    ("bad_columns_unknown_column", "columns", "same minor version", _step({}, **_ONE_ROW, color=b"")),
    ("bad_columns_unknown_key", "columns", "same minor version", _step({"color": 1})),
    (
        "bad_columns_unknown_nested_key",
        "columns",
        "same minor version",
        _step({"details": [{"row": 0, "message": "", "color": 1}]}, **_ONE_ROW),
    ),
    ("bad_columns_missing_key", "columns", "step_stamp_ns is missing", [b"\x82", b"\x80"]),
    ("bad_columns_nil_key", "columns", "step_stamp_ns is never nil", [b"\x82", _body(step_stamp_ns=None)]),
    ("bad_columns_float_for_int", "columns", "step_stamp_ns is an integer", [b"\x82", _body(step_stamp_ns=1.0)]),
    ("bad_columns_bool_for_int", "columns", "step_stamp_ns is an integer", [b"\x82", _body(step_stamp_ns=True)]),
    ("bad_columns_negative", "columns", "step_stamp_ns is unsigned", [b"\x82", _body(step_stamp_ns=-1)]),
    ("bad_columns_wide", "columns", "deadline_ms is a u32", [b"\x05", _body(mode="now", deadline_ms=1 << 32)]),
    ("bad_columns_mode", "columns", "no such mode", [b"\x05", _body(mode="later", deadline_ms=1)]),
    (
        "bad_columns_lp_k",
        "columns",
        "lp_k is at least -1",
        _step({}, **_ONE_ROW, lp_k=column_bytes("i32", [-2]), **_LOGPROBS),
    ),
    (
        "bad_columns_lp_sum",
        "columns",
        "k 3 needs 3 top entries",
        _step({}, **_ONE_ROW, lp_k=column_bytes("i32", [3]), **_LOGPROBS),
    ),
    (
        "bad_columns_lp_overflow",
        "columns",
        "k 2^31 - 1 claims 8 GiB",
        _step({}, **_ONE_ROW, lp_k=column_bytes("i32", [2**31 - 1]), **_LOGPROBS),
    ),
    (
        "bad_columns_prefill_row",
        "columns",
        "row 1 of 1",
        _step(
            {},
            **_ONE_ROW,
            prefill_row=column_bytes("u32", [1]),
            **{
                name: bytes(4)
                for name in (
                    "num_computed",
                    "num_cached_device",
                    "num_cached_host",
                    "num_cached_disk",
                    "num_cached_peer",
                    "num_cached_other",
                )
            },
        ),
    ),
    ("bad_columns_rare_row", "columns", "a rare entry of no row", [b"\x02", _body(rare=[{"row": 0}])]),
    (
        "bad_columns_state",
        "columns",
        "no such state",
        [
            b"\x81",
            _body(
                protocol_major=1,
                protocol_minor=0,
                engine_index=0,
                incarnation=1,
                state="asleep",
                phase="kv",
                progress=None,
            ),
        ],
    ),
    (
        "bad_columns_reply",
        "columns",
        "a reply has one of value and error",
        [b"\x83", _body(call_id=1, ok=True, value=1, error={"kind": "Internal", "message": ""})],
    ),
    (
        "bad_columns_failure_kind",
        "columns",
        "no such kind",
        [b"\x84", _body(cause="c", kind="bored", traceback="")],
    ),
    (
        "bad_columns_hash",
        "columns",
        "a nonce has 16 bytes",
        [
            b"\x01",
            _body(
                protocol_major=1,
                protocol_minor=0,
                frontend_version="0",
                engine_index=0,
                heartbeat_ms=1000,
                nonce=bytes(15),
                proof=None,
            ),
        ],
    ),
]


def main() -> None:
    """Writes the files."""
    for path in FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        if "body" in document:
            path.with_suffix(".bin").write_bytes(join_frames(frames_of(document)))
    for name, reason, why, frames in BAD_KIND + BAD_DECODE + BAD_COLUMNS:
        sender = "engine" if frames and frames[0][0] >= 0x80 and name != "bad_kind_direction" else "front end"
        document = {"from": sender, "reason": reason, "why": why}
        (FOLDER / f"{name}.json").write_text(json.dumps(document) + "\n")
        (FOLDER / f"{name}.bin").write_bytes(join_frames(frames))


if __name__ == "__main__":
    main()
