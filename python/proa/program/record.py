"""The recorder: turns a model's forward pass into a flat list of ops, once, at load.

A recorded value is a number; the list says which op makes it and which read it. Nothing is computed; no device is
known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NewType

from proa.ops.interface import Model, Parameter, Rope

Value = NewType("Value", int)


@dataclass(slots=True, frozen=True)
class Node:
    """One op of a program.

    Attributes:
        op: the op's name in `Ops`, or a fused one (see `program/fuse.py`).
        inputs: values it reads.
        output: the value it makes; None for an op that only has an effect.
        weights: parameters it reads; of a fused linear op those whose outputs stand one after another.
        biases: one entry a weight of a linear op; None = no bias.
        layer: of `kv_insert`, `attention` and their fusion, else -1.
        rope: of `rope` and its fusion.
        eps: of `rms_norm`.
    """

    op: str
    inputs: tuple[Value, ...]
    output: Value | None = None
    weights: tuple[Parameter, ...] = ()
    biases: tuple[Parameter | None, ...] = ()
    layer: int = -1
    rope: Rope | None = None
    eps: float = 0.0


@dataclass(slots=True)
class Recorder:
    """`Ops` that write down what they are asked.

    Attributes:
        nodes: the ops so far, in program order.
        width: numbers a row of each value.
    """

    nodes: list[Node] = field(default_factory=list)
    width: dict[Value, int] = field(default_factory=dict)

    def _make(self, width: int, op: str, *inputs: Value, **facts: Any) -> Value:
        value = Value(len(self.width))
        self.width[value] = width
        self.nodes.append(Node(op, inputs, value, **facts))
        return value

    def embedding(self, table: Parameter) -> Value:
        """See `Ops`."""
        return self._make(table.shape[1], "embedding", weights=(table,))

    def rms_norm(self, x: Value, weight: Parameter, eps: float) -> Value:
        """See `Ops`."""
        return self._make(self.width[x], "rms_norm", x, weights=(weight,), eps=eps)

    def linear(self, x: Value, weight: Parameter, bias: Parameter | None) -> Value:
        """See `Ops`."""
        return self._make(weight.shape[0], "linear", x, weights=(weight,), biases=(bias,))

    def add(self, x: Value, y: Value) -> Value:
        """See `Ops`."""
        return self._make(self.width[x], "add", x, y)

    def silu_mul(self, gate: Value, up: Value) -> Value:
        """See `Ops`."""
        return self._make(self.width[gate], "silu_mul", gate, up)

    def rope(self, x: Value, rope: Rope, num_heads: int) -> Value:
        """See `Ops`."""
        return self._make(self.width[x], "rope", x, rope=rope)

    def kv_insert(self, layer: int, k: Value, v: Value) -> None:
        """See `Ops`."""
        self.nodes.append(Node("kv_insert", (k, v), layer=layer))

    def attention(self, layer: int, q: Value) -> Value:
        """See `Ops`."""
        return self._make(self.width[q], "attention", q, layer=layer)

    def select_logit_rows(self, x: Value) -> Value:
        """See `Ops`."""
        return self._make(self.width[x], "select_logit_rows", x)

    def sample(self, x: Value, head: Parameter) -> None:
        """See `Ops`."""
        self.nodes.append(Node("sample", (x,), weights=(head,)))


def record(model: Model) -> Recorder:
    """Return the program of a model's step."""
    recorder = Recorder()
    model.forward(recorder)
    return recorder
