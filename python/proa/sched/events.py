"""What one applied step tells the front end: the columns of `StepOutputs` that come from scheduling.

The engine turns a `StepEvents` into a wire message; names and meanings are those of wire.md section 4 and
metrics-and-bench.md section 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from proa.errors import FinishCode
from proa.sched.plan import LogprobColumns

NO_STOP_TOKEN = -1


class Stamp(IntEnum):
    """Kinds of lifecycle stamps."""

    QUEUED = 0
    SCHEDULED = 1
    PREEMPTED = 2


@dataclass(slots=True)
class PromptLogprobs:
    """Scored prompt tokens of one request in one step: positions start .. start + count - 1."""

    key: int
    start: int
    count: int
    k: int
    columns: LogprobColumns


@dataclass(slots=True)
class Prefill:
    """A prompt whose computation has completed: its tokens by source. Sent once in a request's life."""

    key: int
    computed: int
    cached: int


@dataclass(slots=True)
class Ended:
    """A request that ended without a token of this step: refused, expired, paused, nothing to draw."""

    key: int
    finish: FinishCode
    detail: str = ""


@dataclass(slots=True)
class DrawnRows:
    """Rows of requests that drew a token, or whose logits could not be drawn from; a key stands at most once.

    Attributes:
        key: u64[n].
        token: i32[n]; the drawn token; valid where `num_tokens` is 1.
        num_tokens: u16[n]; 1, or 0 where the logits were not finite.
        finish: u8[n]; finish code, 0 = goes on.
        stop_token: i32[n]; the id that ended the request, or -1.
        num_logprobs: i32[n]; k of the row, -1 = none.
        logprobs: of the rows, in row order; None when no row asked.
    """

    key: NDArray[np.uint64]
    token: NDArray[np.int32]
    num_tokens: NDArray[np.uint16]
    finish: NDArray[np.uint8]
    stop_token: NDArray[np.int32]
    num_logprobs: NDArray[np.int32]
    logprobs: LogprobColumns | None = None


@dataclass(slots=True)
class StepEvents:
    """Rows of the step and the sparse groups beside them.

    Attributes:
        drawn: rows with a token; None when nothing was drawn.
        ended: requests that end without one; their rows follow the drawn ones.
        details: line of reason by key, for drawn rows that ended with an error.
        prefills, prompt_logprobs, stamps, usage: the sparse groups; stamps are (key, kind, ns), usage is
            (key, recomputed tokens).
    """

    drawn: DrawnRows | None = None
    ended: list[Ended] = field(default_factory=list)
    details: dict[int, str] = field(default_factory=dict)
    prefills: list[Prefill] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    stamps: list[tuple[int, int, int]] = field(default_factory=list)
    usage: list[tuple[int, int]] = field(default_factory=list)
