"""Turns what a step gave (`StepEvents`) into the wire's `StepOutputs`."""

from __future__ import annotations

import numpy as np

from proa.sched.events import StepEvents
from proa.sched.plan import LogprobColumns
from proa.wire import (
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
    outputs.details = [Detail(row, message) for row, message in events.details]
    if len(events.key):
        drawn = events.num_tokens > 0
        outputs.rows = Rows(
            request_key=events.key.astype(np.uint64, copy=False),
            num_tokens=events.num_tokens,
            token_ids=events.token[drawn].astype(np.uint32),
            finish=events.finish,
            stop_token=events.stop_token,
        )
        if events.logprobs is not None:
            outputs.sampled_logprobs = _sampled(events, events.logprobs, drawn, vocab_size)
    if events.prefills:
        outputs.prefill = _prefill(events)
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


def _entries(k: np.ndarray, vocab_size: int) -> np.ndarray:
    return np.where(k == -2, vocab_size, k).astype(np.int32)


def _top(columns: LogprobColumns, rows: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first k[i] top entries of each of `rows`, concatenated."""
    wanted = np.arange(columns.top_ids.shape[1]) < k[:, None]
    return columns.top_ids[rows][wanted].astype(np.uint32), columns.top_values[rows][wanted]


def _sampled(events: StepEvents, columns: LogprobColumns, drawn: np.ndarray, vocab_size: int) -> SampledLogprobs:
    k = _entries(events.num_logprobs, vocab_size)
    rows = np.flatnonzero((k >= 0) & drawn)
    top_ids, top_values = _top(columns, rows, k[rows])
    return SampledLogprobs(k, columns.value[rows], columns.rank[rows].astype(np.uint32), top_ids, top_values)


def _prefill(events: StepEvents) -> Prefill:
    row_of = {key: row for row, key in enumerate(events.key.tolist())}
    told = [(row_of[p.key], p.computed, p.cached) for p in events.prefills if p.key in row_of]
    row, computed, cached = (
        (np.array(column, np.uint32) for column in zip(*told, strict=True)) if told else (np.zeros(0, np.uint32),) * 3
    )
    none = np.zeros(len(row), np.uint32)
    return Prefill(row, computed, cached, none, none, none, none)


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
