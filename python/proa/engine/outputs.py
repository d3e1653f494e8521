"""Turns what a step gave (`StepEvents`) into the wire's `StepOutputs`."""

from __future__ import annotations

import numpy as np

from proa.sched.events import NO_STOP_TOKEN, DrawnRows, Ended, StepEvents
from proa.sched.plan import LogprobColumns
from proa.wire import (
    LOGPROBS_NONE,
    LOGPROBS_VOCABULARY,
    Detail,
    Prefill,
    PromptLogprobs,
    Rows,
    SampledLogprobs,
    SchedulerStats,
    Stamps,
    StepOutputs,
    Usage,
)


def to_outputs(events: StepEvents, stats: SchedulerStats, stamp_ns: int, vocab_size: int) -> StepOutputs:
    """Return the message for one step (or for none, when `events` is idle).

    `vocab_size` resolves a row that asked for the whole vocabulary to its number of entries.
    """
    outputs = StepOutputs(stamp_ns, stats)
    drawn = events.drawn
    if drawn is not None:
        # Rows without a token are those whose logits were not finite; each has a line of detail.
        outputs.rows = _rows(drawn, bool(events.details))
        if drawn.logprobs is not None:
            outputs.sampled_logprobs = _sampled(drawn, drawn.logprobs, len(events.ended), vocab_size)
    if events.ended:
        outputs.rows = _with_ended(outputs.rows, events.ended)
    if events.details or events.ended:
        outputs.details = _details(events)
    if events.prefills:
        outputs.prefill = _prefill(events, outputs.rows)
    if events.prompt_logprobs:
        outputs.prompt_logprobs = _prompt(events, vocab_size)
    if events.stamps:
        key, kind, ns = zip(*events.stamps, strict=True)
        outputs.stamps = Stamps(np.array(key, np.uint64), np.array(kind, np.uint8), np.array(ns, np.uint64))
    if events.usage:
        use_key, recomputed = zip(*events.usage, strict=True)
        nothing = np.zeros(len(use_key), np.uint32)
        outputs.usage = Usage(np.array(use_key, np.uint64), np.array(recomputed, np.uint32), nothing, nothing)
    return outputs


def _rows(drawn: DrawnRows, has_gaps: bool) -> Rows:
    token = drawn.token[drawn.num_tokens > 0] if has_gaps else drawn.token
    return Rows(drawn.key, drawn.num_tokens, token.astype(np.uint32), drawn.finish, drawn.stop_token)


def _with_ended(rows: Rows | None, ended: list[Ended]) -> Rows:
    """Put the rows of requests that end without a token behind the others."""
    count = len(ended)
    key = np.array([end.key for end in ended], np.uint64)
    finish = np.array([end.finish for end in ended], np.uint8)
    num_tokens, stop_token = np.zeros(count, np.uint16), np.full(count, NO_STOP_TOKEN, np.int32)
    if rows is None:
        return Rows(key, num_tokens, np.zeros(0, np.uint32), finish, stop_token)
    return Rows(
        request_key=np.concatenate([rows.request_key, key]),
        num_tokens=np.concatenate([rows.num_tokens, num_tokens]),
        token_ids=rows.token_ids,
        finish=np.concatenate([rows.finish, finish]),
        stop_token=np.concatenate([rows.stop_token, stop_token]),
    )


def _details(events: StepEvents) -> list[Detail]:
    first = 0 if events.drawn is None else len(events.drawn.key)
    details = [Detail(first + i, end.detail) for i, end in enumerate(events.ended) if end.detail]
    if events.details and events.drawn is not None:
        keys = events.drawn.key.tolist()
        details += [Detail(keys.index(key), line) for key, line in events.details.items()]
    return details


def _entries(k: np.ndarray, vocab_size: int) -> np.ndarray:
    return np.where(k == LOGPROBS_VOCABULARY, vocab_size, k).astype(np.int32)


def _top(columns: LogprobColumns, rows: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first k[i] top entries of each of `rows`, concatenated."""
    wanted = np.arange(columns.top_ids.shape[1]) < k[:, None]
    return columns.top_ids[rows][wanted].astype(np.uint32), columns.top_values[rows][wanted]


def _sampled(drawn: DrawnRows, columns: LogprobColumns, num_ended: int, vocab_size: int) -> SampledLogprobs:
    k = _entries(drawn.num_logprobs, vocab_size)
    rows = np.flatnonzero((k >= 0) & (drawn.num_tokens > 0))
    top_ids, top_values = _top(columns, rows, k[rows])
    if num_ended:
        k = np.concatenate([k, np.full(num_ended, LOGPROBS_NONE, np.int32)])
    return SampledLogprobs(k, columns.value[rows], columns.rank[rows].astype(np.uint32), top_ids, top_values)


def _prefill(events: StepEvents, rows: Rows | None) -> Prefill:
    assert rows is not None, "a completed prompt draws a token or ends"
    row_of = {key: row for row, key in enumerate(rows.request_key.tolist())}
    told = events.prefills
    none = np.zeros(len(told), np.uint32)
    return Prefill(
        prefill_row=np.array([row_of[prefill.key] for prefill in told], np.uint32),
        num_computed=np.array([prefill.computed for prefill in told], np.uint32),
        num_cached_device=np.array([prefill.cached for prefill in told], np.uint32),
        num_cached_host=none,
        num_cached_disk=none,
        num_cached_peer=none,
        num_cached_other=none,
    )


def _prompt(events: StepEvents, vocab_size: int) -> PromptLogprobs:
    chunks = events.prompt_logprobs
    k = _entries(np.array([c.k for c in chunks]), vocab_size)
    tops = [_top(c.columns, np.arange(c.count), np.full(c.count, k[i])) for i, c in enumerate(chunks)]
    return PromptLogprobs(
        plp_key=np.array([c.key for c in chunks], np.uint64),
        plp_start=np.array([c.start for c in chunks], np.uint32),
        plp_count=np.array([c.count for c in chunks], np.uint32),
        plp_k=k,
        plp_value=np.concatenate([c.columns.value for c in chunks]),
        plp_rank=np.concatenate([c.columns.rank for c in chunks]).astype(np.uint32),
        plp_top_ids=np.concatenate([ids for ids, _ in tops]),
        plp_top_values=np.concatenate([values for _, values in tops]),
    )
