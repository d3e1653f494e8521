"""Turns rows and token counts into the columns of a `StepPlan`. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proa.request import NO_LOGPROBS
from proa.sched.plan import HOST, RowUpdates, StepPlan
from proa.sched.rows import Rows

if TYPE_CHECKING:
    from proa.sched.scheduler import Scheduler

_EMPTY = np.zeros(0, np.int32)


def build_plan(
    scheduler: Scheduler, rows: NDArray[np.int64], counts: NDArray[np.int32], updates: RowUpdates | None
) -> StepPlan:
    """Return the plan that computes the next `counts` tokens of `rows`, and advance the rows' counts by it."""
    r = scheduler.rows
    step = scheduler.step
    start = r.computed[rows]
    end = start + counts
    query_start = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    token_row = np.repeat(rows, counts)
    positions = np.repeat(start - query_start[:-1], counts) + np.arange(query_start[-1], dtype=np.int32)
    token_ids, token_source = _token_inputs(r, token_row, positions, step)
    bs = scheduler.limits.block_size
    blocks = r.blocks[token_row, positions // bs].astype(np.int64)
    table = _table_changes(r, rows, scheduler.limits.block_size, start, end)

    drawn = (end == r.length[rows]) & (r.length[rows] < r.limit[rows])
    sample_rows = rows[drawn]
    scored = _prompt_rows(r, rows, query_start, start, end)
    r.computed[rows] = end
    r.planned_step[rows] = step
    sample_position = r.length[sample_rows] - r.prompt_len[sample_rows]
    r.length[sample_rows] += 1
    r.sample_index[sample_rows] = np.arange(len(sample_rows), dtype=np.int32)
    r.sampled_step[sample_rows] = step
    return StepPlan(
        step=step,
        row=rows.astype(np.int32),
        query_start=query_start,
        context_len=end.astype(np.int32),
        token_ids=token_ids,
        token_source=token_source,
        positions=positions.astype(np.int32),
        slot_mapping=(blocks * bs + positions % bs)[None, :],
        table_group=np.zeros(len(table[0]), np.int32),
        table_row=table[0],
        table_index=table[1],
        table_block=table[2],
        logit_token=np.concatenate([query_start[1:][drawn] - 1, scored[0]]).astype(np.int32),
        sample_row=sample_rows.astype(np.int32),
        sample_position=sample_position.astype(np.int32),
        prompt_target=scored[1],
        prompt_k=scored[2],
        updates=updates,
        want_logprobs=bool((r.num_logprobs[sample_rows] != NO_LOGPROBS).any()),
    )


def _token_inputs(
    r: Rows, token_row: NDArray[np.int64], positions: NDArray[np.int32], step: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids the host knows, and for the others their place among the sampled ids of the step before."""
    pending = positions >= r.applied[token_row]
    source = np.where(pending, r.sample_index[token_row], HOST).astype(np.int32)
    assert not pending.any() or bool((r.sampled_step[token_row[pending]] == step - 1).all())
    ids = np.where(pending, 0, r.tokens[token_row, positions]).astype(np.int32)
    return ids, source


def _table_changes(
    r: Rows, rows: NDArray[np.int64], block_size: int, start: NDArray[np.int32], end: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Entries the executor does not know yet: all of a freshly filled row, else those that this step begins to use."""
    fresh = r.planned_step[rows] == 0
    low = np.where(fresh, 0, -(-start // block_size))
    high = -(-end // block_size)
    changed = np.flatnonzero(high > low)
    if len(changed) == 0:
        return _EMPTY, _EMPTY, _EMPTY
    lengths = (high - low)[changed]
    table_row = np.repeat(rows[changed], lengths)
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    table_index = np.repeat(low[changed], lengths) + offsets
    return table_row.astype(np.int32), table_index.astype(np.int32), r.blocks[table_row, table_index]


def _prompt_rows(
    r: Rows, rows: NDArray[np.int64], query_start: NDArray[np.int32], start: NDArray[np.int32], end: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Logit rows that score prompt tokens: of the token at p for the prompt's id at p + 1, not sent before."""
    scoring = np.flatnonzero(r.prompt_k[rows] != NO_LOGPROBS)
    if len(scoring) == 0:
        return _EMPTY, _EMPTY, _EMPTY
    tokens, targets, ks = [], [], []
    for i in scoring.tolist():
        row = int(rows[i])
        request = r.request[row]
        assert request is not None
        first = max(int(start[i]), request.prompt_scored)
        last = min(int(end[i]), int(r.prompt_len[row]) - 1)
        if first >= last:
            continue
        tokens.append(np.arange(first, last, dtype=np.int32) - int(start[i]) + query_start[i])
        targets.append(r.tokens[row, first + 1 : last + 1])
        ks.append(np.full(last - first, r.prompt_k[row], np.int32))
        request.prompt_scored = last
    if not tokens:
        return _EMPTY, _EMPTY, _EMPTY
    return np.concatenate(tokens).astype(np.int32), np.concatenate(targets), np.concatenate(ks)


def row_updates(r: Rows, rows: list[int]) -> RowUpdates:
    """Return the sampling parameters of freshly filled rows."""
    requests = [request for row in rows if (request := r.request[row]) is not None]
    history = [request.known_ids if request.needs_history else _EMPTY for request in requests]
    start = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(ids) for ids in history], out=start[1:])

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(request, name) for request in requests], dtype)

    return RowUpdates(
        row=np.array(rows, np.int32),
        temperature=column("temperature", np.float32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        top_k=column("top_k", np.int32),
        presence_penalty=column("presence_penalty", np.float32),
        frequency_penalty=column("frequency_penalty", np.float32),
        repetition_penalty=column("repetition_penalty", np.float32),
        min_tokens=column("min_tokens", np.int32),
        stream_key=column("stream_key", np.uint64),
        num_logprobs=column("num_logprobs", np.int32),
        history_start=start,
        history_ids=np.concatenate([*history, _EMPTY]).astype(np.int32),
        history_prompt_len=column("prompt_len", np.int32),
        extras=[request.extras for request in requests],
    )
