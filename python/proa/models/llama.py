"""The Llama family (Touvron et al. 2023; Llama 3; SmolLM2): pre-norm blocks, rotary attention with shared heads of K
and V, gated feed-forward layers. Knows no device, no file and no tensor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proa.config.model_config import ModelConfig
from proa.layers.basic import Embedding, Linear, RmsNorm
from proa.layers.declaration import Declaration, Name
from proa.layers.mlp import GatedMlp
from proa.layers.rotary import make_rope
from proa.layers.self_attention import SelfAttention
from proa.ops.interface import AttentionLayer, Ops, Parameter, Rope, V


class Block:
    """x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, declaration: Declaration, config: ModelConfig, index: int) -> None:
        name = Name(f"model.layers.{index}", f"blk.{index}")
        facts = AttentionLayer(config.num_heads, config.num_kv_heads, config.head_dim, config.head_dim**-0.5)
        hidden, eps = config.hidden_size, config.rms_norm_eps

        def norm(word: str, gguf: str) -> RmsNorm:
            return RmsNorm(declaration, Name(f"{name.safetensors}.{word}", f"{name.gguf}.{gguf}"), hidden, eps)

        self.attention_norm = norm("input_layernorm", "attn_norm")
        self.attention = SelfAttention(declaration, name, index, hidden, facts)
        self.mlp_norm = norm("post_attention_layernorm", "ffn_norm")
        self.mlp = GatedMlp(declaration, name, hidden, config.ffn_size)

    def __call__(self, ops: Ops[V], x: V, rope: Rope) -> V:
        """Return the residual stream behind the block, [T, hidden]."""
        x = ops.add(x, self.attention(ops, self.attention_norm(ops, x), rope))
        return ops.add(x, self.mlp(ops, self.mlp_norm(ops, x)))


class Llama:
    """A Llama model; see `proa.ops.interface.Model`.

    Args:
        config: its shape.
        has_bias: modules (by safetensors name) whose bias the files hold.
        rope_factors: f32[rope_dim / 2]; divisors of the rope's frequencies stored in the file, or None.
    """

    def __init__(
        self,
        config: ModelConfig,
        has_bias: frozenset[str] = frozenset(),
        rope_factors: NDArray[np.float32] | None = None,
    ) -> None:
        declaration = Declaration(has_bias)
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = Embedding(declaration, Name("model.embed_tokens", "token_embd"), shape)
        self.rope = make_rope(config, rope_factors)
        self.blocks = [Block(declaration, config, index) for index in range(config.num_layers)]
        self.norm = RmsNorm(declaration, Name("model.norm", "output_norm"), config.hidden_size, config.rms_norm_eps)
        self.head: Parameter = self.embedding.table
        if not config.tie_word_embeddings:
            self.head = Linear(declaration, Name("lm_head", "output"), shape).weight
        self.parameters = declaration.parameters
        self.attention_layers = [block.attention.facts for block in self.blocks]
        self.vocab_size = config.vocab_size

    def forward(self, ops: Ops[V]) -> None:
        """Say one step: from token ids to the draw."""
        x = self.embedding(ops)
        for block in self.blocks:
            x = block(ops, x, self.rope)
        x = ops.select_logit_rows(x)
        ops.sample(self.norm(ops, x), self.head)
