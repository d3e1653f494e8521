"""Sampling parameters of live rows, and what a row's draws depend on: penalty counts and the tail of its ids.

Owns the columns by request row, on the host and (counts, tails, masks) on the device. Knows no logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proa.ops.sample_inputs import ANY, BadWords, Draws, Penalties, RowEdits, SampleInputs
from proa.sched.plan import PlanLimits, RowExtras, RowUpdates, StepPlan
from proa.worker.device import Device

_LOW_WORD = np.uint64(0xFFFFFFFF)
_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTS = ("top_k", "min_tokens", "num_logprobs")


@dataclass(slots=True)
class _Extras:
    """`RowExtras` on the device."""

    allowed: Tensor | None = None
    stop_ids: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None
    bad_words: BadWords | None = None


class SamplingRows:
    """Sampling state of all rows.

    Args:
        num_reachable: ids below it can be drawn; others are left out of every mask.
    """

    def __init__(self, limits: PlanLimits, num_reachable: int, device: Device) -> None:
        self._device, self._num_reachable = device, num_reachable
        rows = limits.max_num_seqs
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(rows, np.float32) for name in _FLOATS}
        self._columns |= {name: np.zeros(rows, np.int32) for name in _INTS}
        self._stream_key = np.zeros(rows, np.uint64)
        self._extras: dict[int, _Extras] = {}
        self._counts: dict[int, Tensor] = {}
        self._in_prompt: dict[int, Tensor] = {}

    def update(self, updates: RowUpdates) -> None:
        """Fill rows anew."""
        for name, column in self._columns.items():
            column[updates.row] = getattr(updates, name)
        self._stream_key[updates.row] = updates.stream_key
        for i, row in enumerate(updates.row.tolist()):
            for state in (self._extras, self._counts, self._in_prompt):
                state.pop(row, None)
            history = updates.history_ids[updates.history_start[i] : updates.history_start[i + 1]]
            if self._is_penalised(np.array([row]))[0]:
                self._fill_counts(row, history, int(updates.history_prompt_len[i]))
            extras = updates.extras[i]
            if extras is not None:
                self._extras[row] = self._to_device(extras, history)

    def _is_penalised(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        c = self._columns
        penalised: NDArray[np.bool_] = (
            (c["presence_penalty"][rows] != 0)
            | (c["frequency_penalty"][rows] != 0)
            | (c["repetition_penalty"][rows] != 1)
        )
        return penalised

    def _fill_counts(self, row: int, history: NDArray[np.int32], prompt_len: int) -> None:
        counts = np.zeros(self._num_reachable, np.int32)
        in_prompt = np.zeros(self._num_reachable, bool)
        prompt, output = history[:prompt_len], history[prompt_len:]
        in_prompt[prompt[prompt < self._num_reachable]] = True
        np.add.at(counts, output[output < self._num_reachable], 1)
        self._counts[row], self._in_prompt[row] = self._device.upload(counts), self._device.upload(in_prompt)

    def _to_device(self, extras: RowExtras, history: NDArray[np.int32]) -> _Extras:
        def ids(column: NDArray[np.int32]) -> Tensor | None:
            reachable = column[column < self._num_reachable].astype(np.int64)
            return self._device.upload(reachable) if len(reachable) else None

        found = _Extras(stop_ids=ids(extras.stop_ids))
        if extras.allowed_ids is not None:
            allowed = ids(extras.allowed_ids)
            found.allowed = allowed if allowed is not None else self._device.upload(np.zeros(0, np.int64))
        kept = extras.bias_ids < self._num_reachable
        if kept.any():
            found.bias_ids = ids(extras.bias_ids)
            found.bias_values = self._device.upload(extras.bias_values[kept])
        words = [word for word in extras.bad_words if word[-1] < self._num_reachable]
        if words:
            found.bad_words = self._bad_words(words, history)
        return found

    def _bad_words(self, words: list[NDArray[np.int32]], history: NDArray[np.int32]) -> BadWords:
        width = max(1, max(len(word) for word in words) - 1)
        prefix = np.full((len(words), width), ANY, np.int64)
        for i, word in enumerate(words):
            prefix[i, width - (len(word) - 1) :] = word[:-1]
        tail = np.full(width, -1, np.int64)
        known = history[-width:]
        tail[width - len(known) :] = known
        last = np.array([word[-1] for word in words], np.int64)
        upload = self._device.upload
        return BadWords(upload(prefix), upload(last), upload(tail))

    # ---- a step -----------------------------------------------------------------------------------------------------

    def inputs(self, plan: StepPlan) -> SampleInputs:
        """Return what the sampler needs for the plan's logit rows."""
        rows = plan.sample_row
        return SampleInputs(
            num_sampled=len(rows),
            num_reachable=self._num_reachable,
            prompt_target=self._device.upload(plan.prompt_target.astype(np.int64)),
            prompt_k=plan.prompt_k,
            edits=self._edits(plan) if self._extras else [],
            penalties=self._penalties(rows) if self._counts else None,
            draws=self._draws(plan),
            num_logprobs=self._columns["num_logprobs"][rows] if plan.want_logprobs else None,
        )

    def _edits(self, plan: StepPlan) -> list[RowEdits]:
        edits = []
        for index, row in enumerate(plan.sample_row.tolist()):
            extras = self._extras.get(row)
            if extras is None:
                continue
            is_short = plan.sample_position[index] < self._columns["min_tokens"][row]
            masked = extras.stop_ids if is_short else None
            edits.append(RowEdits(index, extras.allowed, extras.bad_words, masked, extras.bias_ids, extras.bias_values))
        return edits

    def _penalties(self, rows: NDArray[np.int32]) -> Penalties | None:
        index = np.flatnonzero(self._is_penalised(rows))
        if not len(index):
            return None
        penalised = rows[index]
        return Penalties(
            self._device.upload(index),
            torch.stack([self._counts[row] for row in penalised.tolist()]),
            torch.stack([self._in_prompt[row] for row in penalised.tolist()]),
            *(self._column(f"{word}_penalty", penalised) for word in ("presence", "frequency", "repetition")),
        )

    def _draws(self, plan: StepPlan) -> Draws | None:
        index = np.flatnonzero(self._columns["temperature"][plan.sample_row] > 0)
        if not len(index):
            return None
        rows = plan.sample_row[index]
        key, top_k = self._stream_key[rows], self._columns["top_k"][rows]

        def whole(column: NDArray[Any]) -> Tensor:
            return self._device.upload(column.astype(np.int64)[:, None])

        return Draws(
            index=self._device.upload(index),
            temperature=self._column("temperature", rows),
            top_p=self._column("top_p", rows),
            min_p=self._column("min_p", rows),
            top_k=whole(np.where(top_k > 0, top_k, self._num_reachable)),
            key_low=whole(key & _LOW_WORD),
            key_high=whole(key >> np.uint64(32)),
            position=whole(plan.sample_position[index]),
            host_top_k=top_k,
            host_top_p=self._columns["top_p"][rows],
            host_min_p=self._columns["min_p"][rows],
        )

    def _column(self, name: str, rows: NDArray[np.int32]) -> Tensor:
        return self._device.upload(self._columns[name][rows][:, None])

    def remember(self, plan: StepPlan, ids: Tensor) -> None:
        """Take the ids i32[S] a step draws into the counts and tails, on the device."""
        if not self._counts and not self._extras:
            return
        for index, row in enumerate(plan.sample_row.tolist()):
            counts, extras = self._counts.get(row), self._extras.get(row)
            words = extras.bad_words if extras is not None else None
            if counts is None and words is None:
                continue
            drawn = ids[index : index + 1].to(torch.int64)
            if counts is not None:
                counts.index_add_(0, drawn, torch.ones_like(drawn, dtype=torch.int32))
            if words is not None:
                words.tail = torch.cat([words.tail[1:], drawn])
