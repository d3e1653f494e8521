"""Content hashes of full blocks: equal hash = equal tokens before and in the block, equal salt, equal adapter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

#: Bytes of a block hash: SHA-256 cut to 128 bits.
HASH_BYTES = 16
#: Parent of a request's first block.
ROOT = bytes(HASH_BYTES)


def block_hash(parent: bytes, ids: NDArray[np.int32], salt: bytes, adapter: bytes = b"") -> bytes:
    """Return the hash of one full block.

    Args:
        parent: hash of the block before it, `ROOT` for the first.
        ids: the block's token ids, i32[block_size].
        salt: the request's cache salt, empty for none; only equal salts share blocks.
        adapter: content hash of the adapter, empty for none.
    """
    return hashlib.sha256(parent + ids.astype("<u4").tobytes() + salt + adapter).digest()[:HASH_BYTES]


def chain(ids: NDArray[np.int32], block_size: int, salt: bytes, adapter: bytes = b"") -> Iterator[bytes]:
    """Yield the hashes of the full blocks of `ids`, in order."""
    parent = ROOT
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = block_hash(parent, ids[start : start + block_size], salt, adapter)
        yield parent
