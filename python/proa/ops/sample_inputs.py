"""What the `sample` op is told about a step's logit rows, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(slots=True)
class BadWords:
    """Sequences whose last token a row must not draw where it would complete one.

    Attributes:
        prefix: i64[W, N]; what must stand before it, right-aligned, ANY in front.
        last: i64[W]; the token masked.
        tail: i64[N]; the row's last N ids, right-aligned, -1 in front.
    """

    prefix: Tensor
    last: Tensor
    tail: Tensor


#: Place of `BadWords.prefix` that any id, or none, may fill.
ANY = -2


@dataclass(slots=True)
class RowEdits:
    """What changes the logits of one sampled row before penalties; None = nothing.

    Attributes:
        index: the logit row.
        allowed: i64[a]; every other id is masked.
        masked: i64[m]; stop ids, while the output is shorter than min_tokens.
        bias_ids, bias_values: i64[b], f32[b].
    """

    index: int
    allowed: Tensor | None = None
    bad_words: BadWords | None = None
    masked: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None


@dataclass(slots=True)
class Penalties:
    """Penalised rows of a step: P of them.

    Attributes:
        index: i64[P]; logit rows.
        counts: i32[P, vocab]; how often each id stands in the output.
        in_prompt: bool[P, vocab].
        presence, frequency, repetition: f32[P, 1].
    """

    index: Tensor
    counts: Tensor
    in_prompt: Tensor
    presence: Tensor
    frequency: Tensor
    repetition: Tensor


@dataclass(slots=True)
class Draws:
    """The sampled rows with a temperature: D of them; host columns decide which filters run.

    Attributes:
        index: i64[D]; logit rows.
        temperature, top_p, min_p: f32[D, 1]. top_k: i64[D, 1], the vocabulary where it is off.
        key_low, key_high, position: i64[D, 1]; the Philox key and counter.
        host_top_k, host_top_p, host_min_p: the same on the host; top_k 0 = off.
    """

    index: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    key_low: Tensor
    key_high: Tensor
    position: Tensor
    host_top_k: NDArray[np.int32]
    host_top_p: NDArray[np.float32]
    host_min_p: NDArray[np.float32]


@dataclass(slots=True)
class SampleInputs:
    """A step's logit rows: S sampled ones, then Q that score a prompt token.

    Attributes:
        num_sampled: S.
        num_reachable: ids below it can be drawn and ranked.
        edits: rows with masks or biases.
        penalties: None = no row has one.
        draws: None = every row is greedy.
        num_logprobs: i32[S] on the host; entries a row wants (-1 none); None = no row asked.
        prompt_target: i64[Q].
        prompt_k: i32[Q] on the host.
    """

    num_sampled: int
    num_reachable: int
    prompt_target: Tensor
    prompt_k: NDArray[np.int32]
    edits: list[RowEdits] = field(default_factory=list)
    penalties: Penalties | None = None
    draws: Draws | None = None
    num_logprobs: NDArray[np.int32] | None = None


@dataclass(slots=True)
class Logprobs:
    """value f32[N], rank i32[N], top_ids i32[N, K], top_values f32[N, K]; see `LogprobColumns`."""

    value: Tensor
    rank: Tensor
    top_ids: Tensor
    top_values: Tensor


@dataclass(slots=True)
class SampleOutputs:
    """sampled_ids i32[S] (any id where the row is bad), nonfinite u8[S + Q], and logprobs where asked."""

    sampled_ids: Tensor
    nonfinite: Tensor
    logprobs: Logprobs | None
    prompt_logprobs: Logprobs | None
