"""Expands stored tensors to numbers: F32, F16, BF16 as they are, Q8_0, Q4_1 and Q6_K blocks to f32.

Owns the block layouts of GGUF (as the format's reference implementation documents them). Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

#: Values expanded at a time; bounds what a large matrix needs beside its result.
_TILE_BLOCKS = 1 << 15
_NIBBLE_SHIFTS = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
_PAIR_SHIFTS = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)


@dataclass(frozen=True, slots=True)
class HostArray:
    """Numbers on the host.

    Attributes:
        values: the array; bfloat16 is kept as its bits in uint16.
        dtype: `float32`, `float16` or `bfloat16`.
    """

    values: NDArray[Any]
    dtype: str


class UnknownType(ValueError):
    """A storage type without a reader; the message names it."""


def expand(data: U8, type_name: str, shape: tuple[int, ...]) -> HostArray:
    """Return the numbers of a stored tensor, shape `shape`; plain types are views of `data`.

    Args:
        data: u8[bytes], the stored bytes.
        type_name: as `Tensor.type` names it.
        shape: sizes in elements, slowest first.
    """
    plain = _PLAIN.get(type_name)
    if plain is not None:
        numpy_type, dtype = plain
        return HostArray(data.view(numpy_type).reshape(shape), dtype)
    block = _BLOCKS.get(type_name)
    if block is None:
        known = ", ".join([*_PLAIN, *_BLOCKS])
        raise UnknownType(f"tensors of type {type_name} are not supported; {known} are")
    num_bytes, num_values, decode = block
    blocks = data.reshape(-1, num_bytes)
    values = np.empty((len(blocks), num_values), np.float32)
    for start in range(0, len(blocks), _TILE_BLOCKS):
        tile = slice(start, start + _TILE_BLOCKS)
        decode(blocks[tile], values[tile])
    return HostArray(values.reshape(shape), "float32")


def _half(columns: U8) -> F32:
    """f32[n, 1] of two bytes a row."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _q8_0(blocks: U8, out: F32) -> None:
    """Scale f16, 32 signed bytes."""
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks[:, :2]), out=out, casting="unsafe")


def _q4_1(blocks: U8, out: F32) -> None:
    """Scale and least value f16, 16 bytes: low halves are values 0..15, high halves 16..31."""
    packed = blocks[:, 4:]
    out[:, :16] = packed & 0x0F
    out[:, 16:] = packed >> 4
    out *= _half(blocks[:, :2])
    out += _half(blocks[:, 2:4])


def _q6_k(blocks: U8, out: F32) -> None:
    """128 bytes of low 4 bits, 64 of high 2 bits, 16 signed scales of 16 values each, one f16 scale."""
    n = len(blocks)
    low = (blocks[:, :128].reshape(n, 2, 1, 64) >> _NIBBLE_SHIFTS) & 0x0F
    high = (blocks[:, 128:192].reshape(n, 2, 1, 32) >> _PAIR_SHIFTS) & 0x03
    quants = (low.reshape(n, 16, 16) | (high.reshape(n, 16, 16) << 4)).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32) * _half(blocks[:, 208:])
    out[:] = (quants * scales[:, :, None]).reshape(n, 256)


_PLAIN: dict[str, tuple[str, str]] = {
    "F32": ("<f4", "float32"),
    "F16": ("<f2", "float16"),
    "BF16": ("<u2", "bfloat16"),
}
_BLOCKS: dict[str, tuple[int, int, Callable[[U8, F32], None]]] = {
    "Q8_0": (34, 32, _q8_0),
    "Q4_1": (20, 32, _q4_1),
    "Q6_K": (210, 256, _q6_k),
}
