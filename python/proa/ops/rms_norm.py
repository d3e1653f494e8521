"""rms_norm: root-mean-square normalisation (Zhang and Sennrich 2019).

Contract: (x [T, n], weight [n], eps) -> x / sqrt(mean(x^2) + eps) * weight, [T, n], in x's dtype; the mean and the
quotient are taken in f32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Facts, Implementation


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the module's contract."""
    wide = x.to(torch.float32)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * inverse).to(x.dtype)


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in one kernel."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def _needs_cuda(facts: Facts) -> str | None:
    return None if facts.device == "cuda" else f"device is {facts.device}"


IMPLEMENTATIONS = (
    Implementation("fused", fused, "one torch kernel", _needs_cuda),
    Implementation("reference", reference, "plain torch"),
)
