"""Turns chosen rows into the columns of a `StepPlan` and advances the rows' counts. Decides nothing.

Decoding rows come first, one token each, as whole columns; prompt chunks follow, a handful of slices each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proa.kvcache.block_manager import BlockManager
from proa.request import NO_LOGPROBS, Request
from proa.sched.plan import HOST, RowUpdates, StepPlan
from proa.sched.rows import Rows

I32 = NDArray[np.int32]
_EMPTY = np.zeros(0, np.int32)


@dataclass(slots=True)
class Chunk:
    """The next `count` known tokens of a row in prefill."""

    row: int
    count: int
    request: Request


@dataclass(slots=True)
class Planned:
    """A plan in flight, with what applying its result needs.

    Attributes:
        place: i32[S]; index in its request of each drawn token.
        chunks: the prompt chunks of the step; their plan rows follow the decoding ones.
        completed: rows whose last known token the step computes.
    """

    plan: StepPlan
    place: I32
    chunks: list[Chunk] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Decodes:
    """Columns of the decoding rows: n rows, n tokens, n drawn tokens."""

    row: I32
    ids: I32
    source: I32
    positions: I32
    context_len: I32
    sample_position: I32
    slots: NDArray[np.int64]


class PlanBuilder:
    """Makes plans over the given rows and blocks."""

    def __init__(self, rows: Rows, blocks: BlockManager, max_rows: int) -> None:
        self._rows = rows
        self._blocks = blocks
        self._ramp = np.arange(max_rows + 1, dtype=np.int32)
        # As arrays: numpy takes longer to convert a Python number than to add it.
        self._one = np.array(1, np.int32)
        self._size = blocks.block_size_array
        self._wide_size = np.array(blocks.block_size, np.int64)

    def build(self, step: int, decodes: NDArray[np.int64], chunks: list[Chunk], filled: list[int]) -> Planned:
        """Return the plan that computes one token of each of `decodes` and the given chunks.

        Args:
            filled: rows seated since the last plan; their sampling parameters go with it.
        """
        columns = self._decodes(step, decodes)
        table_row, table_index, table_block = self._blocks.take_changes()
        n = len(decodes)
        ramp = self._ramp
        plan = StepPlan(
            step=step,
            row=columns.row,
            query_start=ramp[: n + 1],
            context_len=columns.context_len,
            token_ids=columns.ids,
            token_source=columns.source,
            positions=columns.positions,
            slot_mapping=columns.slots[None, :],
            table_group=np.zeros(len(table_row), np.int32),
            table_row=table_row,
            table_index=table_index,
            table_block=table_block,
            logit_token=ramp[:n],
            sample_row=columns.row,
            sample_position=columns.sample_position,
            prompt_target=_EMPTY,
            prompt_k=_EMPTY,
            updates=row_updates(self._rows, filled) if filled else None,
        )
        planned = Planned(plan, columns.context_len, chunks)
        if chunks:
            self._add_chunks(planned)
        rows = self._rows
        if rows.total_logprob_bytes:
            plan.want_logprobs = bool((rows.num_logprobs[plan.sample_row] != NO_LOGPROBS).any())
        return planned

    def _decodes(self, step: int, decodes: NDArray[np.int64]) -> _Decodes:
        rows, blocks = self._rows, self._blocks
        start = rows.computed[decodes]
        end = start + self._one
        carried = start >= rows.applied[decodes]
        if np.count_nonzero(carried) == len(decodes):
            ids, source = np.zeros(len(decodes), np.int32), rows.sample_index[decodes]
        else:
            ids = np.where(carried, 0, rows.tokens[decodes, start])
            source = np.where(carried, rows.sample_index[decodes], np.int32(HOST))
        index, offset = np.divmod(start, self._size)
        slots = blocks.table[decodes, index] * self._wide_size + offset
        rows.computed[decodes] = end
        rows.sample_index[decodes] = self._ramp[: len(decodes)]
        rows.planned_step[decodes] = step
        return _Decodes(decodes.astype(np.int32), ids, source, start, end, end - rows.prompt_len[decodes], slots)

    def _add_chunks(self, planned: Planned) -> None:
        """Put the chunks behind the decoding rows of a plan."""
        rows, plan = self._rows, planned.plan
        parts = [self._chunk(chunk, plan.step) for chunk in planned.chunks]
        counts = [chunk.count for chunk in planned.chunks]
        row = np.array([chunk.row for chunk in planned.chunks], np.int32)
        query_end = (plan.num_tokens + np.cumsum(counts)).astype(np.int32)
        end = rows.computed[row]
        complete = end == rows.prefill_end[row]
        draws = complete & (rows.limit[row] > end)
        drawn = row[draws]
        first_sampled = plan.num_sampled
        rows.sample_index[drawn] = np.arange(first_sampled, first_sampled + len(drawn), dtype=np.int32)
        scored = [self._scored(chunk, int(query_end[i]) - chunk.count) for i, chunk in enumerate(planned.chunks)]
        tokens, targets, ks = (np.concatenate([part[i] for part in scored]) for i in range(3))
        plan.logit_token = np.concatenate([plan.logit_token, query_end[draws] - 1, tokens])
        plan.prompt_target, plan.prompt_k = targets, ks
        plan.row = np.concatenate([plan.row, row])
        plan.query_start = np.concatenate([plan.query_start, query_end])
        plan.context_len = np.concatenate([plan.context_len, end])
        plan.token_ids = np.concatenate([plan.token_ids, *(part[0] for part in parts)])
        plan.token_source = np.concatenate([plan.token_source, np.full(sum(counts), HOST, np.int32)])
        plan.positions = np.concatenate([plan.positions, *(part[1] for part in parts)])
        plan.slot_mapping = np.concatenate([plan.slot_mapping[0], *(part[2] for part in parts)])[None, :]
        plan.sample_row = np.concatenate([plan.sample_row, drawn])
        plan.sample_position = np.concatenate([plan.sample_position, end[draws] - rows.prompt_len[drawn]])
        planned.place = np.concatenate([planned.place, end[draws]])
        planned.completed = row[complete].tolist()

    def _chunk(self, chunk: Chunk, step: int) -> tuple[I32, I32, NDArray[np.int64]]:
        """Ids, positions and slots of a chunk."""
        rows = self._rows
        start = int(rows.computed[chunk.row])
        positions = np.arange(start, start + chunk.count, dtype=np.int32)
        index, offset = np.divmod(positions, self._size)
        slots = self._blocks.table[chunk.row, index] * self._wide_size + offset
        rows.computed[chunk.row] = start + chunk.count
        rows.planned_step[chunk.row] = step
        return rows.tokens[chunk.row, start : start + chunk.count].copy(), positions, slots

    def _scored(self, chunk: Chunk, first_token: int) -> tuple[I32, I32, I32]:
        """Logit rows that score prompt tokens: that of the token at p for the prompt's id at p + 1, not sent before."""
        request = chunk.request
        if request.num_prompt_logprobs == NO_LOGPROBS:
            return _EMPTY, _EMPTY, _EMPTY
        end = int(self._rows.computed[chunk.row])
        start = end - chunk.count
        first = max(start, request.prompt_scored)
        last = min(end, request.prompt_len - 1)
        if first >= last:
            return _EMPTY, _EMPTY, _EMPTY
        request.prompt_scored = last
        tokens = np.arange(first, last, dtype=np.int32) + np.int32(first_token - start)
        targets = self._rows.tokens[chunk.row, first + 1 : last + 1].copy()
        return tokens, targets, np.full(last - first, request.num_prompt_logprobs, np.int32)


def row_updates(rows: Rows, filled: list[int]) -> RowUpdates:
    """Return the sampling parameters of freshly filled rows."""
    requests = [request for row in filled if (request := rows.request[row]) is not None]
    history = [request.known_ids if request.needs_history else _EMPTY for request in requests]
    start = np.zeros(len(filled) + 1, np.int32)
    np.cumsum([len(ids) for ids in history], out=start[1:])

    def column(name: str, dtype: type) -> NDArray[Any]:
        return np.array([getattr(request, name) for request in requests], dtype)

    return RowUpdates(
        row=np.array(filled, np.int32),
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
