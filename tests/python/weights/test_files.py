"""Loading is strict, and what a GGUF file stores otherwise comes back as the family has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import make_model, save

from proa._rust import Model, open_model
from proa.config.model_config import model_config
from proa.executor.interface import StartFailed
from proa.models.select import make_model as configured
from proa.weights.files import modules_with_bias, read_parameters, rope_factors


def load(opened: Model) -> dict[str, np.ndarray]:
    model = configured(model_config(opened.config), modules_with_bias(opened), rope_factors(opened))
    return {parameter.name: array.values for parameter, array in read_parameters(opened, model.parameters)}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as the converter to GGUF stores them: halves of a head interleaved."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, tensors: dict[str, np.ndarray], config: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_merges([])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_WORDS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}


def gguf_tensors(state: dict[str, torch.Tensor], config: Any) -> dict[str, np.ndarray]:
    tensors = {}
    for name, tensor in state.items():
        values = tensor.numpy().copy()
        if ".q_proj." in name:
            values = permuted(values, config.num_attention_heads)
        if ".k_proj." in name:
            values = permuted(values, config.num_key_value_heads)
        for word, short in GGUF_WORDS.items():
            name = name.replace(word, short)
        tensors[name] = values
    return tensors


@pytest.mark.parametrize("variant", ["grouped", "attention_bias", "tied"])
def test_gguf_and_safetensors_hold_the_same_weights(variant: str, tmp_path: Path) -> None:
    model = make_model(variant)
    state = dict(model.state_dict().items())
    if variant == "tied":
        state.pop("lm_head.weight")
    of_directory = load(open_model(str(save(model, tmp_path))))
    path = write_gguf(tmp_path / "model.gguf", gguf_tensors(state, model.config), model.config)
    of_gguf = load(open_model(str(path)))
    assert set(of_directory) == set(of_gguf) == set(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(of_directory[name], tensor.numpy())
        np.testing.assert_array_equal(of_gguf[name], tensor.numpy())


def test_rope_factors_of_a_gguf_file_divide_the_frequencies(tmp_path: Path) -> None:
    model = make_model("plain")
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    tensors = gguf_tensors(model.state_dict(), model.config) | {"rope_freqs.weight": factors}
    opened = open_model(str(write_gguf(tmp_path / "model.gguf", tensors, model.config)))
    assert load(opened)
    found = configured(model_config(opened.config), rope_factors=rope_factors(opened)).rope  # type: ignore[attr-defined]
    plain = configured(model_config(opened.config)).rope  # type: ignore[attr-defined]
    np.testing.assert_allclose(found.inverse_frequency, plain.inverse_frequency / factors, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("missing", "hold no tensor model.layers.1.mlp.up_proj.weight"),
        ("left over", "does not use: model.layers.9.extra.weight"),
        ("shape", r"model.norm.weight has shape \[63\], the model needs \[64\]"),
        ("type", "model.norm.weight: tensors of type I32 are not supported"),
    ],
)
def test_files_that_hold_more_or_less_are_refused(change: str, words: str, tmp_path: Path) -> None:
    model = make_model("plain")
    folder = save(model, tmp_path)
    state = dict(model.state_dict())
    if change == "missing":
        del state["model.layers.1.mlp.up_proj.weight"]
    elif change == "left over":
        state["model.layers.9.extra.weight"] = torch.zeros(2)
    elif change == "shape":
        state["model.norm.weight"] = torch.zeros(63)
    else:
        state["model.norm.weight"] = torch.zeros(64, dtype=torch.int32)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(StartFailed, match=words) as caught:
        load(open_model(str(folder)))
    assert caught.value.kind == "start_weights"


def test_a_copy_of_a_tied_head_and_derived_tensors_are_passed_over(tmp_path: Path) -> None:
    model = make_model("tied")
    folder = save(model, tmp_path)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(state, folder / "model.safetensors")
    assert "lm_head.weight" in state and "lm_head.weight" not in load(open_model(str(folder)))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model_type", "mamba", "architecture 'mamba' is not supported; llama is"),
        ("hidden_act", "gelu", "activation 'gelu'"),
        ("sliding_window", 32, "sliding window"),
        ("rope_scaling", {"rope_type": "longrope", "factor": 2.0}, "rope scaling 'longrope'"),
        ("num_key_value_heads", 3, "do not divide"),
    ],
)
def test_a_shape_that_is_not_built_is_refused(key: str, value: object, words: str, tmp_path: Path) -> None:
    folder = save(make_model("plain"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(StartFailed, match=words) as caught:
        load(open_model(str(folder)))
    assert caught.value.kind == "start_config"
