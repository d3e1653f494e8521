"""Embedding, linear and norm: one parameter or two, one op."""

from __future__ import annotations

from proa.layers.declaration import Declaration, Name
from proa.ops.interface import Ops, V


class Embedding:
    """Looks the step's token ids up in a table."""

    def __init__(self, declaration: Declaration, name: Name, shape: tuple[int, int]) -> None:
        self.table = declaration.weight(name, shape)

    def __call__(self, ops: Ops[V]) -> V:
        """Return [T, n]."""
        return ops.embedding(self.table)


class Linear:
    """x W^T (+ b).

    `shape` is [outputs, inputs]; `permuted_heads` as in `Parameter`. The bias is there when the declaration says so.
    """

    def __init__(self, declaration: Declaration, name: Name, shape: tuple[int, int], permuted_heads: int = 0) -> None:
        self.weight = declaration.weight(name, shape, permuted_heads)
        has_bias = name.safetensors in declaration.has_bias
        self.bias = declaration.bias(name, shape[0], permuted_heads) if has_bias else None

    def __call__(self, ops: Ops[V], x: V) -> V:
        """Return [T, outputs]."""
        return ops.linear(x, self.weight, self.bias)


class RmsNorm:
    """Root-mean-square norm with a weight."""

    def __init__(self, declaration: Declaration, name: Name, size: int, eps: float) -> None:
        self.weight = declaration.weight(name, (size,), fill="ones")
        self.eps = eps

    def __call__(self, ops: Ops[V], x: V) -> V:
        """Return the shape of x."""
        return ops.rms_norm(x, self.weight, self.eps)
