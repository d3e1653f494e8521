"""`Ops` on torch tensors, at once: what a model says is run as it is said.

Owns the weights and the cache by name, and the step being run. Chooses nothing: it is given the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from proa.ops import (
    attention,
    draw,
    elementwise,
    embedding,
    kv_insert,
    linear,
    logits,
    logprobs,
    rms_norm,
    rope,
    sample,
)
from proa.ops.interface import AttentionLayer, Parameter, Rope
from proa.ops.registry import Implementation
from proa.ops.step import LayerCache, Step

#: Every op with its implementations, the preferred first.
TABLE: dict[str, tuple[Implementation, ...]] = {
    "embedding": embedding.IMPLEMENTATIONS,
    "rms_norm": rms_norm.IMPLEMENTATIONS,
    "linear": linear.IMPLEMENTATIONS,
    "add": elementwise.ADD,
    "silu_mul": elementwise.SILU_MUL,
    "rope": rope.IMPLEMENTATIONS,
    "kv_insert": kv_insert.IMPLEMENTATIONS,
    "attention": attention.IMPLEMENTATIONS,
    "sample": sample.IMPLEMENTATIONS,
    "logits": logits.IMPLEMENTATIONS,
    "draw": draw.IMPLEMENTATIONS,
    "logprobs": logprobs.IMPLEMENTATIONS,
}


class TorchOps:
    """Runs one step after another; set `step` first.

    Attributes:
        step: the inputs of the step being run; its outputs are put there.
        weights: tensors by parameter name.
        cache: by layer index.
    """

    step: Step

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        cache: list[LayerCache],
        layers: list[AttentionLayer],
        functions: dict[str, Callable[..., Any]],
    ) -> None:
        self.weights = weights
        self.cache = cache
        self._layers = layers
        self._functions = functions
        self._frequencies: dict[Rope, Tensor] = {}
        self._embedding, self._rms_norm = functions["embedding"], functions["rms_norm"]
        self._linear, self._rope = functions["linear"], functions["rope"]
        self._attention, self._kv_insert = functions["attention"], functions["kv_insert"]
        self.add: Callable[[Tensor, Tensor], Tensor] = functions["add"]
        self.silu_mul: Callable[[Tensor, Tensor], Tensor] = functions["silu_mul"]

    def embedding(self, table: Parameter) -> Tensor:
        """See `Ops`."""
        found: Tensor = self._embedding(self.weights[table.name], self.step.token_ids)
        return found

    def rms_norm(self, x: Tensor, weight: Parameter, eps: float) -> Tensor:
        """See `Ops`."""
        found: Tensor = self._rms_norm(x, self.weights[weight.name], eps)
        return found

    def linear(self, x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
        """See `Ops`."""
        found: Tensor = self._linear(x, self.weights[weight.name], None if bias is None else self.weights[bias.name])
        return found

    def rope(self, x: Tensor, rope: Rope, num_heads: int) -> Tensor:
        """See `Ops`; cos and sin are made once a step."""
        tables = self.step.tables.get(rope)
        if tables is None:
            tables = self.step.tables[rope] = _rope_tables(self._frequency(rope), rope.scale, self.step.positions)
        found: Tensor = self._rope(x, *tables, num_heads)
        return found

    def _frequency(self, rope: Rope) -> Tensor:
        found = self._frequencies.get(rope)
        if found is None:
            found = torch.from_numpy(rope.inverse_frequency).to(self.step.positions.device)
            self._frequencies[rope] = found
        return found

    def kv_insert(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `Ops`."""
        self._kv_insert(self.cache[layer], k, v, self.step.slots)

    def attention(self, layer: int, q: Tensor) -> Tensor:
        """See `Ops`."""
        found: Tensor = self._attention(q, self.cache[layer], self._layers[layer], self.step)
        return found

    def select_logit_rows(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x[self.step.logit_token]

    def sample(self, x: Tensor, head: Parameter) -> None:
        """See `Ops`."""
        self.step.outputs = self._functions["sample"](x, self.weights[head.name], self.step.sample, self._functions)


_rope_tables = rope.tables
