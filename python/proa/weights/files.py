"""Finds every parameter of a model in its files, and refuses files that hold more or less.

Owns the ways files differ: names, row order of GGUF's llama family, tied heads, tensors that carry no weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proa.executor.interface import StartFailed
from proa.ops.interface import Parameter
from proa.weights.dequantise import HostArray, UnknownType, expand

if TYPE_CHECKING:
    from proa._rust import Model as OpenedModel
    from proa._rust import Tensor

#: Divisors of the rope's frequencies in a GGUF file: read by `rope_factors`, no parameter.
_ROPE_FACTORS = "rope_freqs.weight"
#: Old checkpoints store the rope's frequencies, which the configuration says too.
_DERIVED = ".rotary_emb.inv_freq"
#: In a file of a tied model the head is a copy of the embedding.
_HEAD = "lm_head.weight"
_BIAS = ".bias"
#: Modules of a GGUF block, by the ends of their names.
_GGUF_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def modules_with_bias(opened: OpenedModel) -> frozenset[str]:
    """Return the modules whose bias the model has, by safetensors name: as the files hold them, or as config.json says
    where there are no files (generated weights)."""
    config = opened.config
    if opened.format == "dummy":
        parts = ["self_attn"] * bool(config["attention_bias"]) + ["mlp"] * bool(config["mlp_bias"])
        wanted = [module for module in _GGUF_MODULES.values() if module.split(".")[0] in parts]
        return frozenset(f"model.layers.{i}.{module}" for i in range(config["num_layers"]) for module in wanted)
    names = [name.removesuffix(_BIAS) for name in opened.tensors if name.endswith(_BIAS)]
    if opened.format != "gguf":
        return frozenset(names)
    found = set()
    for name in names:
        block, _, module = name.rpartition(".")
        if module in _GGUF_MODULES:
            found.add(f"{block.replace('blk.', 'model.layers.')}.{_GGUF_MODULES[module]}")
    return frozenset(found)


def rope_factors(opened: OpenedModel) -> NDArray[np.float32] | None:
    """Return the divisors of the rope's frequencies that a GGUF file stores, f32[dim / 2], or None."""
    tensor = opened.tensors.get(_ROPE_FACTORS) if opened.format != "dummy" else None
    if tensor is None:
        return None
    return np.asarray(_expand(tensor).values, np.float32)


def find_tensors(opened: OpenedModel, parameters: Mapping[str, Parameter]) -> Iterator[tuple[Parameter, Tensor]]:
    """Yield every parameter with its tensor, in the order of the file.

    Raises:
        StartFailed: start_weights, naming a tensor that is missing, left over or of another shape. Everything is
            checked before the first tensor is yielded.
    """
    is_gguf = opened.format == "gguf"
    tensors = dict(opened.tensors)
    by_name = {parameter.gguf_name if is_gguf else parameter.name: parameter for parameter in parameters.values()}
    for name, parameter in by_name.items():
        if name not in tensors:
            raise StartFailed("start_weights", f"the model's files hold no tensor {name}")
        if tensors[name].shape != parameter.shape:
            found, wanted = list(tensors[name].shape), list(parameter.shape)
            raise StartFailed("start_weights", f"tensor {name} has shape {found}, the model needs {wanted}")
    for name in tensors:
        if name not in by_name and not _is_ignorable(name, by_name):
            raise StartFailed("start_weights", f"the model's files hold a tensor the model does not use: {name}")
    for name, tensor in tensors.items():
        if name in by_name:
            yield by_name[name], tensor


def read_parameters(opened: OpenedModel, parameters: Mapping[str, Parameter]) -> Iterator[tuple[Parameter, HostArray]]:
    """Yield every parameter with its numbers, in the order of the file.

    Raises:
        StartFailed: start_weights, as `find_tensors`, or naming a tensor of a type that cannot be read.
    """
    for parameter, tensor in find_tensors(opened, parameters):
        array = _expand(tensor)
        heads = parameter.permuted_heads if opened.format == "gguf" else 0
        yield parameter, _unpermuted(array, heads) if heads else array


def _is_ignorable(name: str, wanted: Mapping[str, Parameter]) -> bool:
    return name == _ROPE_FACTORS or name.endswith(_DERIVED) or (name == _HEAD and _HEAD not in wanted)


def _expand(tensor: Tensor) -> HostArray:
    try:
        return expand(np.frombuffer(memoryview(tensor), np.uint8), tensor.type, tensor.shape)
    except UnknownType as error:
        raise StartFailed("start_weights", f"tensor {tensor.name}: {error}") from error


def _unpermuted(array: HostArray, num_heads: int) -> HostArray:
    """Rows of a head stand as pairs (i, i + d / 2) in the file; bring them back to halves."""
    values = array.values
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return HostArray(np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape), array.dtype)
