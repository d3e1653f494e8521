"""Weights from a seed, for `--load-format dummy`: right shapes, no meaning, as fast as memory.

Every tensor is cut from one endless repetition of a tile of normal numbers. The tile's length is a prime, so that rows
of a matrix begin at different places of it, and each tensor begins at a place drawn from its name.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from proa.ops.interface import Parameter

#: Values of the tile; a prime.
TILE_SIZE = 1_048_583
_STANDARD_DEVIATION = 0.02
_SEED = 0


def make_tile(seed: int = _SEED) -> NDArray[np.float32]:
    """Return the tile, f32[TILE_SIZE]."""
    tile = np.random.Generator(np.random.PCG64(seed)).standard_normal(TILE_SIZE, np.float32)
    tile *= np.float32(_STANDARD_DEVIATION)
    return tile


def first_place(parameter: Parameter) -> int:
    """Return where in the tile a parameter begins."""
    digest = hashlib.sha256(parameter.name.encode()).digest()
    return int.from_bytes(digest[:8], "little") % TILE_SIZE
