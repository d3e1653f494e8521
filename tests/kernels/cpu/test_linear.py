"""Linear layers of every weight type and instruction set against dequantised f64 products."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest

from proa.ops.cpu import library

FLOAT_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
#: Type -> (GGUF number, weights a block, bytes a block, offsets of the block's f16 scales).
BLOCK_TYPES = {
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
TYPES = [*FLOAT_TYPES, *BLOCK_TYPES]


def random_weights(rng: np.random.Generator, name: str, rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the file's bytes and their values in f32."""
    if name in FLOAT_TYPES:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if name == "F16":
            values = values.astype(np.float16)
        if name == "BF16":
            raw = (values.view(np.uint32) >> 16).astype(np.uint16)
            return raw, (raw.astype(np.uint32) << 16).view(np.float32)
        return values, values.astype(np.float32)
    _, block, size, scales = BLOCK_TYPES[name]
    raw = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
    for offset in scales:
        scale = (rng.standard_normal((rows, cols // block, 1)) * 0.01).astype(np.float16)
        raw[:, :, offset : offset + 2] = scale.view(np.uint8)
    raw = raw.reshape(rows, -1)
    return raw, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).astype(np.float32)


def packed(kernels: int, matrix: library.Matrix) -> tuple[library.Matrix, np.ndarray | None]:
    """Return the matrix as kernels want it, and the memory that holds it (poisoned before packing)."""
    size = library.load().proa_cpu_packed_bytes(kernels, ctypes.byref(matrix))
    if size == 0:
        return matrix, None
    memory = np.full(size + 64, 0xEE, np.uint8)
    start = -memory.ctypes.data % 64
    library.load().proa_cpu_pack(kernels, ctypes.byref(matrix), memory[start:].ctypes.data)
    return library.Matrix(matrix.type, matrix.rows, matrix.cols, memory[start:].ctypes.data), memory


def apply(kernels: int, matrix: library.Matrix, x: np.ndarray, int8: bool) -> np.ndarray:
    y = np.full((len(x), matrix.rows), np.nan, np.float32)
    library.load().proa_cpu_linear(kernels, ctypes.byref(matrix), x.ctypes.data, len(x), int8, y.ctypes.data)
    return y


@pytest.mark.parametrize("int8", [False, True], ids=["f32", "int8"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("isa", library.available_isas())
def test_product_is_near_the_f64_product_and_equal_alone_and_in_a_batch(isa: str, name: str, int8: bool) -> None:
    rng = np.random.default_rng(TYPES.index(name))
    kernels = library.load().proa_cpu_kernels(isa.encode())
    number = FLOAT_TYPES.get(name, BLOCK_TYPES.get(name, (0,))[0] if name in BLOCK_TYPES else 0)
    for rows, cols in [(64, 256), (37, 512), (1, 768), (130, 1024)]:
        raw, values = random_weights(rng, name, rows, cols)
        matrix, memory = packed(kernels, library.Matrix(number, rows, cols, raw.ctypes.data))
        x = rng.standard_normal((70, cols)).astype(np.float32)
        reference = x.astype(np.float64) @ values.astype(np.float64).T
        whole = apply(kernels, matrix, x, int8)
        quantised = int8 and memory is not None
        error = np.abs(whole - reference).max() / np.abs(reference).max()
        assert error < (2e-2 if quantised else 3e-6), (rows, cols)
        for count in (1, 2, 3, 5, 8, 13):
            part = apply(kernels, matrix, np.ascontiguousarray(x[7 : 7 + count]), int8)
            assert np.array_equal(part, whole[7 : 7 + count]), (rows, cols, count)


@pytest.mark.parametrize("name", list(BLOCK_TYPES))
def test_expanding_a_row_gives_the_reference_values(name: str) -> None:
    rng = np.random.default_rng(1)
    raw, values = random_weights(rng, name, 3, 512)
    for row in range(3):
        out = np.full(512, np.nan, np.float32)
        library.load().proa_cpu_expand(BLOCK_TYPES[name][0], raw[row].ctypes.data, 512, out.ctypes.data)
        np.testing.assert_allclose(out, values[row], rtol=2e-6, atol=1e-7)


def test_an_unknown_instruction_set_is_no_silent_choice() -> None:
    assert library.load().proa_cpu_kernels(b"sse9") is None
