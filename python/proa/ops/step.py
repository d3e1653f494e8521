"""The run-time inputs of one step on a torch device: what `worker` fills and the ops read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from proa.ops.sample_inputs import SampleInputs, SampleOutputs


@dataclass(slots=True)
class PrefillRow:
    """A row with several new tokens.

    Attributes:
        start, end: its tokens in the step.
        slots: i64[context]; the slot of each position.
        context: tokens in its cache after the step.
    """

    start: int
    end: int
    slots: Tensor
    context: int


@dataclass(slots=True)
class DecodeGroup:
    """Rows with one new token each and contexts of similar length.

    Attributes:
        tokens: i64[B]; their tokens in the step.
        slots: i64[B, longest]; places behind a row's context repeat a slot of its own, so that no row reads another's.
        mask: bool[B, 1, 1, longest], True inside the context; None when all contexts are equally long.
    """

    tokens: Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(slots=True)
class Step:
    """One step.

    Attributes:
        token_ids: i64[T]. positions: i64[T]. slots: i64[T]. logit_token: i64[L].
        prefill_rows, decode_groups: the step's rows, each in exactly one of them.
        sample: sampling inputs. outputs: filled by the `sample` op.
        tables: what ops keep for the length of a step.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_token: Tensor
    prefill_rows: list[PrefillRow]
    decode_groups: list[DecodeGroup]
    sample: SampleInputs
    outputs: SampleOutputs | None = None
    tables: dict[object, tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class LayerCache:
    """K and V of one layer.

    Attributes:
        k, v: [num_slots, num_kv_heads * head_dim]; slots that were never written may hold anything.
    """

    k: torch.Tensor
    v: torch.Tensor
