"""add and silu_mul: the elementwise ops.

Contracts: add(x, y) -> x + y in the wider dtype (the residual stream is f32); silu_mul(gate, up) -> silu(gate) * up in
theirs. Shapes [T, n].
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Implementation


def add(x: Tensor, y: Tensor) -> Tensor:
    """See the module's contract."""
    return x + y


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """See the module's contract."""
    return functional.silu(gate) * up


ADD = (Implementation("torch", add, "one torch kernel"),)
SILU_MUL = (Implementation("torch", silu_mul, "two torch kernels"),)
