"""One JSON document is all an engine is told: `python -m proa.engine --config-fd N` reads it from a descriptor.

The flag table, defaults and aliases live in `rust/cli`; `rust/cli/src/engine_config.rs` writes this document, and
`tests/fixtures/config/engine.json` is read by the tests of both. Parsing is strict: an unknown, missing or mistyped key
ends the start, so nothing is accepted and ignored.
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from proa.errors import EngineStartError, FailureKind

#: Version of the document; another one is refused.
SCHEMA = 1
#: Words a key may hold.
_WORDS: dict[str, tuple[str, ...]] = {
    "load_format": ("auto", "dummy"),
    "executor": ("auto", "null", "cpu", "torch"),
    "device": ("cpu", "cuda", "null"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "scheduling_policy": ("fcfs", "priority"),
}
#: (least, most) of a number.
_RANGES: dict[str, tuple[float, float]] = {
    "engine_index": (0, 2**16 - 1),
    "tokenizer_vocab_size": (1, 2**31 - 1),
    "max_model_len": (1, 2**24),
    "max_num_seqs": (1, 2**16),
    "max_num_batched_tokens": (1, 2**20),
    "max_prefill_chunk": (1, 2**20),
    "block_size": (1, 2**10),
    "kv_cache_memory_bytes": (1, 2**50),
    "gpu_memory_utilization": (0, 1),
    "max_logprobs": (-1, 2**20),
    "threads": (1, 2**12),
    "parent_pid": (0, 2**31 - 1),
}


@dataclass(slots=True, frozen=True)
class EngineConfig:
    """Effective configuration of one engine; None = to be chosen by the engine.

    Attributes:
        connect: ZMQ address of the front end.
        engine_index: place among the engines of the front end.
        model_path: absolute path of a GGUF file or a directory.
        load_format: `auto` or `dummy` (generated weights).
        executor: `null`, `cpu` or `torch`; `auto` = by device.
        device: `cpu`, `cuda` or `null`.
        dtype: `auto`, `float32`, `bfloat16`, `float16`.
        tokenizer_vocab_size: ids the tokenizer knows; larger ones are never drawn.
        max_prefill_chunk: most tokens of one prompt in a step.
        kernel: op -> implementation, forced.
        cpu_isa, cpu_activations: `auto` or a forced choice.
        parent_pid: the process that must be alive for this one to live; 0 = none.
    """

    connect: str
    model_path: str
    engine_index: int = 0
    load_format: str = "auto"
    executor: str = "auto"
    device: str = "cpu"
    dtype: str = "auto"
    tokenizer_vocab_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_prefill_chunk: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    max_logprobs: int = 20
    threads: int | None = None
    cpu_isa: str = "auto"
    cpu_activations: str = "int8"
    kernel: dict[str, str] = field(default_factory=dict)
    debug_kernels: bool = False
    parent_pid: int = 0


def parse(text: str) -> EngineConfig:
    """Return the configuration of a document. Raises `EngineStartError` of kind START_CONFIG naming the key."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _refusal(f"the configuration is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise _refusal("the configuration is no JSON object")
    schema = document.pop("schema", None)
    if schema != SCHEMA:
        raise _refusal(f"configuration schema {schema!r}, this engine reads {SCHEMA}")
    known = {f.name: f for f in fields(EngineConfig)}
    hints = typing.get_type_hints(EngineConfig)
    for name, value in document.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise _refusal(f"unknown configuration key {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if not _fits(value, hints[name]):
            raise _refusal(f"configuration key {name!r}: {value!r} is no {hints[name]}")
        _check_value(name, value)
    for name, known_field in known.items():
        if known_field.default is MISSING and known_field.default_factory is MISSING and name not in document:
            raise _refusal(f"configuration key {name!r} is missing")
    return EngineConfig(**document)


def _check_value(name: str, value: Any) -> None:
    words = _WORDS.get(name)
    if words is not None and value not in words:
        near = difflib.get_close_matches(value, words, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise _refusal(f"configuration key {name!r}: {value!r} is none of {', '.join(words)}{hint}")
    least_most = _RANGES.get(name)
    if least_most is not None and value is not None and not least_most[0] <= value <= least_most[1]:
        raise _refusal(f"configuration key {name!r}: {value} is not in {least_most[0]}..{least_most[1]}")


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if typing.get_origin(hint) is dict:
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    return isinstance(value, hint)


def _refusal(cause: str) -> EngineStartError:
    return EngineStartError(FailureKind.START_CONFIG, cause)
