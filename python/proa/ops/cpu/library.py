"""ctypes declarations of csrc/include/proa_cpu.h, name for name.

Owns the loading of the library and nothing else: no memory, no program. ctypes lets the GIL go during every call.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path


class Matrix(ctypes.Structure):
    """Weights of a linear layer: GGUF type number, rows, columns, address of the first row."""

    _fields_ = [("type", c_int32), ("rows", c_int32), ("cols", c_int32), ("data", c_void_p)]


class Config(ctypes.Structure):
    """`proa_cpu_config`."""

    _fields_ = [("isa", c_char_p)] + [
        (name, c_int32)
        for name in (
            "threads",
            "int8",
            "max_rows",
            "max_tokens",
            "max_model_len",
            "num_blocks",
            "block_size",
            "cache_type",
            "vocab_size",
            "reachable_vocab",
        )
    ]


class Instruction(ctypes.Structure):
    """`proa_cpu_instruction`."""

    _fields_ = [
        ("op", c_int32),
        ("dst", c_int32),
        ("src", c_int32),
        ("matrix", c_int32),
        ("vector", c_int32),
        ("layer", c_int32),
        ("flags", c_int32),
        ("i", c_int32 * 2),
        ("f", c_float * 2),
    ]


class Layer(ctypes.Structure):
    """`proa_cpu_layer`."""

    _fields_ = [
        (name, c_int32)
        for name in ("heads", "kv_heads", "head_dim", "rotary_dim", "interleaved", "window", "rope_table")
    ] + [("scale", c_float), ("softcap", c_float)]


class Row(ctypes.Structure):
    """`proa_cpu_row`."""

    _fields_ = (
        [(name, c_int32) for name in ("row", "top_k", "min_tokens", "num_logprobs")]
        + [
            (name, c_float)
            for name in (
                "temperature",
                "top_p",
                "min_p",
                "presence_penalty",
                "frequency_penalty",
                "repetition_penalty",
            )
        ]
        + [("stream_key", c_uint64)]
        + [
            (name, c_int32)
            for name in ("num_history", "history_prompt_len", "num_stop", "num_bias", "num_allowed", "num_bad_words")
        ]
        + [
            (name, c_void_p)
            for name in (
                "history",
                "stop_ids",
                "bias_ids",
                "allowed_ids",
                "bad_word_len",
                "bad_word_ids",
                "bias_values",
            )
        ]
    )


class Step(ctypes.Structure):
    """`proa_cpu_step`."""

    _fields_ = (
        [
            (name, c_int32)
            for name in (
                "num_rows",
                "num_tokens",
                "num_sampled",
                "num_prompt",
                "num_table",
                "num_updates",
                "top_k",
                "prompt_top_k",
            )
        ]
        + [
            (name, c_void_p)
            for name in (
                "row",
                "query_start",
                "token_ids",
                "token_source",
                "positions",
                "slot_mapping",
                "table_row",
                "table_index",
                "table_block",
                "logit_token",
                "sample_row",
                "sample_position",
                "prompt_target",
                "prompt_k",
                "updates",
                "sampled_ids",
                "nonfinite",
                "lp_value",
                "lp_rank",
                "lp_top_ids",
                "lp_top_values",
            )
        ]
        + [("elapsed_ns", c_int64)]
    )


#: Function -> (result, arguments); pointers to opaque things are void pointers.
_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "proa_cpu_create": (c_void_p, [POINTER(Config), c_char_p, c_int32]),
    "proa_cpu_destroy": (None, [c_void_p]),
    "proa_cpu_add_matrix": (c_int32, [c_void_p, POINTER(Matrix), c_int32]),
    "proa_cpu_add_table": (c_int32, [c_void_p, POINTER(Matrix)]),
    "proa_cpu_add_vector": (c_int32, [c_void_p, c_void_p, c_int32]),
    "proa_cpu_add_layer": (c_int32, [c_void_p, POINTER(Layer)]),
    "proa_cpu_add_buffer": (c_int32, [c_void_p, c_int32]),
    "proa_cpu_add_instruction": (c_int32, [c_void_p, POINTER(Instruction)]),
    "proa_cpu_submit": (None, [c_void_p, POINTER(Step), c_int32]),
    "proa_cpu_wait": (None, [c_void_p, POINTER(Step)]),
    "proa_cpu_memory": (None, [c_void_p, POINTER(c_int64), POINTER(c_int64), POINTER(c_int64)]),
    "proa_cpu_kernels": (c_void_p, [c_char_p]),
    "proa_cpu_isa_name": (c_char_p, [c_void_p]),
    "proa_cpu_packed_bytes": (c_int64, [c_void_p, POINTER(Matrix)]),
    "proa_cpu_pack": (None, [c_void_p, POINTER(Matrix), c_void_p]),
    "proa_cpu_linear": (None, [c_void_p, POINTER(Matrix), c_void_p, c_int32, c_int32, c_void_p]),
    "proa_cpu_expand": (None, [c_int32, c_void_p, c_int32, c_void_p]),
}


@cache
def load() -> ctypes.CDLL:
    """Return the library, loaded once. Raises OSError where the package was built without it."""
    library = ctypes.CDLL(str(Path(__file__).resolve().parents[2] / "_cpu.so"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def available_isas() -> list[str]:
    """Names of the instruction sets this machine has, the widest last."""
    return [name for name in ("portable", "avx2", "avx512") if load().proa_cpu_kernels(name.encode())]
