"""A request as the engine knows it: token ids and numbers, no text.

Made from a row of `AddRequests` (wire.md section 3); the scheduler owns it until its terminal event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from proa.sched.plan import RowExtras

#: `Request.num_logprobs` and `num_prompt_logprobs`: none.
NO_LOGPROBS = -1
#: Bits of `Request.flags` (wire.md section 3) that release 0 knows.
FLAG_NO_PREFIX_READ = 4
FLAG_PROGRESS = 32
KNOWN_FLAGS = FLAG_NO_PREFIX_READ | FLAG_PROGRESS


@dataclass(slots=True, eq=False)
class Request:
    """What was asked, unchanged for the request's life, and the few things that outlive a preemption.

    Attributes:
        key: the front end's number for it.
        known_ids: i32[n]; prompt, then the last `num_emitted` output tokens a previous engine gave.
        num_emitted: how many of `known_ids` are output.
        max_tokens, min_tokens: output tokens in all, emitted ones included.
        stop_ids: i32[s]; ids that end the request.
        deadline_ns: engine monotonic ns, None = none.
        salt: cache salt, part of every block hash.
        arrival: order of arrival; ties of `priority` go to the earlier one.
        block_hashes: hashes of the full blocks of known ids, as far as they were needed.
        published: those of them that this request computed and made findable.
        waits_for: hash of the block that another request is computing and this one waits for.
        num_lost: tokens that were computed when it was preempted last.
        num_recomputed: tokens computed again after preemptions.
        scheduled_before, prefill_reported: whether the first-scheduled stamp and the prefill row have been made.
        prompt_scored: prompt tokens whose successors' logprobs have been planned.
        prompt_sent: those whose result has been applied; they are not sent again after a preemption.
        reads_cache: whether the prefix cache may be read.
    """

    key: int
    known_ids: NDArray[np.int32]
    num_emitted: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    min_p: float
    top_k: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    stream_key: int
    num_logprobs: int
    num_prompt_logprobs: int
    stop_ids: NDArray[np.int32]
    priority: int
    deadline_ns: int | None
    flags: int
    salt: bytes
    extras: RowExtras | None
    arrival: int
    queued_ns: int
    block_hashes: list[bytes] = field(default_factory=list)
    published: list[bytes] = field(default_factory=list)
    waits_for: bytes | None = None
    num_lost: int = 0
    num_recomputed: int = 0
    scheduled_before: bool = False
    prompt_scored: int = 0
    prompt_sent: int = 0
    reads_cache: bool = True
    prefill_reported: bool = False

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt proper."""
        return len(self.known_ids) - self.num_emitted

    @property
    def needs_history(self) -> bool:
        """Whether the sampler must know the request's ids."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or (self.extras is not None and bool(self.extras.bad_words))
        )
