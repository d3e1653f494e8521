"""Block types are expanded as the format's own library expands them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from proa.weights.dequantise import UnknownType, expand

BLOCKS = {"Q8_0": (34, 32, [0]), "Q4_1": (20, 32, [0, 2]), "Q6_K": (210, 256, [208])}


def random_blocks(name: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """Any bytes, with finite scales, as u8[rows, bytes]."""
    size, values, halves = BLOCKS[name]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    for offset in halves:
        scale = rng.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("name", BLOCKS)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_blocks_expand_to_the_bits_of_the_reference(name: str, rows: int, blocks: int, seed: int) -> None:
    columns = blocks * BLOCKS[name][1]
    stored = random_blocks(name, rows, columns, seed)
    expected = gguf.quants.dequantize(stored, GGMLQuantizationType[name])
    found = expand(stored.reshape(-1), name, (rows, columns))
    assert found.dtype == "float32" and found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, expected)


def test_more_blocks_than_a_tile() -> None:
    stored = random_blocks("Q4_1", 1100, 1024, 3)
    expected = gguf.quants.dequantize(stored, GGMLQuantizationType.Q4_1)
    np.testing.assert_array_equal(expand(stored.reshape(-1), "Q4_1", (1100, 1024)).values, expected)


@pytest.mark.parametrize(("name", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
def test_plain_types_are_views(name: str, dtype: str) -> None:
    stored = np.arange(48, dtype=np.uint8)
    stored.setflags(write=False)
    found = expand(stored, name, (3, -1))
    assert found.dtype == dtype
    assert np.shares_memory(found.values, stored)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownType, match="IQ2_XXS"):
        expand(np.zeros(66, np.uint8), "IQ2_XXS", (256,))
