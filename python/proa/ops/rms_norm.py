"""rms_norm: root-mean-square normalisation (Zhang and Sennrich 2019).

Contract: (x f32[T, n], weight [n], eps) -> x / sqrt(mean(x^2) + eps) * weight, [T, n], in the weight's dtype; all but
the product with the weight is in f32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Facts, Implementation


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the module's contract."""
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return weight * (x * inverse).to(weight.dtype)


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same with the f32 part in one kernel."""
    return functional.rms_norm(x, weight.shape, None, eps).to(weight.dtype) * weight


def _needs_cuda(facts: Facts) -> str | None:
    return None if facts.device == "cuda" else f"device is {facts.device}"


IMPLEMENTATIONS = (
    Implementation("fused", fused, "torch normalises in one kernel", _needs_cuda),
    Implementation("reference", reference, "plain torch"),
)
