"""Faults of single rows of AddRequests (wire.md sections 3 and 5): they harm their own request only.

The front end has checked and filled everything; this is the engine's own look at the rules of the table. Limits of the
engine (context, blocks, logprobs) are the scheduler's matter and not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from proa.wire_columns import bounds
from proa.wire_front import LOGPROBS_VOCABULARY, AddRequests, Rare

_Bool = NDArray[np.bool_]


def request_faults(add: AddRequests, vocab_size: int) -> dict[int, str]:
    """The rows that break a rule, with the reason as a line for `details`; the others are to be admitted.

    A bad row is answered by finish REFUSED, except one with key 0, which has nobody to answer. Of a doubled key the
    first row is good.
    """
    faults: dict[int, str] = {}
    for bad, reason in _column_faults(add, vocab_size):
        for row in bad.nonzero()[0].tolist():
            faults.setdefault(row, reason)
    for rare in add.rare:
        reason_or_none = _rare_fault(rare, vocab_size)
        if reason_or_none is not None:
            faults.setdefault(rare.row, reason_or_none)
    return faults


def _column_faults(add: AddRequests, vocab_size: int) -> Iterator[tuple[_Bool, str]]:
    rows = add.columns
    yield rows.request_key == 0, "request_key is 0"
    yield _doubled(rows.request_key), "request_key is doubled"
    yield rows.prompt_len == 0, "the prompt is empty"
    yield _any_outside(rows.prompt_ids, rows.prompt_len, vocab_size), "a prompt id is not below vocab_size"
    yield _any_outside(rows.stop_ids, rows.stop_len, vocab_size), "a stop id is not below vocab_size"
    yield rows.num_emitted >= rows.prompt_len, "num_emitted is not below prompt_len"
    yield rows.min_tokens > rows.max_tokens, "min_tokens is above max_tokens"
    # Written so that NaN fails too.
    yield ~((rows.temperature >= 0) & (rows.temperature <= 2)), "temperature is not in 0..2"
    yield ~((rows.top_p >= 0) & (rows.top_p <= 1)), "top_p is not in 0..1"
    yield ~((rows.min_p >= 0) & (rows.min_p <= 1)), "min_p is not in 0..1"
    yield ~(np.abs(rows.presence_penalty) <= 2), "presence_penalty is not in -2..2"
    yield ~(np.abs(rows.frequency_penalty) <= 2), "frequency_penalty is not in -2..2"
    repetition = rows.repetition_penalty
    yield ~((repetition > 0) & (repetition <= 100)), "repetition_penalty is not above 0 and at most 100"
    yield rows.num_logprobs < LOGPROBS_VOCABULARY, "num_logprobs is below -2"
    yield rows.num_prompt_logprobs < LOGPROBS_VOCABULARY, "num_prompt_logprobs is below -2"


def _doubled(keys: NDArray[np.uint64]) -> _Bool:
    first = np.zeros(len(keys), np.bool_)
    first[np.unique(keys, return_index=True)[1]] = True
    return ~first


def _any_outside(ids: NDArray[np.uint32], lengths: NDArray[np.unsignedinteger], vocab_size: int) -> _Bool:
    """bool[m]: whether a row's part of `ids` holds an id that is not below `vocab_size`."""
    bad = np.zeros(len(lengths), np.bool_)
    at = (ids >= vocab_size).nonzero()[0]
    if len(at):
        bad[np.searchsorted(bounds(lengths), at, side="right") - 1] = True
    return bad


def _rare_fault(rare: Rare, vocab_size: int) -> str | None:
    bias = rare.logit_bias
    lists = {
        "logit_bias": [] if bias is None else [bias.ids],
        "allowed_ids": [] if rare.allowed_ids is None else [rare.allowed_ids],
        "logprob_ids": [] if rare.logprob_ids is None else [rare.logprob_ids],
        "bad_words": rare.bad_words or [],
    }
    for name, arrays in lists.items():
        if any(bool((ids >= vocab_size).any()) for ids in arrays):
            return f"an id of {name} is not below vocab_size"
    if bias is not None and not bool(np.isfinite(bias.values).all()):
        return "a value of logit_bias is not finite"
    if rare.allowed_ids is not None and len(rare.allowed_ids) == 0:
        return "allowed_ids is empty"
    if any(len(word) == 0 for word in rare.bad_words or []):
        return "a sequence of bad_words is empty"
    return None
