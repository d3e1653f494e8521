"""What a model may say: the ops of a forward pass, over values that stay opaque to it.

Owns the words (`Parameter`, `Rope`, `AttentionLayer`, `Ops`). Knows no device: torch, the shape checker and a recorder
each implement `Ops` over a value type of their own. A forward pass reads no shape, branches on no value and uses no
operator; what changes from step to step (ids, positions, slots, tables, logit rows, sampling parameters) is an input
the implementation holds, and K and V are named by the layer's index.

Sizes: T tokens of the step, L logit rows (sampled ones first, then those that score a prompt token).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One weight of a model, by name; the bytes are found by whoever loads it.

    Attributes:
        name: as in safetensors files of the family.
        gguf_name: as in GGUF files.
        shape: sizes, slowest first; a matrix is [outputs, inputs].
        permuted_heads: heads whose rows a GGUF file of the llama family stores interleaved for its rope; 0 = none.
        fill: what generated weights hold: `normal`, `ones` or `zeros`.
    """

    name: str
    gguf_name: str
    shape: tuple[int, ...]
    permuted_heads: int = 0
    fill: str = "normal"


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """A rotary embedding: dimension i and i + dim / 2 of a head turn by position * inverse_frequency[i].

    Attributes:
        inverse_frequency: f32[dim / 2], scaling applied.
        scale: factor on cos and sin (YaRN's attention factor), else 1.
    """

    inverse_frequency: NDArray[np.float32]
    scale: float = 1.0

    @property
    def dim(self) -> int:
        """Dimensions of a head that turn; the others pass."""
        return 2 * len(self.inverse_frequency)


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What a layer's attention and cache need to know.

    Attributes:
        num_heads, num_kv_heads: query heads, and heads of K and V; the first is a multiple of the second.
        head_dim: width of one head.
        scale: factor on q k^T before the softmax.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float


class Ops(Protocol[V]):
    """The ops of a forward pass; each op's contract stands in its own file."""

    def embedding(self, table: Parameter) -> V:
        """Return the rows of `table` [vocab, n] for the step's token ids: [T, n]."""
        ...

    def rms_norm(self, x: V, weight: Parameter, eps: float) -> V:
        """Return x / rms(x) * weight along the last dimension."""
        ...

    def linear(self, x: V, weight: Parameter, bias: Parameter | None) -> V:
        """Return x weight^T (+ bias): [T, inputs] -> [T, outputs]."""
        ...

    def add(self, x: V, y: V) -> V:
        """Return x + y, of equal shapes."""
        ...

    def silu_mul(self, gate: V, up: V) -> V:
        """Return silu(gate) * up."""
        ...

    def rope(self, x: V, rope: Rope, num_heads: int) -> V:
        """Return x [T, num_heads * head_dim] with each head turned by its token's position."""
        ...

    def kv_insert(self, layer: int, k: V, v: V) -> None:
        """Write the step's K and V [T, num_kv_heads * head_dim] to their slots of the layer's cache."""
        ...

    def attention(self, layer: int, q: V) -> V:
        """Return causal attention of q [T, num_heads * head_dim] over the layer's cache, same shape."""
        ...

    def select_logit_rows(self, x: V) -> V:
        """Return the rows of x [T, n] whose logits are needed: [L, n]."""
        ...

    def sample(self, x: V, head: Parameter) -> None:
        """Draw from x [L, n] head^T, and score the prompt; the last op of a step."""
        ...


class Model(Protocol):
    """A model family, configured.

    Attributes:
        parameters: every weight it reads, by name.
        attention_layers: facts of each layer with a KV cache, by layer index.
        head: the matrix of the draw.
        vocab_size: columns of the logits.
    """

    parameters: dict[str, Parameter]
    attention_layers: list[AttentionLayer]
    head: Parameter
    vocab_size: int

    def forward(self, ops: Ops[V]) -> None:
        """Say one step."""
        ...
