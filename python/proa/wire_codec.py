"""Messages as frames and back: `[kind][body][column]...` (wire.md section 1).

Owns `encode`, `decode` and the order of checks. Knows neither sockets nor what a message does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Annotated, Any

import numpy as np

from proa.errors import FailureKind
from proa.wire_columns import (
    ColumnSet,
    ColumnWriter,
    Frame,
    empty,
)
from proa.wire_engine import EngineFailed, Ready, UtilityReply
from proa.wire_fields import (
    U64,
    Anything,
    Exact,
    Listed,
    ListOf,
    Nested,
    Optional,
    Str,
    Word,
    pack_record,
    record,
    unpack_record,
)
from proa.wire_front import (
    Abort,
    AddRequests,
    Hello,
    Rare,
    RequestColumns,
    Shutdown,
    Utility,
)
from proa.wire_msgpack import (
    MAX_LINE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_STR_BYTES,
    BadFrame,
    Reason,
    mismatch,
    pack,
    undecodable,
    unpack,
)
from proa.wire_outputs import Detail, SchedulerStats, StepOutputs

#: Version of the wire whose messages this build sends; another major cannot be spoken to.
PROTOCOL_MAJOR = 1
#: Minor version; a sender of a higher one may add keys and columns.
PROTOCOL_MINOR = 0

Message = Hello | AddRequests | Abort | Utility | Shutdown | Ready | StepOutputs | UtilityReply | EngineFailed


class Direction(Enum):
    """Who sent a message."""

    FROM_FRONT_END = "front end"
    FROM_ENGINE = "engine"


class Kind(IntEnum):
    """The first frame of a message; 0x80 and above are sent by the engine."""

    HELLO = 0x01
    ADD_REQUESTS = 0x02
    ABORT = 0x03
    UTILITY = 0x04
    SHUTDOWN = 0x05
    READY = 0x81
    STEP_OUTPUTS = 0x82
    UTILITY_REPLY = 0x83
    ENGINE_FAILED = 0x84

    @property
    def direction(self) -> Direction:
        """Who sends messages of this kind."""
        return Direction.FROM_ENGINE if self >= 0x80 else Direction.FROM_FRONT_END


KINDS: dict[type, Kind] = {
    Hello: Kind.HELLO,
    AddRequests: Kind.ADD_REQUESTS,
    Abort: Kind.ABORT,
    Utility: Kind.UTILITY,
    Shutdown: Kind.SHUTDOWN,
    Ready: Kind.READY,
    StepOutputs: Kind.STEP_OUTPUTS,
    UtilityReply: Kind.UTILITY_REPLY,
    EngineFailed: Kind.ENGINE_FAILED,
}
_U64 = np.dtype("<u8")


def encode(message: Message) -> list[bytes]:
    """The frames of `message`, ready to be sent as one multipart message.

    The frames are copies: arrays of the message may change as soon as this returns. Lengths and sums are not checked;
    a message that breaks a rule is refused by the receiver.

    Raises:
        TypeError: a column is not an array of its type, or a body value no plain Python value.
    """
    out = ColumnWriter()
    body = _body_of(message, out)
    if out.names:
        body["columns"] = out.names
    return [bytes((KINDS[type(message)],)), pack(body), *out.frames]


def _body_of(message: Message, out: ColumnWriter) -> dict[str, Any]:
    """The body without its key `columns`; the columns go to `out`."""
    if isinstance(message, StepOutputs):
        message.put(out)
        body: dict[str, Any] = {"step_stamp_ns": message.step_stamp_ns}
        if message.stats is not None:
            body["stats"] = pack_record(message.stats)
        if message.details:
            body["details"] = [
                {"row": detail.row, "message": cut(detail.message, MAX_LINE_BYTES)} for detail in message.details
            ]
        return body
    if isinstance(message, AddRequests):
        out.put(message.columns)
        return {"rare": [pack_record(rare) for rare in message.rare]} if message.rare else {}
    if isinstance(message, Abort):
        out.put(message)
        return {}
    if isinstance(message, EngineFailed):
        out.put_one("request_key", message.request_key, _U64)
        cause, traceback = cut(message.cause, MAX_LINE_BYTES), cut(message.traceback, MAX_STR_BYTES)
        return {"cause": cause, "kind": message.kind.value, "traceback": traceback}
    if isinstance(message, (Ready, UtilityReply)):
        return message.pack()
    return pack_record(message)


def cut(text: str, max_bytes: int) -> str:
    """The longest beginning of `text` that takes at most `max_bytes` bytes in UTF-8; a lone surrogate becomes `?`."""
    encoded = text.encode("utf-8", "replace")
    return encoded[:max_bytes].decode("utf-8", "ignore")


def decode(direction: Direction, peer_minor: int, frames: Sequence[Frame]) -> Message:
    """The message in `frames`, which came from `direction`.

    Columns of the result are read-only views of the frames.

    Args:
        peer_minor: minor version the sender named in Hello or Ready; these two are read by the one they name
            themselves. Unknown keys and columns of a higher minor are skipped, else refused.

    Raises:
        BadFrame: anything that breaks a rule of the tables, whatever the bytes are. A faulty snapshot in StepOutputs
            is no error (`stats_faulty`).
    """
    kind = _kind_of(direction, frames)
    try:
        return _decode(kind, peer_minor, frames)
    except BadFrame as bad:
        bad.kind = kind.name.title().replace("_", "")
        if bad.reason is Reason.COLUMNS and kind in (Kind.ADD_REQUESTS, Kind.STEP_OUTPUTS):
            bad.request_keys = _readable_keys(frames)
        raise


def _kind_of(direction: Direction, frames: Sequence[Frame]) -> Kind:
    if not frames or len(frames[0]) != 1:
        raise BadFrame(Reason.KIND, "the first frame is not one byte")
    try:
        kind = Kind(frames[0][0])
    except ValueError:
        raise BadFrame(Reason.KIND, "unknown kind") from None
    if kind.direction is not direction:
        raise BadFrame(Reason.KIND, "the kind belongs to the other direction")
    return kind


def _decode(kind: Kind, peer_minor: int, frames: Sequence[Frame]) -> Message:
    if len(frames) < 2:
        raise undecodable("the body is missing")
    if sum(len(frame) for frame in frames) > MAX_MESSAGE_BYTES:
        raise undecodable("the message is too long")
    entries = unpack(frames[1], kind is Kind.ADD_REQUESTS)
    minor = peer_minor
    if kind in (Kind.HELLO, Kind.READY):
        named = entries.get("protocol_minor")
        minor = named if type(named) is int and 0 <= named <= 0xFFFF else peer_minor
    return _READERS[kind](entries, frames[2:], minor > PROTOCOL_MINOR)


_Columns = Annotated[list[str], Listed(ListOf(Exact(str)))]


@record
class _AddBody:
    rare: Annotated[list[Rare], Listed(ListOf(Nested(Rare)))]
    columns: _Columns


@record
class _ColumnsBody:
    columns: _Columns


@record
class _StepBody:
    step_stamp_ns: U64
    stats: Annotated[Any, Optional(Anything())]
    details: Annotated[list[Detail], Listed(ListOf(Nested(Detail)))]
    columns: _Columns


@record
class _FailedBody:
    cause: Str
    kind: Annotated[FailureKind, Word(FailureKind)]
    traceback: Str
    columns: _Columns


_Reader = Callable[[dict[str, Any], Sequence[Frame], bool], Message]


def _without_columns(unpack_body: Callable[[dict[str, Any], bool], Message]) -> _Reader:
    """Reads a body that has no columns in this version; those of a higher minor are skipped."""

    def read(entries: dict[str, Any], frames: Sequence[Frame], lenient: bool) -> Message:
        names = unpack_record(_ColumnsBody, entries, lenient).columns if lenient else []
        ColumnSet(names, frames).finish(lenient)
        return unpack_body(entries, lenient)

    return read


def _plain(cls: type[Any]) -> _Reader:
    return _without_columns(lambda entries, lenient: unpack_record(cls, entries, lenient))


def _read_add(entries: dict[str, Any], frames: Sequence[Frame], lenient: bool) -> AddRequests:
    body = unpack_record(_AddBody, entries, lenient)
    for rare in body.rare:
        if rare.logit_bias is not None and len(rare.logit_bias.ids) != len(rare.logit_bias.values):
            raise mismatch("logit_bias lists differ in length")
    taken = ColumnSet(body.columns, frames)
    add = AddRequests(taken.take_group(RequestColumns) or empty(RequestColumns), body.rare)
    add.check()
    taken.finish(lenient)
    return add


def _read_abort(entries: dict[str, Any], frames: Sequence[Frame], lenient: bool) -> Abort:
    taken = ColumnSet(unpack_record(_ColumnsBody, entries, lenient).columns, frames)
    abort = taken.take_group(Abort) or empty(Abort)
    if len(abort.request_key) != len(abort.cause):
        raise mismatch("columns of one group differ in length")
    taken.finish(lenient)
    return abort


def _read_step(entries: dict[str, Any], frames: Sequence[Frame], lenient: bool) -> StepOutputs:
    body = unpack_record(_StepBody, entries, lenient)
    if any(len(detail.message.encode()) > MAX_LINE_BYTES for detail in body.details):
        raise undecodable("a details line is too long")
    taken = ColumnSet(body.columns, frames)
    outputs = StepOutputs(body.step_stamp_ns, details=body.details)
    outputs.take(taken)
    taken.finish(lenient)
    if "stats" in entries:
        try:
            outputs.stats = unpack_record(SchedulerStats, body.stats, lenient)
        except BadFrame:
            outputs.stats_faulty = True
    return outputs


def _read_failed(entries: dict[str, Any], frames: Sequence[Frame], lenient: bool) -> EngineFailed:
    body = unpack_record(_FailedBody, entries, lenient)
    taken = ColumnSet(body.columns, frames)
    if len(body.cause.encode()) > MAX_LINE_BYTES:
        raise undecodable("the cause is too long")
    keys = taken.take("request_key", _U64)
    taken.finish(lenient)
    return EngineFailed(body.cause, body.kind, body.traceback, np.empty(0, np.uint64) if keys is None else keys)


_READERS: dict[Kind, _Reader] = {
    Kind.HELLO: _plain(Hello),
    Kind.ADD_REQUESTS: _read_add,
    Kind.ABORT: _read_abort,
    Kind.UTILITY: _plain(Utility),
    Kind.SHUTDOWN: _plain(Shutdown),
    Kind.READY: _without_columns(Ready.unpack),
    Kind.STEP_OUTPUTS: _read_step,
    Kind.UTILITY_REPLY: _without_columns(UtilityReply.unpack),
    Kind.ENGINE_FAILED: _read_failed,
}


def _readable_keys(frames: Sequence[Frame]) -> list[int]:
    """The request keys of a refused message, so that each can be answered; empty if they cannot be read."""
    try:
        names = unpack_record(_ColumnsBody, unpack(frames[1], True), True).columns
        at = names.index("request_key")
        keys: list[int] = np.frombuffer(frames[2 + at], _U64).tolist()
        return keys
    except (BadFrame, ValueError, IndexError):
        return []
