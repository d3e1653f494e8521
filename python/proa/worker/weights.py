"""Brings a model's weights to the device: from its files, or generated.

Owns the order of loading and its progress. Does not know how a file stores numbers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proa.ops.interface import Model, Parameter
from proa.weights.files import read_parameters
from proa.weights.generated import TILE_SIZE, first_place, make_tile
from proa.worker.device import Device

if TYPE_CHECKING:
    from proa._rust import Model as OpenedModel

Weights = dict[str, Tensor]


def load_weights(
    opened: OpenedModel,
    model: Model,
    target: tuple[Device, torch.dtype],
    report: Callable[[float], None],
) -> Weights:
    """Return every parameter on the device. Raises `StartFailed` of kind start_weights.

    Args:
        report: called with the share of parameters loaded so far.
    """
    device, _ = target
    weights: Weights = {}
    for parameter, array in read_parameters(opened, model.parameters):
        weights[parameter.name] = device.load(array.values, array.dtype, _dtype(parameter, model, target))
        report(len(weights) / len(model.parameters))
    return weights


def generate_weights(model: Model, target: tuple[Device, torch.dtype]) -> Weights:
    """Return generated weights; see `proa.weights.generated`."""
    device, _ = target
    tile = torch.from_numpy(make_tile()).to(device.torch_device)
    weights: Weights = {}
    for parameter in model.parameters.values():
        shape, dtype = parameter.shape, _dtype(parameter, model, target)
        if parameter.fill == "normal":
            weights[parameter.name] = _cut(tile.to(dtype), first_place(parameter), shape)
        elif parameter.fill == "ones":
            weights[parameter.name] = torch.ones(shape, dtype=dtype, device=device.torch_device)
        else:
            weights[parameter.name] = torch.zeros(shape, dtype=dtype, device=device.torch_device)
    return weights


def _dtype(parameter: Parameter, model: Model, target: tuple[Device, torch.dtype]) -> torch.dtype:
    """A CPU keeps the head in f32: torch there gives no f32 logits from 16-bit operands."""
    device, dtype = target
    return torch.float32 if parameter == model.head and not device.is_cuda else dtype


def _cut(tile: Tensor, start: int, shape: tuple[int, ...]) -> Tensor:
    """Values start, start + 1, ... of the tile's endless repetition."""
    out = torch.empty(shape, dtype=tile.dtype, device=tile.device)
    flat = out.view(-1)
    filled = min(TILE_SIZE - start, len(flat))
    flat[:filled] = tile[start : start + filled]
    num_whole = (len(flat) - filled) // TILE_SIZE
    middle = flat[filled : filled + num_whole * TILE_SIZE]
    middle.view(num_whole, TILE_SIZE)[:] = tile
    rest = flat[filled + num_whole * TILE_SIZE :]
    rest[:] = tile[: len(rest)]
    return out


def num_bytes(weights: Weights) -> int:
    """Bytes the weights take, views of one storage counted once."""
    return sum({t.data_ptr(): t.numel() * t.element_size() for t in weights.values()}.values())


def weights_identity(opened: OpenedModel) -> bytes:
    """Return bytes that change when the weights change: names, sizes and times of the files, or the configuration."""
    digest = hashlib.sha256()
    if opened.format == "dummy":
        digest.update(repr(sorted(opened.config.items(), key=str)).encode())
    else:
        for path in sorted({tensor.path for tensor in opened.tensors.values()}):
            facts = os.stat(path)
            digest.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest.digest()
