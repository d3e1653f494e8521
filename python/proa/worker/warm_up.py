"""The first steps of a start: they touch every weight and measure how fast steps are.

Owns plans that mean nothing. What they leave in the cache is never read: a row's slots are written before they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from proa.sched.plan import HOST, LOGPROBS_NONE, PlanLimits, RowUpdates, StepPlan


def prompt_plan(num_tokens: int, limits: PlanLimits) -> StepPlan:
    """Return a plan that fills rows 0, 1, ... with `num_tokens` prompt tokens in all and draws greedily for each."""
    lengths = [limits.max_model_len] * (num_tokens // limits.max_model_len)
    if num_tokens % limits.max_model_len:
        lengths.append(num_tokens % limits.max_model_len)
    assert len(lengths) <= limits.max_num_seqs, "more tokens than the rows hold"
    num_rows, size = len(lengths), limits.block_size
    length = np.array(lengths, np.int32)
    start = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    num_blocks = -(-length // size)
    first_block = np.concatenate([[0], np.cumsum(num_blocks)[:-1]])
    row = np.arange(num_rows, dtype=np.int32)
    index = np.concatenate([np.arange(n, dtype=np.int32) for n in num_blocks])
    block = (np.arange(num_blocks.sum()) % limits.num_blocks).astype(np.int32)
    token_row = np.repeat(row, length)
    slots = (first_block[token_row] + positions // size) % limits.num_blocks * size + positions % size
    return StepPlan(
        step=0,
        row=row,
        query_start=start,
        context_len=length,
        token_ids=(np.arange(num_tokens) % limits.vocab_size).astype(np.int32),
        token_source=np.full(num_tokens, HOST, np.int32),
        positions=positions,
        slot_mapping=slots.astype(np.int64)[None],
        table_group=np.zeros(len(block), np.int32),
        table_row=np.repeat(row, num_blocks),
        table_index=index,
        table_block=block,
        logit_token=start[1:] - 1,
        sample_row=row,
        sample_position=np.zeros(num_rows, np.int32),
        prompt_target=np.zeros(0, np.int32),
        prompt_k=np.zeros(0, np.int32),
        updates=greedy_updates(row),
    )


def greedy_updates(row: np.ndarray) -> RowUpdates:
    """Return neutral, greedy sampling parameters for rows."""
    n = len(row)

    def floats(value: float) -> np.ndarray:
        return np.full(n, value, np.float32)

    def ints(value: int, count: int = n) -> np.ndarray:
        return np.full(count, value, np.int32)

    return RowUpdates(
        row=row,
        temperature=floats(0.0),
        top_p=floats(1.0),
        min_p=floats(0.0),
        top_k=ints(0),
        presence_penalty=floats(0.0),
        frequency_penalty=floats(0.0),
        repetition_penalty=floats(1.0),
        min_tokens=ints(0),
        stream_key=np.zeros(n, np.uint64),
        num_logprobs=ints(LOGPROBS_NONE),
        history_start=ints(0, n + 1),
        history_ids=ints(0, 0),
        history_prompt_len=ints(0),
        extras=[None] * n,
    )


def tokens_in(seconds: float, run: Callable[[StepPlan], object], limits: PlanLimits) -> int:
    """Return how many prompt tokens run in a time, by a short step's rate; the first run only warms up."""
    num_tokens = min(64, limits.max_model_len, limits.num_blocks * limits.block_size)
    plan = prompt_plan(num_tokens, limits)
    run(plan)
    begun = time.monotonic()
    run(plan)
    return int(num_tokens * seconds / (time.monotonic() - begun))
