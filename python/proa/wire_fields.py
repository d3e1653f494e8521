"""Maps with fixed keys: what a field of each type looks like on the wire, and the `record` decorator.

A record is a dataclass whose annotations carry the wire type, for example `call_id: U64`. Field order is key order.
Does not know any message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import numpy as np
from numpy.typing import NDArray

from proa.wire_msgpack import mismatch

T = TypeVar("T")


class Field:
    """Wire type of a field. `is_plain`: a value is packed as it is."""

    is_plain = True

    def pack(self, value: Any) -> Any:
        """The msgpack form of `value`."""
        return value

    def unpack(self, value: Any, lenient: bool) -> Any:
        """The field's value from its msgpack form; BadFrame if that is of another type."""
        raise NotImplementedError

    def missing(self) -> Any:
        """The value when the key is missing."""
        raise mismatch("a key is missing")


class Int(Field):
    """An integer of low..high."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def unpack(self, value: Any, lenient: bool) -> int:
        if type(value) is not int or not self.low <= value <= self.high:
            raise mismatch("expected an integer in range")
        return value


class Exact(Field):
    """A value of exactly one Python type: str, bool, bytes, dict."""

    def __init__(self, type_: type) -> None:
        self.type = type_

    def unpack(self, value: Any, lenient: bool) -> Any:
        if type(value) is not self.type:
            raise mismatch(f"expected {self.type.__name__}")
        return value


class Float(Field):
    """A float; an int given by the caller is sent as float."""

    is_plain = False

    def pack(self, value: Any) -> float:
        return float(value)

    def unpack(self, value: Any, lenient: bool) -> float:
        if type(value) is not float:
            raise mismatch("expected a float")
        return value


class Bytes(Field):
    """Exactly `length` bytes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def unpack(self, value: Any, lenient: bool) -> bytes:
        if type(value) is not bytes or len(value) != self.length:
            raise mismatch("expected bytes of a fixed length")
        return value


class Anything(Field):
    """Any value of the profile."""

    def unpack(self, value: Any, lenient: bool) -> Any:
        return value


class Word(Field):
    """A member of an Enum, sent as its value."""

    is_plain = False

    def __init__(self, enum: type[Enum]) -> None:
        self.enum = enum

    def pack(self, value: Any) -> Any:
        return value.value

    def unpack(self, value: Any, lenient: bool) -> Enum:
        if type(value) is not str:
            raise mismatch("expected str")
        try:
            return self.enum(value)
        except ValueError:
            raise mismatch("unknown word") from None


class ListOf(Field):
    """A list of one wire type, of any length or of exactly `length`."""

    def __init__(self, item: Field, length: int | None = None) -> None:
        self.item, self.length, self.is_plain = item, length, item.is_plain

    def pack(self, value: Any) -> list[Any]:
        return [self.item.pack(item) for item in value]

    def unpack(self, value: Any, lenient: bool) -> list[Any]:
        if type(value) is not list or (self.length is not None and len(value) != self.length):
            raise mismatch("expected a list")
        return [self.item.unpack(item, lenient) for item in value]


class MapOf(Field):
    """A map from any name to one wire type."""

    def __init__(self, item: Field) -> None:
        self.item, self.is_plain = item, item.is_plain

    def pack(self, value: Any) -> dict[str, Any]:
        return {key: self.item.pack(item) for key, item in value.items()}

    def unpack(self, value: Any, lenient: bool) -> dict[str, Any]:
        if type(value) is not dict:
            raise mismatch("expected a map")
        return {key: self.item.unpack(item, lenient) for key, item in value.items()}


class Nested(Field):
    """Another record."""

    is_plain = False

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def pack(self, value: Any) -> dict[str, Any]:
        return pack_record(value)

    def unpack(self, value: Any, lenient: bool) -> Any:
        return unpack_record(self.cls, value, lenient)


class Packed(Field):
    """Numbers as bytes of little-endian values; a numpy array on this side."""

    is_plain = False

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def pack(self, value: NDArray[Any]) -> bytes:
        if value.dtype != self.dtype:
            raise TypeError(f"expected an array of {self.dtype}, got {value.dtype}")
        return value.tobytes()

    def unpack(self, value: Any, lenient: bool) -> NDArray[Any]:
        if type(value) is not bytes or len(value) % self.dtype.itemsize:
            raise mismatch("expected bytes, a multiple of the item's width")
        return np.frombuffer(value, self.dtype)


class _Wrapped(Field):
    def __init__(self, inner: Field) -> None:
        self.inner, self.is_plain = inner, inner.is_plain

    def pack(self, value: Any) -> Any:
        return self.inner.pack(value)

    def unpack(self, value: Any, lenient: bool) -> Any:
        return self.inner.unpack(value, lenient)


class Nullable(_Wrapped):
    """The key is always there and nil stands for None."""

    def pack(self, value: Any) -> Any:
        return None if value is None else self.inner.pack(value)

    def unpack(self, value: Any, lenient: bool) -> Any:
        return None if value is None else self.inner.unpack(value, lenient)


class Optional(_Wrapped):
    """The key is left out for None."""

    def missing(self) -> Any:
        return None


class Listed(_Wrapped):
    """The key is left out for an empty list."""

    def missing(self) -> Any:
        return []


U8 = Annotated[int, Int(0, 2**8 - 1)]
U16 = Annotated[int, Int(0, 2**16 - 1)]
U32 = Annotated[int, Int(0, 2**32 - 1)]
U64 = Annotated[int, Int(0, 2**64 - 1)]
I32 = Annotated[int, Int(-(2**31), 2**31 - 1)]
F64 = Annotated[float, Float()]
Bool = Annotated[bool, Exact(bool)]
Str = Annotated[str, Exact(str)]
Map = Annotated[dict[str, Any], Exact(dict)]
Hash = Annotated[bytes, Bytes(32)]
OptionalU64 = Annotated[int | None, Optional(Int(0, 2**64 - 1))]
OptionalU32 = Annotated[int | None, Optional(Int(0, 2**32 - 1))]
OptionalBytes = Annotated[bytes | None, Optional(Exact(bytes))]
Maps = Annotated[list[dict[str, Any]], ListOf(Exact(dict))]


class _Schema:
    """The fields of a record, prepared for packing without a loop over the plain ones."""

    def __init__(self, cls: type) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.fields: dict[str, Field] = {name: hint.__metadata__[0] for name, hint in hints.items()}
        self.names = tuple(self.fields)
        getter = attrgetter(*self.names)
        self.values = getter if len(self.names) > 1 else lambda record: (getter(record),)
        self.optional = [name for name, kind in self.fields.items() if isinstance(kind, Optional)]
        self.listed = [name for name, kind in self.fields.items() if isinstance(kind, Listed)]
        self.packed = [(name, kind) for name, kind in self.fields.items() if not kind.is_plain]


_SCHEMAS: dict[type, _Schema] = {}


@dataclass_transform(eq_default=False)
def record(cls: type[T]) -> type[T]:
    """Makes `cls` a dataclass with slots whose annotations say how each field is sent."""
    made = dataclass(slots=True, eq=False)(cls)
    _SCHEMAS[made] = _Schema(made)
    return made


def record_keys(cls: type) -> frozenset[str]:
    """The keys a record of `cls` may have on the wire."""
    return frozenset(_SCHEMAS[cls].fields)


def pack_record(record_: object) -> dict[str, Any]:
    """The map of a record, keys in the order of its fields."""
    schema = _SCHEMAS[type(record_)]
    entries = dict(zip(schema.names, schema.values(record_), strict=True))
    for name in schema.optional:
        if entries[name] is None:
            del entries[name]
    for name in schema.listed:
        if not entries[name]:
            del entries[name]
    for name, kind in schema.packed:
        if name in entries:
            entries[name] = kind.pack(entries[name])
    return entries


def unpack_record(cls: type[T], entries: Any, lenient: bool, others: frozenset[str] = frozenset()) -> T:
    """The record in a map.

    Args:
        cls: a class made by `record`.
        entries: what msgpack gave.
        lenient: unknown keys are skipped (the sender has a higher minor version) instead of refused.
        others: keys of the same map that belong to another record.

    Raises:
        BadFrame: with reason `columns`: no map, a key missing, unknown or of the wrong type.
    """
    if type(entries) is not dict:
        raise mismatch("expected a map")
    fields = _SCHEMAS[cls].fields
    if not lenient and not entries.keys() <= fields.keys() | others:
        raise mismatch("unknown key")
    values = {
        name: kind.unpack(entries[name], lenient) if name in entries else kind.missing()
        for name, kind in fields.items()
    }
    return cls(**values)
