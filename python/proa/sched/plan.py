"""The plain data in which deciding and executing meet: `StepPlan` down, `StepResult` up.

The scheduler writes a plan and never touches it again; the executor reads it and never changes it. Every column is a
C-contiguous little-endian numpy array. Nothing here knows torch, a device, a socket or a request object.

Sizes used below
    R  rows of this step (requests that compute at least one token)
    T  tokens of this step, over all rows
    S  logit rows that are sampled, at most one a request row (more with drafts)
    Q  logit rows that score a prompt token (prompt logprobs)
    A  request rows that are filled or refilled by this step
    D  block-table entries that change with this step
    G  KV groups (layers with equal cache needs); 1 for a model of full attention only
    K  largest number of top logprobs asked for by a sampled row; KP the same over the prompt rows

Four words are kept apart: a *token* is one position of one request, a *row* is a request's fixed index in the arrays
of live requests (0 .. max_num_seqs - 1), a *block* is a unit of KV memory, a *slot* is one token's place in a block
(slot = block * block_size + offset).

Lifetimes. A plan and the arrays it holds stay unchanged until its ticket has been collected. A result belongs to the
collector from then on. A row index, and the blocks of a row, are given to another request no earlier than the
collection of the last step that read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]

#: Value of `StepPlan.token_source` for a token whose id stands in `token_ids`.
HOST = -1
#: Value of `RowUpdates.num_logprobs` and `StepPlan.prompt_k`: no logprobs.
LOGPROBS_NONE = -1
#: Value of `RowUpdates.num_logprobs` and `StepPlan.prompt_k`: one entry for every id of the vocabulary.
LOGPROBS_VOCABULARY = -2
#: Filler of `StepResult.lp_top_ids` behind a row's own k.
NO_TOKEN = -1


class StepMode(IntEnum):
    """How a step ran on its device; the order is that of `SchedulerStats.num_steps`."""

    GRAPH = 0
    PIECEWISE = 1
    EAGER = 2


@dataclass(slots=True, frozen=True)
class RowExtras:
    """What few requests ask for; an object a row, absent (None) for all others.

    Attributes:
        stop_ids: i32[any]; masked while the output is shorter than `min_tokens`.
        bias_ids, bias_values: i32[b], f32[b]; added to the logits.
        allowed_ids: i32[a] or None; every other id is masked. None allows all.
        bad_words: sequences i32[w >= 1]; the last id is masked where it would complete its sequence.
    """

    stop_ids: I32
    bias_ids: I32
    bias_values: F32
    allowed_ids: I32 | None
    bad_words: tuple[I32, ...]


@dataclass(slots=True)
class RowUpdates:
    """Sampling parameters of the rows that this step fills (admission) or refills (resume after preemption).

    A row keeps them until it is filled anew. Columns have one entry per filled row.

    Attributes:
        row: i32[A]; the request row.
        temperature, top_p, min_p: f32[A]; temperature 0 is greedy; neutral 1, 1, 0.
        top_k: i32[A]; 0 = off.
        presence_penalty, frequency_penalty, repetition_penalty: f32[A]; neutral 0, 0, 1.
        min_tokens: i32[A]; output tokens before which `RowExtras.stop_ids` are masked.
        stream_key: u64[A]; random stream of the request (speculative-decoding.md section 3).
        num_logprobs: i32[A]; LOGPROBS_NONE, 0 = sampled token only, k, or LOGPROBS_VOCABULARY.
        history_start: i32[A + 1]; bounds of each row's part of `history_ids`; an empty part for rows whose
            parameters need no history (no penalty, no bad words).
        history_ids: i32[history_start[-1]]; known ids (prompt, then output) as far as the host knows them.
        history_prompt_len: i32[A]; how many of a row's history ids are prompt; the rest are output.
        extras: one `RowExtras` or None a row.
    """

    row: I32
    temperature: F32
    top_p: F32
    min_p: F32
    top_k: I32
    presence_penalty: F32
    frequency_penalty: F32
    repetition_penalty: F32
    min_tokens: I32
    stream_key: U64
    num_logprobs: I32
    history_start: I32
    history_ids: I32
    history_prompt_len: I32
    extras: list[RowExtras | None]


@dataclass(slots=True)
class StepPlan:
    """One step, decided: which tokens run, where their K and V go, what is drawn.

    Attributes:
        step: number of the step, from 1, +1 each; a ticket and a result carry it.
        row: i32[R]; request rows, each at most once.
        query_start: i32[R + 1]; tokens of plan row i are query_start[i] .. query_start[i + 1]; rising strictly.
        context_len: i32[R]; tokens of the row in the KV cache when this step has run (computed before + new).
        token_ids: i32[T]; ids the host knows; 0 where `token_source` is not HOST.
        token_source: i32[T]; HOST, or an index into the S sampled ids of the previous step (step - 1).
        positions: i32[T]; position of each token in its request, from 0.
        slot_mapping: i64[G, T]; slot each token's K and V are written to, by group.
        table_group, table_row, table_index, table_block: i32[D]; block table of the group: entry [row, index] becomes
            block. Applied before the step. Entries never named keep their value.
        logit_token: i32[S + Q]; tokens whose logits are needed: first the S sampled ones, then the Q prompt ones.
        sample_row: i32[S]; request row of each sampled logit row.
        sample_position: i32[S]; index of the drawn token among the request's output tokens, from 0 (Philox counter).
        prompt_target: i32[Q]; prompt id that follows the token of the logit row.
        prompt_k: i32[Q]; top logprobs wanted there: 0, k or LOGPROBS_VOCABULARY.
        updates: rows filled with this step, or None.
        want_logprobs: whether any sampled row of this step asked for logprobs.
        wait_masks: whether the sampler must wait for `Executor.masks` of this step (grammar).
    """

    step: int
    row: I32
    query_start: I32
    context_len: I32
    token_ids: I32
    token_source: I32
    positions: I32
    slot_mapping: I64
    table_group: I32
    table_row: I32
    table_index: I32
    table_block: I32
    logit_token: I32
    sample_row: I32
    sample_position: I32
    prompt_target: I32
    prompt_k: I32
    updates: RowUpdates | None = None
    want_logprobs: bool = False
    wait_masks: bool = False

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.row)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """S."""
        return len(self.sample_row)

    @property
    def num_prompt_scored(self) -> int:
        """Q."""
        return len(self.prompt_target)


@dataclass(slots=True)
class LogprobColumns:
    """Logprobs of some logit rows, in f32, from the logits before any processing.

    Values may be NaN or infinite: they travel as they are. Equal values are ordered by lower id.

    Attributes:
        value: f32[N]; of the drawn (or true prompt) id.
        rank: i32[N]; entries of the vocabulary with a logprob >= the value, so from 1; 0 = not ranked (NaN).
        top_ids: i32[N, K]; by falling value; NO_TOKEN behind a row's own k.
        top_values: f32[N, K]; as `top_ids`.
    """

    value: F32
    rank: I32
    top_ids: I32
    top_values: F32


@dataclass(slots=True)
class StepResult:
    """What one step brought to the host.

    Attributes:
        step: number of the plan.
        sampled_ids: i32[S]; drawn ids, in the order of `StepPlan.sample_row`; undefined where `nonfinite` is set.
        nonfinite: u8[S + Q]; 1 where the logit row was NaN or had no finite entry before masking.
        logprobs: of the S sampled rows, or None when `want_logprobs` was False.
        prompt_logprobs: of the Q prompt rows, or None when Q = 0.
        mode: how the step ran.
        device_ns: time the device was busy with the step, monotonic ns; 0 if unknown.
    """

    step: int
    sampled_ids: I32
    nonfinite: U8
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    mode: StepMode = StepMode.EAGER
    device_ns: int = 0


#: dtype of every array column, by class; the checker and the tests read it.
PLAN_DTYPES: dict[str, np.dtype] = {
    "row": np.dtype("<i4"),
    "query_start": np.dtype("<i4"),
    "context_len": np.dtype("<i4"),
    "token_ids": np.dtype("<i4"),
    "token_source": np.dtype("<i4"),
    "positions": np.dtype("<i4"),
    "slot_mapping": np.dtype("<i8"),
    "table_group": np.dtype("<i4"),
    "table_row": np.dtype("<i4"),
    "table_index": np.dtype("<i4"),
    "table_block": np.dtype("<i4"),
    "logit_token": np.dtype("<i4"),
    "sample_row": np.dtype("<i4"),
    "sample_position": np.dtype("<i4"),
    "prompt_target": np.dtype("<i4"),
    "prompt_k": np.dtype("<i4"),
}


@dataclass(slots=True, frozen=True)
class PlanLimits:
    """Bounds a plan must keep: what the executor has allocated.

    Attributes:
        max_num_seqs: request rows.
        max_num_batched_tokens: most tokens a step.
        max_model_len: most tokens a request.
        num_blocks: blocks of the KV pool, over all groups.
        block_size: tokens a block.
        vocab_size: ids of the model.
        num_groups: KV groups.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    num_groups: int = field(default=1)
