"""The gated feed-forward layer (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

from proa.layers.basic import Linear
from proa.layers.declaration import Declaration, Name
from proa.ops.interface import Ops, V


class GatedMlp:
    """down(silu(gate x) * up x)."""

    def __init__(self, declaration: Declaration, block: Name, hidden_size: int, ffn_size: int) -> None:
        def part(word: str, gguf: str, shape: tuple[int, int]) -> Linear:
            return Linear(declaration, Name(f"{block.safetensors}.mlp.{word}_proj", f"{block.gguf}.ffn_{gguf}"), shape)

        self.gate = part("gate", "gate", (ffn_size, hidden_size))
        self.up = part("up", "up", (ffn_size, hidden_size))
        self.down = part("down", "down", (hidden_size, ffn_size))

    def __call__(self, ops: Ops[V], x: V) -> V:
        """Return the shape of x."""
        return self.down(ops, ops.silu_mul(self.gate(ops, x), self.up(ops, x)))
