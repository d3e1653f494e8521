"""Messages of the engine other than StepOutputs (wire.md sections 2 and 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from proa.errors import ErrorKind, FailureKind
from proa.wire_fields import (
    F64,
    I32,
    U16,
    U32,
    U64,
    Anything,
    Bool,
    Bytes,
    Exact,
    Float,
    Hash,
    Int,
    MapOf,
    Maps,
    Nested,
    Nullable,
    Optional,
    Str,
    pack_record,
    record,
    record_keys,
    unpack_record,
)
from proa.wire_msgpack import mismatch


@record
class Cache:
    """How the KV cache is set up."""

    cache_dtype: Str
    gpu_memory_utilization: F64
    enable_prefix_caching: Bool
    prefix_caching_hash_algo: Str
    num_cpu_blocks: Annotated[int | None, Nullable(Int(0, 2**32 - 1))] = None
    kv_offloading_backend: Annotated[str | None, Nullable(Exact(str))] = None
    kv_offloading_size: Annotated[int | None, Nullable(Int(0, 2**64 - 1))] = None


@record
class Capability:
    """Whether an optional feature is there, and why not."""

    ok: Bool
    reason: Str


@record
class EngineFacts:
    """What an engine that is ready says about itself: the limits it really has.

    `clock_ns` is the engine's monotonic clock at sending, `max_logprobs` -1 = vocabulary, `num_spec_tokens` 0 = no
    speculation, hashes 32 bytes (`identity_hash` zero in this release).
    """

    engine_version: Str
    device: Str
    pid: U32
    clock_ns: U64
    max_model_len: U32
    vocab_size: U32
    block_size: U32
    num_blocks: U32
    max_num_seqs: U32
    max_num_batched_tokens: U32
    num_spec_tokens: U32
    max_logprobs: I32
    cache: Annotated[Cache, Nested(Cache)]
    identity_hash: Hash
    config_hash: Hash
    step_group: U32
    capabilities: Annotated[dict[str, Capability], MapOf(Nested(Capability))]
    kernels: Maps
    startup: Maps
    markers: Maps
    proof: Annotated[bytes | None, Nullable(Bytes(32))] = None


@record
class _ReadyHead:
    protocol_major: U16
    protocol_minor: U16
    engine_index: U16
    incarnation: U64
    state: Str
    phase: Str
    progress: Annotated[float | None, Nullable(Float())]


@dataclass(slots=True, eq=False)
class Ready:
    """The engine's state while it starts (`facts` None), then, once, what it can do.

    Attributes:
        phase: `config`, `device`, `weights`, `kv`, `graphs`, `warm_up`.
        progress: 0..1; None = unknown.
    """

    protocol_major: int
    protocol_minor: int
    engine_index: int
    incarnation: int
    phase: str
    progress: float | None = None
    facts: EngineFacts | None = None

    def pack(self) -> dict[str, Any]:
        """The body of the message."""
        state = "loading" if self.facts is None else "ready"
        version = (self.protocol_major, self.protocol_minor)
        head = _ReadyHead(*version, self.engine_index, self.incarnation, state, self.phase, self.progress)
        return pack_record(head) | ({} if self.facts is None else pack_record(self.facts))

    @staticmethod
    def unpack(entries: dict[str, Any], lenient: bool) -> Ready:
        """The message in a body; BadFrame if it is none."""
        head = unpack_record(_ReadyHead, entries, lenient, record_keys(EngineFacts))
        facts = None
        if head.state == "ready":
            facts = unpack_record(EngineFacts, entries, lenient, record_keys(_ReadyHead))
        elif head.state == "loading":
            head = unpack_record(_ReadyHead, entries, lenient)
        else:
            raise mismatch("unknown state")
        version = (head.protocol_major, head.protocol_minor)
        return Ready(*version, head.engine_index, head.incarnation, head.phase, head.progress, facts)


@record
class UtilityError:
    """Why a call failed: the name of an ErrorKind and a message for people."""

    kind: Str
    message: Str


@record
class _ReplyBody:
    call_id: U64
    ok: Bool
    value: Annotated[Any, Optional(Anything())]
    error: Annotated[UtilityError | None, Optional(Nested(UtilityError))]


@dataclass(slots=True, eq=False)
class UtilityReply:
    """Answer to a Utility: `value` (None is sent as nil), or `error` if that is not None."""

    call_id: int
    value: Any = None
    error: UtilityError | None = None

    @staticmethod
    def failed(call_id: int, kind: ErrorKind, message: str) -> UtilityReply:
        """The answer to a call that failed."""
        return UtilityReply(call_id, error=UtilityError(kind.value, message))

    def pack(self) -> dict[str, Any]:
        """The body of the message."""
        head = {"call_id": self.call_id, "ok": self.error is None}
        return head | ({"value": self.value} if self.error is None else {"error": pack_record(self.error)})

    @staticmethod
    def unpack(entries: dict[str, Any], lenient: bool) -> UtilityReply:
        """The message in a body; BadFrame if it is none."""
        body = unpack_record(_ReplyBody, entries, lenient)
        if ("value" in entries) != body.ok or ("error" in entries) == body.ok:
            raise mismatch("a reply has either a value or an error")
        return UtilityReply(body.call_id, body.value, body.error)


@dataclass(slots=True, eq=False)
class EngineFailed:
    """Last word of an engine that gives up.

    Attributes:
        cause: one line of at most 512 bytes; a longer one is cut when sent.
        kind: decides whether the engine is started again.
        traceback: for the log only; cut to 64 KiB when sent.
        request_key: u64[k]; keys of the failing step.
    """

    cause: str
    kind: FailureKind
    traceback: str = ""
    request_key: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
