"""Random valid messages of the Python side, made from the declared types so that no field is forgotten."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from proa import wire, wire_fields
from proa.errors import FailureKind
from proa.wire_columns import _GROUPS
from proa.wire_fields import _SCHEMAS, Field
from proa.wire_front import BadWords

_BORDERS = [0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
_CHARS = "a_ é水🦀"


class RandomMessages:
    """A reproducible stream of messages.

    Args:
        seed: any number.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self) -> wire.Message:
        """Any message of any kind."""
        makers = [self._plain, self._plain, self._add, self._add, self._abort, self._ready, self._reply, self._failed]
        return self.random.choice([*makers, *[self._step] * 4])()

    def _int(self, low: int, high: int) -> int:
        borders = [border for value in _BORDERS for border in (value, -value) if low <= border <= high]
        wide = self.random.getrandbits(self.random.randint(1, 64))
        return self.random.choice([*borders, low, high, max(low, min(high, wide))])

    def _float(self) -> float:
        return self.random.choice([0.0, -0.0, 1.5, 1e308, 5e-324, self.random.uniform(-100, 100)])

    def _str(self) -> str:
        length = self.random.choice([0, 3, 31, 32, 300])
        return "".join(self.random.choices(_CHARS, k=self.random.randint(0, length)))

    def _bytes(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 255, 256, 300]))

    def _array(self, dtype: np.dtype[Any], length: int) -> np.ndarray[Any, Any]:
        array = np.frombuffer(self.random.randbytes(length * dtype.itemsize), dtype)
        if dtype.kind == "f":
            # numpy and Rust both keep bits of quiet NaNs; signalling ones may be quieted by a processor.
            array = np.where(np.isnan(array), np.float32(np.nan), array).astype(dtype)
        return array

    def _value(self, depth: int) -> Any:
        leaves = [None, True, False, self._int(-(2**63), 2**64 - 1), self._float(), self._str(), self._bytes()]
        if depth < 8 and self.random.random() < 0.3:
            size = self.random.choice([0, 1, 3, 16])
            if self.random.random() < 0.5:
                return [self._value(depth + 3) for _ in range(size)]
            return {f"{i}{self._str()}": self._value(depth + 3) for i in range(size)}
        return self.random.choice(leaves)

    def _map(self) -> dict[str, Any]:
        return {f"{i}{self._str()}": self._value(1) for i in range(self.random.choice([0, 1, 3, 16]))}

    def _field(self, kind: Field) -> Any:
        """A random value of a declared type."""
        match kind:
            case wire_fields.Optional() | wire_fields.Nullable():
                return None if self.random.random() < 0.5 else self._field(kind.inner)
            case wire_fields.Listed():
                return self._field(kind.inner)
            case wire_fields.Int():
                return self._int(kind.low, kind.high)
            case wire_fields.Float():
                return self._float()
            case wire_fields.Bytes():
                return self.random.randbytes(kind.length)
            case wire_fields.Exact():
                return self._exact(kind.type)
            case wire_fields.Word():
                return self.random.choice(list(kind.enum))
            case wire_fields.ListOf():
                length = self.random.randint(0, 3) if kind.length is None else kind.length
                return [self._field(kind.item) for _ in range(length)]
            case wire_fields.MapOf():
                return {f"{i}{self._str()}": self._field(kind.item) for i in range(self.random.randint(0, 3))}
            case wire_fields.Nested():
                return self._record(kind.cls)
            case wire_fields.Packed():
                return self._array(kind.dtype, self.random.randint(0, 3))
            case BadWords():
                dtype = np.dtype("<u4")
                return [self._array(dtype, self.random.randint(0, 3)) for _ in range(self.random.randint(0, 3))]
            case wire_fields.Anything():
                return self._value(1)
        raise AssertionError(f"no maker for {kind}")

    def _exact(self, type_: type) -> Any:
        if type_ is bool:
            return self.random.random() < 0.5
        if type_ is str:
            return self._str()
        return self._bytes() if type_ is bytes else self._map()

    def _record(self, cls: type[Any], **fixed: Any) -> Any:
        if cls is wire.LogitBias:
            length = self.random.randint(0, 3)
            fixed = {"ids": self._array(np.dtype("<u4"), length), "values": self._array(np.dtype("<f4"), length)}
        fields = {name: self._field(kind) for name, kind in _SCHEMAS[cls].fields.items() if name not in fixed}
        return cls(**fields, **fixed)

    def _group(self, cls: type[Any], length: int, **fixed: Any) -> Any:
        arrays = {name: self._array(dtype, length) for name, dtype in _GROUPS[cls].items() if name not in fixed}
        return cls(**arrays, **fixed)

    def _plain(self) -> wire.Message:
        cls = self.random.choice([wire.Hello, wire.Utility, wire.Shutdown])
        message: wire.Message = self._record(cls, **({"protocol_minor": 0} if cls is wire.Hello else {}))
        return message

    def _add(self) -> wire.AddRequests:
        rows = self.random.randint(0, 4)
        if rows == 0:
            return wire.AddRequests()
        prompt_len = np.array([self.random.randint(0, 3) for _ in range(rows)], np.uint32)
        stop_len = np.array([self.random.randint(0, 3) for _ in range(rows)], np.uint16)
        lists = {
            "prompt_ids": self._array(np.dtype("<u4"), int(prompt_len.sum())),
            "stop_ids": self._array(np.dtype("<u4"), int(stop_len.sum())),
        }
        columns = self._group(wire.RequestColumns, rows, prompt_len=prompt_len, stop_len=stop_len, **lists)
        chosen = self.random.sample(range(rows), self.random.randint(0, rows))
        return wire.AddRequests(columns, [self._record(wire.Rare, row=row) for row in chosen])

    def _abort(self) -> wire.Abort:
        abort: wire.Abort = self._group(wire.Abort, self.random.randint(0, 4))
        return abort

    def _ready(self) -> wire.Ready:
        facts = None if self.random.random() < 0.5 else self._record(wire.EngineFacts)
        progress = None if self.random.random() < 0.5 else self.random.random()
        index, incarnation = self._int(0, 2**16 - 1), self._int(0, 2**64 - 1)
        return wire.Ready(1, 0, index, incarnation, self._str(), progress, facts)

    def _reply(self) -> wire.UtilityReply:
        if self.random.random() < 0.5:
            return wire.UtilityReply(self._int(0, 2**64 - 1), self._value(1))
        return wire.UtilityReply(self._int(0, 2**64 - 1), error=self._record(wire.UtilityError))

    def _failed(self) -> wire.EngineFailed:
        kind = self.random.choice(list(FailureKind))
        keys = self._array(np.dtype("<u8"), self.random.randint(0, 3))
        return wire.EngineFailed(self._str(), kind, self._str(), keys)

    def _step(self) -> wire.StepOutputs:
        outputs = wire.StepOutputs(self._int(0, 2**64 - 1))
        if self.random.random() < 0.5:
            outputs.stats = self._record(wire.SchedulerStats)
        outputs.details = [
            wire.Detail(self._int(0, 2**32 - 1), self._str()[:128]) for _ in range(self.random.randint(0, 2))
        ]
        rows = self.random.randint(0, 5)
        if rows:
            self._put_rows(outputs, rows)
        for name, cls in (("stamps", wire.Stamps), ("progress", wire.Progress), ("usage", wire.Usage)):
            if self.random.random() < 0.5:
                setattr(outputs, name, self._group(cls, self.random.randint(1, 3)))
        if self.random.random() < 0.5:
            outputs.prompt_logprobs = self._prompt_logprobs(self.random.randint(1, 3))
        if self.random.random() < 0.2:
            outputs.lp_ask_values = self._array(np.dtype("<f4"), 3)
        return outputs

    def _put_rows(self, outputs: wire.StepOutputs, rows: int) -> None:
        num_tokens = np.array([self.random.randint(0, 3) for _ in range(rows)], np.uint16)
        ids = self._array(np.dtype("<u4"), int(num_tokens.sum()))
        outputs.rows = self._group(wire.Rows, rows, num_tokens=num_tokens, token_ids=ids)
        if self.random.random() < 0.5:
            lp_k = np.array([self.random.randint(-1, 3) for _ in range(rows)], np.int32)
            tokens = int(num_tokens[lp_k >= 0].sum())
            tops = int((num_tokens * np.maximum(lp_k, 0)).sum())
            floats, ints = np.dtype("<f4"), np.dtype("<u4")
            outputs.sampled_logprobs = wire.SampledLogprobs(
                lp_k,
                self._array(floats, tokens),
                self._array(ints, tokens),
                self._array(ints, tops),
                self._array(floats, tops),
            )
        if self.random.random() < 0.5:
            entries = self.random.randint(1, 3)
            chosen = np.array([self.random.randrange(rows) for _ in range(entries)], np.uint32)
            outputs.prefill = self._group(wire.Prefill, entries, prefill_row=chosen)

    def _prompt_logprobs(self, chunks: int) -> wire.PromptLogprobs:
        counts = np.array([self.random.randint(0, 3) for _ in range(chunks)], np.uint32)
        ks = np.array([self.random.randint(0, 2) for _ in range(chunks)], np.int32)
        positions, tops = int(counts.sum()), int((counts.astype(np.int64) * ks).sum())
        floats, ints = np.dtype("<f4"), np.dtype("<u4")
        return wire.PromptLogprobs(
            self._array(np.dtype("<u8"), chunks),
            self._array(ints, chunks),
            counts,
            ks,
            self._array(floats, positions),
            self._array(ints, positions),
            self._array(ints, tops),
            self._array(floats, tops),
        )
