"""A model's configuration, as `proa._rust.open_model` normalises config.json and GGUF metadata.

Owns the fields this package reads, under the names and meanings of `ModelConfig` in rust/model-files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary positions are stretched; fields as in rust/model-files."""

    kind: str
    factor: float = 1.0
    original_context_length: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only model; fields as in rust/model-files."""

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rope_theta: float
    rope_dim: int
    rms_norm_eps: float
    vocab_size: int
    context_length: int
    tie_word_embeddings: bool
    hidden_act: str = "silu"
    rope_scaling: RopeScaling | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    dtype: str | None = None
    sliding_window: int | None = None


def model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration that `open_model(...).config` describes."""
    known = {f.name: values[f.name] for f in fields(ModelConfig) if f.name in values}
    scaling = known.get("rope_scaling")
    if scaling is not None:
        known["rope_scaling"] = RopeScaling(**scaling)
    return ModelConfig(**known)
