"""Columns: little-endian arrays, one per frame, named by the body key `columns`.

A group is a dataclass of 1-D numpy arrays whose annotations carry the type, for example `request_key: ColU64`; its
columns are all sent or none. Decoded arrays are read-only views of the received frame. Does not know any message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import numpy as np
from numpy.typing import NDArray

from proa.wire_msgpack import MAX_COLUMNS, mismatch, undecodable

T = TypeVar("T")
Frame = bytes | memoryview

ColU8 = Annotated[NDArray[np.uint8], np.dtype("u1")]
ColU16 = Annotated[NDArray[np.uint16], np.dtype("<u2")]
ColU32 = Annotated[NDArray[np.uint32], np.dtype("<u4")]
ColU64 = Annotated[NDArray[np.uint64], np.dtype("<u8")]
ColI32 = Annotated[NDArray[np.int32], np.dtype("<i4")]
ColI64 = Annotated[NDArray[np.int64], np.dtype("<i8")]
ColF32 = Annotated[NDArray[np.float32], np.dtype("<f4")]

_GROUPS: dict[type, dict[str, np.dtype[Any]]] = {}


@dataclass_transform(eq_default=False)
def columns(cls: type[T]) -> type[T]:
    """Makes `cls` a dataclass with slots, a group of columns that are all sent or none."""
    made = dataclass(slots=True, eq=False)(cls)
    hints = get_type_hints(made, include_extras=True)
    _GROUPS[made] = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return made


def empty(cls: type[T]) -> T:
    """A group of `cls` with no rows."""
    return cls(**{name: np.empty(0, dtype) for name, dtype in _GROUPS[cls].items()})


def frame_of(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    """The frame of one column.

    Raises:
        TypeError: the array is not of the column's type; the wire never casts.
    """
    if array.dtype != dtype or array.ndim != 1:
        raise TypeError(f"column {name} is {dtype}[n], got {array.dtype} of {array.ndim} dimensions")
    return array.tobytes()


class ColumnWriter:
    """The column frames of a message being written."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.frames: list[bytes] = []

    def put(self, group: object) -> None:
        """Adds every column of a group, unless it is None or all its columns are empty."""
        if group is None:
            return
        types = _GROUPS[type(group)]
        arrays = attrgetter(*types)(group) if len(types) > 1 else (attrgetter(*types)(group),)
        frames = [frame_of(name, array, types[name]) for name, array in zip(types, arrays, strict=True)]
        if any(frames):
            self.names += types
            self.frames += frames

    def put_one(self, name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> None:
        """Adds a column of no group, unless it is empty."""
        if len(array):
            self.names.append(name)
            self.frames.append(frame_of(name, array, dtype))


class ColumnSet:
    """The column frames of a message being read, taken one by one under their names.

    Raises:
        BadFrame: number of frames, doubled names.
    """

    def __init__(self, names: list[str], frames: Sequence[Frame]) -> None:
        if len(names) > MAX_COLUMNS:
            raise undecodable("too many columns")
        if len(names) != len(frames):
            raise mismatch("the number of frames is not that of the columns")
        self._left = dict(zip(names, frames, strict=True))
        if len(self._left) != len(names):
            raise mismatch("a column is doubled")

    def take(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The column `name`; None if the message has none. BadFrame if its length is impossible."""
        frame = self._left.pop(name, None)
        if frame is None:
            return None
        if len(frame) % dtype.itemsize:
            raise mismatch("a column's length is no multiple of its width")
        return np.frombuffer(frame, dtype)

    def take_group(self, cls: type[T]) -> T | None:
        """The group of `cls`; None if the message has none of its columns. BadFrame if it has only some."""
        types = _GROUPS[cls]
        if types.keys().isdisjoint(self._left):
            return None
        arrays = {name: self.take(name, dtype) for name, dtype in types.items()}
        if any(array is None for array in arrays.values()):
            raise mismatch("a column is missing")
        return cls(**arrays)

    def finish(self, lenient: bool) -> None:
        """Ends the reading; columns nobody took are refused unless `lenient`."""
        if self._left and not lenient:
            raise mismatch("unknown column")


def check_lengths(length: int, *arrays: NDArray[Any]) -> None:
    """BadFrame unless every array has `length` entries."""
    if any(len(array) != length for array in arrays):
        raise mismatch("columns of one group differ in length")


def check_sum(total: int, *arrays: NDArray[Any]) -> None:
    """BadFrame unless every array has exactly `total` entries."""
    if any(len(array) != total for array in arrays):
        raise mismatch("a column's length is not the sum of its lengths")


def total(lengths: NDArray[Any]) -> int:
    """The exact sum of u16 or u32 lengths."""
    # A frame holds at most 2^28 bytes, so 2^26 lengths of 32 bits stay below 2^64.
    return int(lengths.sum(dtype=np.uint64))


def total_product(counts: NDArray[Any], ks: NDArray[Any]) -> int:
    """The exact sum of counts[i] * ks[i], both below 2^32 and not negative."""
    products = counts.astype(np.uint64) * ks.astype(np.uint64)
    # Products can reach 2^64 and their sum more; the halves are summed apart.
    low, high = products & np.uint64(0xFFFFFFFF), products >> np.uint64(32)
    return int(low.sum(dtype=np.uint64)) + (int(high.sum(dtype=np.uint64)) << 32)


def bounds(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """i64[n + 1]: row i's part of a concatenated column is bounds[i] .. bounds[i + 1]."""
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges
