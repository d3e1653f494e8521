"""The name an engine's socket connects under (wire.md section 1)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Some libraries keep identities that begin with 0 for themselves.
_MARK = 0x50
_FORMAT = struct.Struct("<BHQ")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which engine (u16), and which process of it (u64, drawn anew by each process, never 0)."""

    engine_index: int
    incarnation: int

    def to_bytes(self) -> bytes:
        """The 11 bytes of the identity."""
        return _FORMAT.pack(_MARK, self.engine_index, self.incarnation)

    @staticmethod
    def from_bytes(raw: bytes) -> Identity | None:
        """The identity in `raw`; None if that is none."""
        if len(raw) != _FORMAT.size:
            return None
        mark, engine_index, incarnation = _FORMAT.unpack(raw)
        return Identity(engine_index, incarnation) if mark == _MARK and incarnation != 0 else None
