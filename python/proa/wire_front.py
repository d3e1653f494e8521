"""Messages of the front end (wire.md sections 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from proa.wire_columns import (
    ColF32,
    ColI32,
    ColI64,
    ColU8,
    ColU16,
    ColU32,
    ColU64,
    bounds,
    check_lengths,
    check_sum,
    columns,
    empty,
    total,
)
from proa.wire_fields import (
    F64,
    U8,
    U16,
    U32,
    U64,
    Anything,
    Bytes,
    Exact,
    Field,
    ListOf,
    Map,
    Nested,
    Nullable,
    Optional,
    OptionalBytes,
    OptionalU32,
    Packed,
    Str,
    Word,
    record,
)
from proa.wire_msgpack import mismatch

#: `num_logprobs`: none.
LOGPROBS_NONE = -1
#: `num_logprobs`: the whole vocabulary.
LOGPROBS_VOCABULARY = -2
#: `deadline_ms`: none.
NO_DEADLINE = 0xFFFFFFFF

#: `flags`: pooling and beams (reserved), do not read the prefix cache, run the next step alone (reserved), the grammar
#: begins only after reasoning, progress is wanted.
FLAG_POOLING = 1
FLAG_BEAMS = 2
FLAG_SKIP_PREFIX_CACHE = 4
FLAG_SOLO = 8
FLAG_GRAMMAR_AFTER_REASONING = 16
FLAG_PROGRESS = 32


class BadWords(Field):
    """Token sequences as one bin: u16 lengths, then u32 ids; a list of u32[w] on this side.

    The number of lengths is not sent: it is the one at which lengths and ids fill the bin exactly, and as each further
    length makes the total larger there is at most one.
    """

    is_plain = False

    def pack(self, value: list[NDArray[np.uint32]]) -> bytes:
        lengths = np.array([len(word) for word in value], "<u2")
        return lengths.tobytes() + b"".join(word.astype("<u4").tobytes() for word in value)

    def unpack(self, value: Any, lenient: bool) -> list[NDArray[np.uint32]]:
        if type(value) is not bytes:
            raise mismatch("expected bytes")
        lengths: list[int] = []
        num_ids = 0
        while 2 * len(lengths) + 4 * num_ids < len(value):
            at = 2 * len(lengths)
            lengths.append(int.from_bytes(value[at : at + 2], "little"))
            num_ids += lengths[-1]
        if 2 * len(lengths) + 4 * num_ids != len(value):
            raise mismatch("bad_words has lengths that do not match")
        ids = np.frombuffer(value, "<u4", offset=2 * len(lengths))
        edges = bounds(np.array(lengths, np.int64))
        return [ids[edges[i] : edges[i + 1]] for i in range(len(lengths))]


@record
class Hello:
    """First word of the front end to an engine that knocked."""

    protocol_major: U16
    protocol_minor: U16
    frontend_version: Str
    engine_index: U16
    heartbeat_ms: U32
    nonce: Annotated[bytes, Bytes(16)]
    proof: Annotated[bytes | None, Nullable(Bytes(32))] = None


@record
class Grammar:
    """What the output must follow; `text` may hold 2 MiB."""

    kind: Str
    text: Str
    options: Map


@record
class LogitBias:
    """u32[b] ids and the f32[b] values added to their logits."""

    ids: Annotated[NDArray[np.uint32], Packed("<u4")]
    values: Annotated[NDArray[np.float32], Packed("<f4")]


@record
class Beam:
    """Beam search (reserved)."""

    width: U16
    length_penalty: F64
    early_stopping: U8


@record
class Repetition:
    """Ends the request when a pattern of min..max tokens repeats `count` times."""

    min: U16
    max: U16
    count: U16


@record
class Pooling:
    """Pooling (reserved)."""

    task: Str
    dimensions: U32


@record
class Rare:
    """What only some rows of AddRequests have; None = not asked for."""

    row: U32
    salt: OptionalBytes = None
    session: OptionalBytes = None
    lora: Annotated[str | None, Optional(Exact(str))] = None
    grammar: Annotated[Grammar | None, Optional(Nested(Grammar))] = None
    logit_bias: Annotated[LogitBias | None, Optional(Nested(LogitBias))] = None
    allowed_ids: Annotated[NDArray[np.uint32] | None, Optional(Packed("<u4"))] = None
    bad_words: Annotated[list[NDArray[np.uint32]] | None, Optional(BadWords())] = None
    logprob_ids: Annotated[NDArray[np.uint32] | None, Optional(Packed("<u4"))] = None
    beam: Annotated[Beam | None, Optional(Nested(Beam))] = None
    repetition: Annotated[Repetition | None, Optional(Nested(Repetition))] = None
    thinking_budget: OptionalU32 = None
    pooling: Annotated[Pooling | None, Optional(Nested(Pooling))] = None
    media: Annotated[list[Any] | None, Optional(ListOf(Anything()))] = None
    trace: OptionalBytes = None
    max_load_tokens: OptionalU32 = None


@columns
class RequestColumns:
    """The rows of AddRequests: m requests. `prompt_ids` and `stop_ids` are concatenated, the rest has m entries."""

    request_key: ColU64
    prompt_len: ColU32
    prompt_ids: ColU32
    num_emitted: ColU32
    max_tokens: ColU32
    min_tokens: ColU32
    temperature: ColF32
    top_p: ColF32
    min_p: ColF32
    presence_penalty: ColF32
    frequency_penalty: ColF32
    repetition_penalty: ColF32
    top_k: ColU32
    stream_key: ColU64
    num_logprobs: ColI32
    num_prompt_logprobs: ColI32
    stop_len: ColU16
    stop_ids: ColU32
    priority: ColI64
    deadline_ms: ColU32
    flags: ColU32

    def check(self) -> None:
        """BadFrame if lengths or sums do not match."""
        per_row = (
            self.prompt_len,
            self.num_emitted,
            self.max_tokens,
            self.min_tokens,
            self.temperature,
            self.top_p,
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
            self.top_k,
            self.stream_key,
            self.num_logprobs,
            self.num_prompt_logprobs,
            self.stop_len,
            self.priority,
            self.deadline_ms,
            self.flags,
        )
        check_lengths(len(self.request_key), *per_row)
        check_sum(total(self.prompt_len), self.prompt_ids)
        check_sum(total(self.stop_len), self.stop_ids)


@dataclass(slots=True, eq=False)
class AddRequests:
    """Requests to run; without rows a nudge.

    Attributes:
        columns: one entry per request.
        rare: at most one entry per row, in any order; each `row` is below `num_rows`.
    """

    columns: RequestColumns = field(default_factory=lambda: empty(RequestColumns))
    rare: list[Rare] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Number of requests."""
        return len(self.columns.request_key)

    def prompt_bounds(self) -> NDArray[np.int64]:
        """i64[m + 1]: bounds of each row's part of `prompt_ids`."""
        return bounds(self.columns.prompt_len)

    def stop_bounds(self) -> NDArray[np.int64]:
        """i64[m + 1]: bounds of each row's part of `stop_ids`."""
        return bounds(self.columns.stop_len)

    def check(self) -> None:
        """BadFrame if lengths or sums do not match, or a rare entry is doubled or belongs to no row."""
        self.columns.check()
        rows = {rare.row for rare in self.rare}
        if len(rows) != len(self.rare) or any(row >= self.num_rows for row in rows):
            raise mismatch("a rare entry is doubled or belongs to no row")


@columns
class Abort:
    """Requests to end: keys and codes of `proa.errors.AbortCause`; without keys the front end's heartbeat."""

    request_key: ColU64
    cause: ColU8


@record
class Utility:
    """A call of a named method, applied between steps; `call_id` counts from 1 per engine."""

    call_id: U64
    method: Str
    args: Map


class ShutdownMode(Enum):
    """What becomes of running requests: completed or ended."""

    DRAIN = "drain"
    NOW = "now"


@record
class Shutdown:
    """Ask the engine to exit with code 0 within `deadline_ms`."""

    mode: Annotated[ShutdownMode, Word(ShutdownMode)]
    deadline_ms: U32
