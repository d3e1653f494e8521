"""The part of msgpack that the wire uses, and the fault every reader of the wire raises.

Owns the size limits of wire.md section 1 and the checks that need no table: str keys, no duplicate key, no extension
type, nesting, sizes. Does not know any message.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgpack

#: All frames of a message together.
MAX_MESSAGE_BYTES = 256 << 20
#: The msgpack body.
MAX_BODY_BYTES = 16 << 20
#: Maps and lists inside each other, the body included.
MAX_NESTING = 16
#: Entries of one map or list.
MAX_ENTRIES = 65_536
#: Values of a whole body; keeps the decoded form of a body near its size.
MAX_VALUES = 1 << 20
#: Column frames of a message.
MAX_COLUMNS = 64
#: A string, unless its table says otherwise.
MAX_STR_BYTES = 64 << 10
#: A grammar's text, and any bin.
MAX_BIN_BYTES = 2 << 20
#: One `details` line and the cause of an EngineFailed.
MAX_LINE_BYTES = 512

_UNPACK_ERRORS = (ValueError, TypeError, OverflowError, msgpack.UnpackException)


class Reason(Enum):
    """The label under which a dropped message is counted (wire.md section 5)."""

    KIND = "kind"
    DECODE = "decode"
    COLUMNS = "columns"


class BadFrame(Exception):
    """A message that has to be dropped and counted.

    Attributes:
        reason: what to count it under.
        what: what was wrong, for the log; never holds anything of the message.
        kind: name of the message, None where it could not be read.
        request_keys: the column `request_key` of AddRequests or StepOutputs where it could still be read, else empty.
    """

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(f"bad frame ({reason.value}): {what}")
        self.reason = reason
        self.what = what
        self.kind: str | None = None
        self.request_keys: list[int] = []


def undecodable(what: str) -> BadFrame:
    """A fault counted under `decode`."""
    return BadFrame(Reason.DECODE, what)


def mismatch(what: str) -> BadFrame:
    """A fault counted under `columns`."""
    return BadFrame(Reason.COLUMNS, what)


def pack(body: dict[str, Any]) -> bytes:
    """The bytes of `body`: ints in their shortest form, floats as f64, keys in the order of the dict."""
    packed: bytes = msgpack.packb(body, use_bin_type=True)
    return packed


def unpack(body: bytes | memoryview, long_text: bool) -> dict[str, Any]:
    """The one map in `body`, within every limit.

    Args:
        body: the second frame of a message.
        long_text: lifts the limit of strings under the key `text` to that of bytes (grammars).

    Raises:
        BadFrame: with reason `decode`, whatever the bytes are.
    """
    if len(body) > MAX_BODY_BYTES:
        raise undecodable("the body is too long")
    try:
        value = msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_map,
            ext_hook=_refuse_extension,
            max_str_len=MAX_BIN_BYTES,
            max_bin_len=MAX_BIN_BYTES,
            max_array_len=MAX_ENTRIES,
            max_map_len=MAX_ENTRIES,
            max_ext_len=0,
        )
    except _UNPACK_ERRORS as error:
        raise undecodable("the body is not of the msgpack profile") from error
    if type(value) is not dict:
        raise undecodable("the body is not a map")
    _check_sizes(value, long_text)
    return value


def _map(pairs: list[tuple[object, object]]) -> dict[object, object]:
    for key, _ in pairs:
        if type(key) is not str:
            raise ValueError("a key is not a string")
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("duplicate key")
    return entries


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError("extension types are not used")


def _check_sizes(body: dict[str, Any], long_text: bool) -> None:
    """Depth, strings and number of values; a loop, so depth costs no stack."""
    pending: list[tuple[Any, int]] = [(body, 1)]
    num_values = 1
    while pending:
        container, depth = pending.pop()
        if depth > MAX_NESTING:
            raise undecodable("nested too deeply")
        num_values += len(container)
        if num_values > MAX_VALUES:
            raise undecodable("too many values")
        if type(container) is dict:
            for key, value in container.items():
                _check_string(key, MAX_STR_BYTES)
                if type(value) is str:
                    _check_string(value, MAX_BIN_BYTES if long_text and key == "text" else MAX_STR_BYTES)
                elif type(value) is dict or type(value) is list:
                    pending.append((value, depth + 1))
        else:
            for value in container:
                if type(value) is str:
                    _check_string(value, MAX_STR_BYTES)
                elif type(value) is dict or type(value) is list:
                    pending.append((value, depth + 1))


def _check_string(text: str, max_bytes: int) -> None:
    # A character takes at most four bytes, so short strings need no encoding.
    if len(text) * 4 > max_bytes and len(text.encode()) > max_bytes:
        raise undecodable("a string is too long")
