"""rope: rotary position embedding (Su et al. 2021), halves of a head turned against each other.

Contract: (x [T, H * D], cos f32[T, d / 2], sin f32[T, d / 2], H) -> [T, H * D] in x's dtype. Of each head, dimension i
and i + d / 2 turn; dimensions from d on pass. The products are in f32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proa.ops.registry import Implementation


def tables(inverse_frequency: Tensor, scale: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin, f32[T, d / 2], of i64 positions [T] under inverse frequencies f32[d / 2]."""
    angle = positions.to(torch.float32)[:, None] * inverse_frequency
    return angle.cos() * scale, angle.sin() * scale


def reference(x: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
    """See the module's contract."""
    half = cos.shape[-1]
    heads = x.view(x.shape[0], num_heads, -1)
    first, second = heads[..., :half].to(torch.float32), heads[..., half : 2 * half].to(torch.float32)
    c, s = cos[:, None], sin[:, None]
    turned = [(first * c - second * s).to(x.dtype), (second * c + first * s).to(x.dtype)]
    return torch.cat([*turned, heads[..., 2 * half :]], -1).view(x.shape)


IMPLEMENTATIONS = (Implementation("torch", reference, "plain torch"),)
