"""logits: the head's product, with f32 results.

Contract: (x [L, n], head [vocab, n]) -> f32[L, vocab]. Rounding logits to 16 bits would make ties: near 12, bf16 has
steps of 0.06.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Facts, Implementation


def reference(x: Tensor, head: Tensor) -> Tensor:
    """In f32; a CPU keeps the head in it, so nothing is converted but x."""
    return functional.linear(x.to(torch.float32), head.to(torch.float32))


def wide_sum(x: Tensor, head: Tensor) -> Tensor:
    """16-bit operands, f32 result."""
    product: Tensor = torch.mm(x, head.t(), out_dtype=torch.float32)
    return product


def _needs_narrow_cuda(facts: Facts) -> str | None:
    if facts.device != "cuda":
        return f"device is {facts.device}"
    return None if facts.dtype != "float32" else "dtype is float32"


IMPLEMENTATIONS = (
    Implementation("wide_sum", wide_sum, "the matrix library sums in f32 and gives it back", _needs_narrow_cuda),
    Implementation("reference", reference, "plain torch in f32"),
)
