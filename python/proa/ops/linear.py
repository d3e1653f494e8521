"""linear: a matrix product with the weight's rows as outputs.

Contract: (x [T, n], weight [m, n], bias [m] or None) -> x weight^T + bias, [T, m], in x's dtype. Sums are in f32 or
wider. A row of the result depends on that row of x alone, up to the rounding of sums.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Implementation


def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See the module's contract."""
    return functional.linear(x, weight, bias)


IMPLEMENTATIONS = (Implementation("torch", reference, "torch calls the device's matrix library"),)
