"""The native program runner in Python's terms: plans in, results out. Imports numpy, never torch.

Owns the native runner and keeps alive whatever it points to: weights, vectors, and the arrays of steps in flight.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proa.ops.cpu import library
from proa.sched.plan import (
    LOGPROBS_NONE,
    LOGPROBS_VOCABULARY,
    LogprobColumns,
    RowUpdates,
    StepMode,
    StepPlan,
    StepResult,
)


class Op(IntEnum):
    """Instructions of csrc/include/proa_cpu.h."""

    EMBED = 0
    RMS_NORM = 1
    LINEAR = 2
    ROPE_INSERT = 3
    ATTENTION = 4
    SILU_MUL = 5
    ADD = 6
    SELECT = 7
    LOGITS = 8


class CacheType(IntEnum):
    """Element types of the KV cache."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


@dataclass(slots=True, frozen=True)
class Weights:
    """A matrix as a file has it: GGUF type number, rows (outputs), columns (inputs), the bytes."""

    type: int
    rows: int
    cols: int
    data: NDArray[Any]


@dataclass(slots=True, frozen=True)
class RunnerConfig:
    """`proa_cpu_config`; `isa` "" = the best, `int8` = quantised weights meet int8 activations."""

    max_rows: int
    max_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    cache_type: CacheType
    vocab_size: int
    reachable_vocab: int
    threads: int
    int8: bool
    isa: str = ""


class RunnerError(Exception):
    """The native runner cannot be made or extended; one line."""


class CpuRunner:
    """A program and its state: built with the `add_*` methods; then `submit` plans and `collect` results in order."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self._library = library.load()
        self._alive: list[Any] = []
        self._in_flight: deque[tuple[library.Step, dict[str, Any], StepPlan]] = deque()
        self._num_logprobs = np.full(config.max_rows, LOGPROBS_NONE, np.int32)
        self.completion_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        error = ctypes.create_string_buffer(256)
        native = library.Config(
            isa=config.isa.encode(),
            threads=config.threads,
            int8=int(config.int8),
            max_rows=config.max_rows,
            max_tokens=config.max_tokens,
            max_model_len=config.max_model_len,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            cache_type=config.cache_type,
            vocab_size=config.vocab_size,
            reachable_vocab=config.reachable_vocab,
        )
        self._runner = self._library.proa_cpu_create(ctypes.byref(native), error, len(error))
        if not self._runner:
            os.close(self.completion_fd)
            raise RunnerError(error.value.decode())
        kernels = self._library.proa_cpu_kernels(native.isa)
        self.isa: str = self._library.proa_cpu_isa_name(kernels).decode()

    # ---- building ---------------------------------------------------------------------------------------------------

    def _matrices(self, parts: list[Weights]) -> ctypes.Array[library.Matrix]:
        self._alive.append(parts)
        return (library.Matrix * len(parts))(
            *(library.Matrix(part.type, part.rows, part.cols, part.data.ctypes.data) for part in parts)
        )

    def _added(self, number: int) -> int:
        if number < 0:
            raise RunnerError("no memory for the model")
        return number

    def add_matrix(self, parts: list[Weights]) -> int:
        """Add matrices of equal columns whose outputs stand one after another; packs quantised ones."""
        return self._added(self._library.proa_cpu_add_matrix(self._runner, self._matrices(parts), len(parts)))

    def add_table(self, weights: Weights) -> int:
        """Add an embedding table."""
        return self._added(self._library.proa_cpu_add_table(self._runner, self._matrices([weights])))

    def add_vector(self, values: NDArray[np.float32]) -> int:
        """Add a vector (norm weights, a bias, a rope table)."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        self._alive.append(flat)
        return self._added(self._library.proa_cpu_add_vector(self._runner, flat.ctypes.data, flat.size))

    def add_layer(self, layer: library.Layer) -> int:
        """Add a layer's attention facts and reserve its KV cache."""
        return self._added(self._library.proa_cpu_add_layer(self._runner, ctypes.byref(layer)))

    def add_buffer(self, width: int) -> int:
        """Add a buffer of `width` floats a token."""
        return self._added(self._library.proa_cpu_add_buffer(self._runner, width))

    def add_instruction(
        self, op: Op, *, dst: int = 0, src: int = 0, matrix: int = -1, vector: int = -1, layer: int = -1, **rest: Any
    ) -> None:
        """Append an instruction; `rest` may hold `accumulate` (bool), `size` (i[0]) and `scalar` (f[0])."""
        instruction = library.Instruction(op, dst, src, matrix, vector, layer, int(rest.get("accumulate", False)))
        instruction.i[0] = rest.get("size", 0)
        instruction.f[0] = rest.get("scalar", 0.0)
        self._added(self._library.proa_cpu_add_instruction(self._runner, ctypes.byref(instruction)))

    def memory_bytes(self) -> dict[str, int]:
        """Bytes of packed weights, KV cache (reserved) and buffers."""
        sizes = [ctypes.c_int64() for _ in range(3)]
        self._library.proa_cpu_memory(self._runner, *(ctypes.byref(size) for size in sizes))
        return dict(zip(("packed", "kv", "workspace"), (size.value for size in sizes), strict=True))

    # ---- steps ------------------------------------------------------------------------------------------------------

    def submit(self, plan: StepPlan) -> None:
        """Start a step; `completion_fd` becomes readable when it is done. At most two are in flight."""
        arrays: dict[str, Any] = {}
        updates = self._updates(plan.updates, arrays) if plan.updates is not None else None
        num_logits = plan.num_sampled + plan.num_prompt_scored
        top_k = self._width(self._num_logprobs[plan.sample_row]) if plan.want_logprobs else LOGPROBS_NONE
        prompt_top_k = self._width(plan.prompt_k)
        num_top = plan.num_sampled * max(top_k, 0) + plan.num_prompt_scored * max(prompt_top_k, 0)
        outputs: dict[str, np.ndarray] = {
            "sampled_ids": np.zeros(plan.num_sampled, np.int32),
            "nonfinite": np.zeros(num_logits, np.uint8),
            "lp_value": np.zeros(num_logits, np.float32),
            "lp_rank": np.zeros(num_logits, np.int32),
            "lp_top_ids": np.full(num_top, -1, np.int32),
            "lp_top_values": np.full(num_top, -np.inf, np.float32),
        }
        arrays |= outputs
        step = library.Step(
            num_rows=plan.num_rows,
            num_tokens=plan.num_tokens,
            num_sampled=plan.num_sampled,
            num_prompt=plan.num_prompt_scored,
            num_table=len(plan.table_block),
            num_updates=0 if updates is None else len(updates),
            top_k=top_k,
            prompt_top_k=prompt_top_k,
        )
        for name in _PLAN_COLUMNS:
            setattr(step, name, getattr(plan, name).ctypes.data)
        for name, array in outputs.items():
            setattr(step, name, array.ctypes.data)
        if updates is not None:
            step.updates = ctypes.addressof(updates)
            arrays["updates"] = updates
        self._in_flight.append((step, arrays, plan))
        self._library.proa_cpu_submit(self._runner, ctypes.byref(step), self.completion_fd)

    def collect(self) -> StepResult:
        """Return the result of the oldest step, waiting for it if need be."""
        step, arrays, plan = self._in_flight.popleft()
        self._library.proa_cpu_wait(self._runner, ctypes.byref(step))
        self._take_signal()
        num_sampled, top_k, prompt_top_k = plan.num_sampled, step.top_k, step.prompt_top_k
        edge = num_sampled * max(top_k, 0)
        return StepResult(
            step=plan.step,
            sampled_ids=arrays["sampled_ids"],
            nonfinite=arrays["nonfinite"],
            logprobs=_logprobs(arrays, slice(0, num_sampled), slice(0, edge), top_k),
            prompt_logprobs=_logprobs(arrays, slice(num_sampled, None), slice(edge, None), prompt_top_k),
            mode=StepMode.EAGER,
            device_ns=step.elapsed_ns,
        )

    def _take_signal(self) -> None:
        """Take one count off `completion_fd`; the runner adds it a moment after the step counts as done."""
        select.select([self.completion_fd], [], [])
        os.eventfd_read(self.completion_fd)

    def close(self) -> None:
        """Wait for steps in flight and give everything back. Idempotent."""
        if self._runner:
            while self._in_flight:
                self.collect()
            self._library.proa_cpu_destroy(self._runner)
            self._runner = None
            os.close(self.completion_fd)

    def _width(self, ks: NDArray[np.int32]) -> int:
        """Entries per row of the widest row: LOGPROBS_NONE if no row asks."""
        if len(ks) == 0:
            return LOGPROBS_NONE
        return self.config.reachable_vocab if (ks == LOGPROBS_VOCABULARY).any() else int(ks.max())

    def _updates(self, updates: RowUpdates, arrays: dict[str, Any]) -> ctypes.Array[library.Row]:
        self._num_logprobs[updates.row] = updates.num_logprobs
        arrays["history"] = updates.history_ids
        rows = (library.Row * len(updates.row))()
        for i, native in enumerate(rows):
            for name in _ROW_NUMBERS:
                setattr(native, name, getattr(updates, name)[i].item())
            start, end = int(updates.history_start[i]), int(updates.history_start[i + 1])
            native.num_history = end - start
            native.history_prompt_len = int(updates.history_prompt_len[i])
            native.history = updates.history_ids[start:].ctypes.data
            native.num_allowed = -1
            extras = updates.extras[i]
            if extras is None:
                continue
            words = [np.ascontiguousarray(word, np.int32) for word in extras.bad_words]
            kept = {
                "stop_ids": extras.stop_ids,
                "bias_ids": extras.bias_ids,
                "bias_values": extras.bias_values,
                "bad_word_len": np.array([len(word) for word in words], np.int32),
                "bad_word_ids": np.concatenate([*words, np.zeros(0, np.int32)]),
            }
            if extras.allowed_ids is not None:
                kept["allowed_ids"] = extras.allowed_ids
                native.num_allowed = len(extras.allowed_ids)
            native.num_stop, native.num_bias, native.num_bad_words = (
                len(extras.stop_ids),
                len(extras.bias_ids),
                len(words),
            )
            for name, array in kept.items():
                setattr(native, name, array.ctypes.data)
            arrays[f"extras{i}"] = kept
        return rows


_PLAN_COLUMNS = (
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
)
_ROW_NUMBERS = (
    "row",
    "top_k",
    "min_tokens",
    "num_logprobs",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stream_key",
)


def _logprobs(arrays: dict[str, Any], rows: slice, top: slice, width: int) -> LogprobColumns | None:
    if width == LOGPROBS_NONE:
        return None
    value = arrays["lp_value"][rows]
    shape = (len(value), width)
    ids, values = arrays["lp_top_ids"][top].reshape(shape), arrays["lp_top_values"][top].reshape(shape)
    return LogprobColumns(value, arrays["lp_rank"][rows], ids, values)
