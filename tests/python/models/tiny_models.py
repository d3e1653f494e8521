"""Small generated Llama models in every shape the family knows, saved as safetensors or as GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

#: What each variant changes of the plain model.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "one_kv_head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True, "num_key_value_heads": 2},
    "wide_heads": {"head_dim": 32, "num_key_value_heads": 2},
    "narrow_heads": {"head_dim": 8},
    "attention_bias": {"attention_bias": True, "num_key_value_heads": 2},
    "mlp_bias": {"mlp_bias": True},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3_rope": {"rope_parameters": LLAMA3},
    "yarn_rope": {"rope_parameters": YARN},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
}


def make_model(variant: str) -> LlamaForCausalLM:
    """Return a random model in fp32; its norms and biases are not neutral, so that a missing one shows."""
    values = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(sorted(VARIANTS).index(variant))
    model = LlamaForCausalLM(LlamaConfig(**(values | VARIANTS[variant]))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save(model: LlamaForCausalLM, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the model as a directory that Proa opens."""
    model.to(dtype).save_pretrained(folder, safe_serialization=True)
    model.to(torch.float32)
    words = {f"w{i}": i for i in range(model.config.vocab_size)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
