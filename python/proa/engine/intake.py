"""Makes requests of `AddRequests`, checking every limit again: the front end is not trusted with the loop.

A bad row harms its own request only: it is answered by finish REFUSED with a line of reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proa.errors import FinishCode
from proa.request import KNOWN_FLAGS, Request
from proa.sched.plan import PlanLimits, RowExtras
from proa.wire import (
    FLAG_SKIP_PREFIX_CACHE,
    LOGPROBS_NONE,
    LOGPROBS_VOCABULARY,
    NO_DEADLINE,
    AddRequests,
    Rare,
    request_faults,
)

#: Largest count the sampler's columns hold; no context is that long.
_MAX_I32 = 2**31 - 1
#: Entries of `Rare` whose feature this release does not have.
_NOT_BUILT = (
    "lora",
    "grammar",
    "logprob_ids",
    "beam",
    "repetition",
    "thinking_budget",
    "pooling",
    "media",
    "max_load_tokens",
)


@dataclass(slots=True, frozen=True)
class IntakeLimits:
    """What a request may ask for, beyond `PlanLimits`.

    Attributes:
        plan: limits of shape.
        max_logprobs: largest k; -1 = the vocabulary.
        priorities: whether the policy knows priorities; else only 0 is legal.
    """

    plan: PlanLimits
    max_logprobs: int
    priorities: bool


@dataclass(slots=True, frozen=True)
class RowLists:
    """The ragged columns of one row: prompt ids and stop ids, i32."""

    ids: np.ndarray
    stop: np.ndarray


@dataclass(slots=True, frozen=True)
class Refusal:
    """A row that does not become a request, and the row that answers it."""

    key: int
    finish: FinishCode
    reason: str


def to_requests(add: AddRequests, limits: IntakeLimits, now_ns: int) -> tuple[list[Request], list[Refusal]]:
    """Return the good requests, in order, and what answers the others; a key of 0 has nobody to answer."""
    faults = request_faults(add, limits.plan.vocab_size)
    rare_of = {rare.row: rare for rare in add.rare}
    prompts, stops = add.prompt_bounds(), add.stop_bounds()
    requests: list[Request] = []
    refused: list[Refusal] = []
    for row in range(add.num_rows):
        rare = rare_of.get(row)
        reason = faults.get(row) or _limit_fault(add, row, rare, limits)
        key = int(add.columns.request_key[row])
        if reason is not None:
            refused.append(Refusal(key, FinishCode.REFUSED, reason))
            continue
        try:
            lists = RowLists(
                ids=add.columns.prompt_ids[prompts[row] : prompts[row + 1]].astype(np.int32),
                stop=add.columns.stop_ids[stops[row] : stops[row + 1]].astype(np.int32),
            )
            requests.append(_request(add, row, lists, rare, now_ns))
        except MemoryError:
            refused.append(Refusal(key, FinishCode.OUT_OF_MEMORY, "no memory for the request's token ids"))
    return requests, [refusal for refusal in refused if refusal.key]


def _limit_fault(add: AddRequests, row: int, rare: Rare | None, limits: IntakeLimits) -> str | None:
    c = add.columns
    if int(c.prompt_len[row]) > limits.plan.max_model_len:
        return f"prompt_len is {c.prompt_len[row]}, the context is {limits.plan.max_model_len}"
    whole = limits.max_logprobs < 0
    most = limits.plan.vocab_size if whole else min(limits.max_logprobs, limits.plan.vocab_size)
    for name in ("num_logprobs", "num_prompt_logprobs"):
        k = int(getattr(c, name)[row])
        if k > most or (k == LOGPROBS_VOCABULARY and not whole):
            return f"{name} is {k}, the largest is {most}"
    unknown = int(c.flags[row]) & ~KNOWN_FLAGS
    if unknown:
        return f"flags {unknown} are not supported by this engine"
    if c.priority[row] != 0 and not limits.priorities:
        return "priority is not 0 under the policy fcfs"
    if rare is not None:
        for name in _NOT_BUILT:
            if getattr(rare, name) is not None:
                return f"{name} is not supported by this engine"
    return None


def _request(add: AddRequests, row: int, lists: RowLists, rare: Rare | None, now_ns: int) -> Request:
    c = add.columns
    ids, stop = lists.ids, lists.stop
    deadline_ms = int(c.deadline_ms[row])
    flags = int(c.flags[row])
    scored = int(c.num_prompt_logprobs[row])
    return Request(
        key=int(c.request_key[row]),
        known_ids=ids,
        num_emitted=int(c.num_emitted[row]),
        max_tokens=int(c.max_tokens[row]),
        min_tokens=min(int(c.min_tokens[row]), _MAX_I32),
        temperature=float(c.temperature[row]),
        top_p=float(c.top_p[row]),
        min_p=float(c.min_p[row]),
        top_k=min(int(c.top_k[row]), _MAX_I32),
        presence_penalty=float(c.presence_penalty[row]),
        frequency_penalty=float(c.frequency_penalty[row]),
        repetition_penalty=float(c.repetition_penalty[row]),
        stream_key=int(c.stream_key[row]),
        num_logprobs=int(c.num_logprobs[row]),
        num_prompt_logprobs=scored,
        stop_ids=stop,
        priority=int(c.priority[row]),
        deadline_ns=None if deadline_ms == NO_DEADLINE else now_ns + deadline_ms * 1_000_000,
        flags=flags,
        salt=(rare.salt or b"") if rare is not None else b"",
        extras=_extras(stop, int(c.min_tokens[row]), rare),
        arrival=0,
        queued_ns=now_ns,
        reads_cache=not flags & FLAG_SKIP_PREFIX_CACHE and scored == LOGPROBS_NONE,
    )


def _extras(stop: np.ndarray, min_tokens: int, rare: Rare | None) -> RowExtras | None:
    """What the sampler must know beyond numbers; None for almost every request."""
    bias = rare.logit_bias if rare is not None else None
    allowed = rare.allowed_ids if rare is not None else None
    bad_words = rare.bad_words if rare is not None else None
    masks_stop = min_tokens > 0 and len(stop) > 0
    if bias is None and allowed is None and not bad_words and not masks_stop:
        return None
    empty = np.zeros(0, np.int32)
    return RowExtras(
        stop_ids=stop if masks_stop else empty,
        bias_ids=empty if bias is None else bias.ids.astype(np.int32),
        bias_values=np.zeros(0, np.float32) if bias is None else bias.values.astype(np.float32),
        allowed_ids=None if allowed is None else allowed.astype(np.int32),
        bad_words=tuple(word.astype(np.int32) for word in bad_words or ()),
    )
