"""Philox4x32-10 (Salmon et al. 2011) and the Gumbel noise made from it, in numpy.

The reference for every device's implementation (speculative-decoding.md section 3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SHIFT = np.uint64(32)
_ROUNDS = 10


def philox(counter: U32, key: tuple[int, int]) -> U32:
    """Return the four words of each counter, u32[N, 4] -> u32[N, 4], under a key of two words."""
    words = [counter[:, i].astype(np.uint32) for i in range(4)]
    k0, k1 = key
    for _ in range(_ROUNDS):
        a, b = words[0].astype(np.uint64) * _MULTIPLIERS[0], words[2].astype(np.uint64) * _MULTIPLIERS[1]
        high_a, high_b = (a >> _SHIFT).astype(np.uint32), (b >> _SHIFT).astype(np.uint32)
        low_a, low_b = a.astype(np.uint32), b.astype(np.uint32)
        words = [high_b ^ words[1] ^ np.uint32(k0), low_b, high_a ^ words[3] ^ np.uint32(k1), low_a]
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack(words, -1)


def gumbel_noise(stream_key: int, position: int, ids: NDArray[np.int64]) -> F32:
    """Return the noise of token ids at an output position, f32[N]."""
    counter = np.zeros((len(ids), 4), np.uint32)
    counter[:, 0], counter[:, 1] = ids, position
    word = philox(counter, (stream_key & 0xFFFFFFFF, stream_key >> 32))[:, 0]
    u = ((word >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    noise: F32 = -np.log(-np.log(u))
    return noise
