"""The shape checker: runs a model's forward pass on values that are nothing but shapes with named sizes.

It proves, without a device and without numbers, that every op gets operands that fit, that every declared parameter is
used, that K and V of a layer are written once and before they are read, and that the step ends with its one draw.
"""

from __future__ import annotations

from typing import NoReturn

from proa.ops.interface import AttentionLayer, Model, Parameter, Rope

#: Names of the sizes that change from step to step.
TOKENS = "T"
LOGIT_ROWS = "L"


class ShapeError(ValueError):
    """An op was given operands that do not fit; the message names the op and the shapes."""


class Shaped:
    """A value of which only the shape is known; it defines no operator, has no truth and cannot be read."""

    __slots__ = ("dims",)

    def __init__(self, rows: str, width: int) -> None:
        self.dims = (rows, width)

    def _refuse(self, *unused: object) -> NoReturn:
        raise ShapeError("a forward pass looked into a value")

    __bool__ = __len__ = __iter__ = __getitem__ = __hash__ = __eq__ = _refuse


class ShapeOps:
    """`Ops` over shapes.

    Attributes:
        used: names of the parameters read so far.
        said: names of the ops in the order they were called.
    """

    def __init__(self, layers: list[AttentionLayer]) -> None:
        self._layers = layers
        self._written: set[int] = set()
        self._read: set[int] = set()
        self.used: set[str] = set()
        self.said: list[str] = []

    def _say(self, op: str, holds: bool, *operands: object) -> None:
        self.said.append(op)
        if "sample" in self.said[:-1]:
            raise ShapeError(f"{op} behind the draw")
        if not holds:
            shown = [x.dims if isinstance(x, Shaped) else x for x in operands]
            raise ShapeError(f"{op}: operands do not fit: {shown}")

    def _matrix(self, parameter: Parameter) -> tuple[int, int]:
        self.used.add(parameter.name)
        if len(parameter.shape) != 2:
            raise ShapeError(f"{parameter.name} is no matrix: {parameter.shape}")
        return parameter.shape[0], parameter.shape[1]

    def _vector(self, parameter: Parameter) -> int:
        self.used.add(parameter.name)
        if len(parameter.shape) != 1:
            raise ShapeError(f"{parameter.name} is no vector: {parameter.shape}")
        return parameter.shape[0]

    def embedding(self, table: Parameter) -> Shaped:
        """See `Ops`."""
        _, width = self._matrix(table)
        self._say("embedding", True)
        return Shaped(TOKENS, width)

    def rms_norm(self, x: Shaped, weight: Parameter, eps: float) -> Shaped:
        """See `Ops`."""
        self._say("rms_norm", self._vector(weight) == x.dims[1] and eps > 0, x, weight, eps)
        return Shaped(*x.dims)

    def linear(self, x: Shaped, weight: Parameter, bias: Parameter | None) -> Shaped:
        """See `Ops`."""
        outputs, inputs = self._matrix(weight)
        fits = inputs == x.dims[1] and (bias is None or self._vector(bias) == outputs)
        self._say("linear", fits, x, weight, bias)
        return Shaped(x.dims[0], outputs)

    def add(self, x: Shaped, y: Shaped) -> Shaped:
        """See `Ops`."""
        self._say("add", x.dims == y.dims, x, y)
        return Shaped(*x.dims)

    def silu_mul(self, gate: Shaped, up: Shaped) -> Shaped:
        """See `Ops`."""
        self._say("silu_mul", gate.dims == up.dims, gate, up)
        return Shaped(*gate.dims)

    def rope(self, x: Shaped, rope: Rope, num_heads: int) -> Shaped:
        """See `Ops`."""
        rows, width = x.dims
        fits = rows == TOKENS and width % num_heads == 0 and 0 < rope.dim <= width // num_heads
        self._say("rope", fits, x, rope.dim, num_heads)
        return Shaped(rows, width)

    def kv_insert(self, layer: int, k: Shaped, v: Shaped) -> None:
        """See `Ops`."""
        facts = self._layers[layer]
        wanted = (TOKENS, facts.num_kv_heads * facts.head_dim)
        fits = k.dims == wanted and v.dims == wanted and layer not in self._written
        self._say("kv_insert", fits, layer, k, v)
        self._written.add(layer)

    def attention(self, layer: int, q: Shaped) -> Shaped:
        """See `Ops`."""
        facts = self._layers[layer]
        fits = q.dims == (TOKENS, facts.num_heads * facts.head_dim) and layer in self._written
        self._say("attention", fits, layer, q)
        self._read.add(layer)
        return Shaped(*q.dims)

    def select_logit_rows(self, x: Shaped) -> Shaped:
        """See `Ops`."""
        self._say("select_logit_rows", x.dims[0] == TOKENS, x)
        return Shaped(LOGIT_ROWS, x.dims[1])

    def sample(self, x: Shaped, head: Parameter) -> None:
        """See `Ops`."""
        _, inputs = self._matrix(head)
        self._say("sample", x.dims == (LOGIT_ROWS, inputs), x, head)

    def finish(self, model: Model) -> None:
        """Raise `ShapeError` unless the pass was whole: one draw at its end, nothing left unused."""
        if self.said[-1:] != ["sample"]:
            raise ShapeError("the forward pass ends without a draw")
        unused = sorted(set(model.parameters) - self.used)
        if unused:
            raise ShapeError(f"parameters are declared and not used: {unused[:3]}")
        unread = set(range(len(self._layers))) - self._read
        if unread:
            raise ShapeError(f"layers have a cache and are not read: {sorted(unread)}")
        foreign = sorted(self.used - set(model.parameters))
        if foreign:
            raise ShapeError(f"parameters are used and not declared: {foreign[:3]}")


def check_shapes(model: Model) -> list[str]:
    """Run the model's forward pass on shapes and return the ops it said, in order. Raises `ShapeError`."""
    ops = ShapeOps(model.attention_layers)
    model.forward(ops)
    ops.finish(model)
    return ops.said
