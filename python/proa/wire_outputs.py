"""StepOutputs: what a step gave, one group of columns per subject (wire.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from proa.wire_columns import (
    ColF32,
    ColI32,
    ColU8,
    ColU16,
    ColU32,
    ColU64,
    ColumnSet,
    ColumnWriter,
    check_lengths,
    check_sum,
    columns,
    total,
    total_product,
)
from proa.wire_fields import (
    U8,
    U32,
    U64,
    Bool,
    Exact,
    Float,
    Int,
    Listed,
    ListOf,
    MapOf,
    Optional,
    OptionalU64,
    Str,
    record,
)
from proa.wire_msgpack import mismatch

#: `stop_token`: none.
NO_STOP_TOKEN = -1
#: `stamp_kind`: queued, first scheduled, preempted.
STAMP_QUEUED = 0
STAMP_FIRST_SCHEDULED = 1
STAMP_PREEMPTED = 2
#: `prog_reason`: the request is in prefill.
IN_PREFILL = 255

_F32 = np.dtype("<f4")


@columns
class Rows:
    """The rows of the step: n requests that got tokens or ended; `token_ids` is concatenated."""

    request_key: ColU64
    num_tokens: ColU16
    token_ids: ColU32
    finish: ColU8
    stop_token: ColI32

    def check(self) -> None:
        """BadFrame if lengths or sums do not match."""
        check_lengths(len(self.request_key), self.num_tokens, self.finish, self.stop_token)
        check_sum(total(self.num_tokens), self.token_ids)


@columns
class SampledLogprobs:
    """Logprobs of the tokens of Rows.

    `lp_k` i32[n]: -1 none, else top entries per token. `lp_value`, `lp_rank`: one per token of rows with lp_k >= 0;
    rank from 1, 0 = not ranked. `lp_top_*`: lp_k per such token, by falling value.
    """

    lp_k: ColI32
    lp_value: ColF32
    lp_rank: ColU32
    lp_top_ids: ColU32
    lp_top_values: ColF32

    def check(self, num_tokens: ColU16) -> None:
        """BadFrame if lengths or sums do not match those of the rows."""
        check_lengths(len(num_tokens), self.lp_k)
        if len(self.lp_k) and int(self.lp_k.min()) < -1:
            raise mismatch("lp_k is below -1")
        asked = self.lp_k >= 0
        counts = num_tokens[asked]
        check_sum(total(counts), self.lp_value, self.lp_rank)
        check_sum(total_product(counts, self.lp_k[asked]), self.lp_top_ids, self.lp_top_values)


@columns
class PromptLogprobs:
    """Chunks of prompt logprobs, in order per request; position 0 is never sent.

    `plp_value`, `plp_rank`: `plp_count` per chunk; `plp_top_*`: `plp_k` per position, by falling value.
    """

    plp_key: ColU64
    plp_start: ColU32
    plp_count: ColU32
    plp_k: ColI32
    plp_value: ColF32
    plp_rank: ColU32
    plp_top_ids: ColU32
    plp_top_values: ColF32

    def check(self) -> None:
        """BadFrame if lengths or sums do not match."""
        check_lengths(len(self.plp_key), self.plp_start, self.plp_count, self.plp_k)
        if len(self.plp_k) and int(self.plp_k.min()) < 0:
            raise mismatch("plp_k is below 0")
        check_sum(total(self.plp_count), self.plp_value, self.plp_rank)
        check_sum(total_product(self.plp_count, self.plp_k), self.plp_top_ids, self.plp_top_values)


@columns
class Prefill:
    """Rows whose prefill completed in this step; the six counts of tokens sum to the prompt's length."""

    prefill_row: ColU32
    num_computed: ColU32
    num_cached_device: ColU32
    num_cached_host: ColU32
    num_cached_disk: ColU32
    num_cached_peer: ColU32
    num_cached_other: ColU32

    def check(self, num_rows: int) -> None:
        """BadFrame if lengths do not match or an entry belongs to no row."""
        check_lengths(
            len(self.prefill_row),
            self.num_computed,
            self.num_cached_device,
            self.num_cached_host,
            self.num_cached_disk,
            self.num_cached_peer,
            self.num_cached_other,
        )
        if len(self.prefill_row) and int(self.prefill_row.max()) >= num_rows:
            raise mismatch("a prefill entry belongs to no row")


@columns
class Stamps:
    """When requests were queued, first scheduled, preempted (STAMP_*), by the engine's clock."""

    stamp_key: ColU64
    stamp_kind: ColU8
    stamp_ns: ColU64

    def check(self) -> None:
        """BadFrame if lengths do not match."""
        check_lengths(len(self.stamp_key), self.stamp_kind, self.stamp_ns)


@columns
class Progress:
    """Where requests with FLAG_PROGRESS stand.

    `prog_reason`: 0..7 = queued, index into `_tables.WAITING_CAUSES`, its place in `prog_position`; IN_PREFILL = in
    prefill, with prompt tokens taken from the cache and computed so far.
    """

    prog_key: ColU64
    prog_reason: ColU8
    prog_position: ColU32
    prog_cached: ColU32
    prog_computed: ColU32

    def check(self) -> None:
        """BadFrame if lengths do not match."""
        check_lengths(len(self.prog_key), self.prog_reason, self.prog_position, self.prog_cached, self.prog_computed)


@columns
class Usage:
    """Tokens that requests which ended in this step recomputed after preemption, drafted, had accepted."""

    use_key: ColU64
    use_recomputed: ColU32
    use_drafted: ColU32
    use_accepted: ColU32

    def check(self) -> None:
        """BadFrame if lengths do not match."""
        check_lengths(len(self.use_key), self.use_recomputed, self.use_drafted, self.use_accepted)


@record
class Detail:
    """Why a row ended with a finish code of 10 to 16; a message above 512 bytes is cut when sent."""

    row: U32
    message: Str


_U32_LIST = ListOf(Int(0, 2**32 - 1))
_U64 = Int(0, 2**64 - 1)


@record
class SchedulerStats:
    """Gauges after the step was applied, and totals since the engine process started (metrics-and-bench.md 2).

    Plain Python ints throughout: numpy scalars cannot be sent. Fields of an absent feature are None.
    """

    incarnation: U64
    seq: U64
    num_running: U32
    num_waiting: U32
    waiting_causes: Annotated[list[int], ListOf(Int(0, 2**32 - 1), 8)]
    kv_blocks_used: U32
    kv_blocks_total: U32
    sleep_state: U8
    paused: Bool
    step_age_ms: U32
    step_num_tokens: U32
    step_num_rows: U32
    num_steps: Annotated[list[int], ListOf(_U64, 3)]
    step_ns: Annotated[list[int], ListOf(_U64, 5)]
    prefix_queries: U64
    prefix_hits: U64
    external_queries: U64
    external_hits: U64
    resumed_queries: U64
    resumed_hits: U64
    mm_queries: U64
    mm_hits: U64
    recomputed_tokens: U64
    finished_row_tokens: U64
    num_corrupted: U64
    num_drafts: OptionalU64 = None
    num_draft_tokens: OptionalU64 = None
    num_accepted_tokens: OptionalU64 = None
    accepted_per_pos: Annotated[list[int] | None, Optional(ListOf(_U64))] = None
    fallbacks: Annotated[dict[str, int], MapOf(_U64)] = field(default_factory=dict)
    lora_slot_loads: OptionalU64 = None
    lora_slot_evictions: OptionalU64 = None
    lora_embedding_delta_skipped: OptionalU64 = None
    eplb_rebalances_moved: OptionalU64 = None
    eplb_rebalances_kept: OptionalU64 = None
    eplb_expert_moves: OptionalU64 = None
    eplb_rebalance_ns: OptionalU64 = None
    eplb_balancedness: Annotated[float | None, Optional(Float())] = None
    lora_running: Annotated[list[str] | None, Optional(ListOf(Exact(str)))] = None
    lora_waiting: Annotated[list[str] | None, Optional(ListOf(Exact(str)))] = None
    process_rss_bytes: OptionalU64 = None
    process_cpu_ns: OptionalU64 = None
    process_open_fds: OptionalU64 = None
    grammar_compile_ns: Annotated[list[int], Listed(ListOf(_U64))] = field(default_factory=list)
    kv_evicted_ns: Annotated[list[list[int]], Listed(ListOf(ListOf(_U64, 2)))] = field(default_factory=list)
    kv_reuse_gap_ns: Annotated[list[int], Listed(ListOf(_U64))] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class StepOutputs:
    """What a step gave; without rows a change of gauges or the engine's heartbeat. A group is None when it is empty.

    Attributes:
        step_stamp_ns: engine clock when the step's result was applied.
        stats: the snapshot; a running engine always sends one.
        stats_faulty: only when decoded: a snapshot was there and broke a rule; the rows are good.
        lp_ask_values: f32[any]; logprobs of the asked ids, one set per token of rows that asked; None = no row asked.
    """

    step_stamp_ns: int
    stats: SchedulerStats | None = None
    details: list[Detail] = field(default_factory=list)
    rows: Rows | None = None
    sampled_logprobs: SampledLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prefill: Prefill | None = None
    stamps: Stamps | None = None
    progress: Progress | None = None
    usage: Usage | None = None
    lp_ask_values: ColF32 | None = None
    stats_faulty: bool = False

    def put(self, out: ColumnWriter) -> None:
        """Writes every group."""
        for group in (
            self.rows,
            self.sampled_logprobs,
            self.prompt_logprobs,
            self.prefill,
            self.stamps,
            self.progress,
            self.usage,
        ):
            out.put(group)
        if self.lp_ask_values is not None:
            out.put_one("lp_ask_values", self.lp_ask_values, _F32)

    def take(self, taken: ColumnSet) -> None:
        """Reads every group. BadFrame if lengths or sums do not match."""
        self.rows = taken.take_group(Rows)
        self.sampled_logprobs = taken.take_group(SampledLogprobs)
        self.prompt_logprobs = taken.take_group(PromptLogprobs)
        self.prefill = taken.take_group(Prefill)
        self.stamps = taken.take_group(Stamps)
        self.progress = taken.take_group(Progress)
        self.usage = taken.take_group(Usage)
        self.lp_ask_values = taken.take("lp_ask_values", _F32)
        num_tokens = np.empty(0, np.uint16) if self.rows is None else self.rows.num_tokens
        if self.rows is not None:
            self.rows.check()
        if self.sampled_logprobs is not None:
            self.sampled_logprobs.check(num_tokens)
        if self.prefill is not None:
            self.prefill.check(len(num_tokens))
        for group in (self.prompt_logprobs, self.stamps, self.progress, self.usage):
            if group is not None:
                group.check()
