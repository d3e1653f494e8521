"""Multi-head self-attention with a rotary embedding and shared heads of K and V."""

from __future__ import annotations

from proa.layers.basic import Linear
from proa.layers.declaration import Declaration, Name
from proa.ops.interface import AttentionLayer, Ops, Rope, V


class SelfAttention:
    """o(attention(rope(q x), rope(k x), v x)) of one layer."""

    def __init__(
        self, declaration: Declaration, block: Name, index: int, hidden_size: int, facts: AttentionLayer
    ) -> None:
        self.index = index
        self.facts = facts
        q_size, kv_size = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim

        def part(word: str, gguf: str, shape: tuple[int, int], permuted_heads: int) -> Linear:
            name = Name(f"{block.safetensors}.self_attn.{word}_proj", f"{block.gguf}.attn_{gguf}")
            return Linear(declaration, name, shape, permuted_heads)

        self.q = part("q", "q", (q_size, hidden_size), facts.num_heads)
        self.k = part("k", "k", (kv_size, hidden_size), facts.num_kv_heads)
        self.v = part("v", "v", (kv_size, hidden_size), 0)
        self.o = part("o", "output", (hidden_size, q_size), 0)

    def __call__(self, ops: Ops[V], x: V, rope: Rope) -> V:
        """Return the shape of x."""
        q = ops.rope(self.q(ops, x), rope, self.facts.num_heads)
        k = ops.rope(self.k(ops, x), rope, self.facts.num_kv_heads)
        ops.kv_insert(self.index, k, self.v(ops, x))
        return self.o(ops, ops.attention(self.index, q))
