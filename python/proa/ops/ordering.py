"""Ids ordered by logit: larger first, equal ones by lower id.

torch leaves the order of equal values open; keys of a logit and its id in one integer do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_ID = 0x7FFFFFFF


def top_ids(z: Tensor, k: int) -> Tensor:
    """Return the ids of the k best logits of each row: i64[N, k] of f32[N, vocab]; NaN stands first."""
    bits = (z + 0.0).view(torch.int32)  # -0 becomes +0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    falling = _LARGEST_ID - torch.arange(z.shape[-1], device=z.device)
    keys = (ordered << 32) + falling
    return _LARGEST_ID - (keys.topk(k, -1).values & _LARGEST_ID)
