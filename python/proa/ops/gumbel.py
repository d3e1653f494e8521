"""gumbel: the noise of a draw, a pure function of stream key, output position and token id.

Contract: w = word 0 of Philox4x32-10 (Salmon et al. 2011) with key (low, high) and counter (id, position, 0, 0);
u = ((w >> 9) + 0.5) * 2^-23; noise = -log(-log u), all in f32 (speculative-decoding.md section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor

#: No noise is larger: -log(-log(1 - 2^-24)) = 16.64.
LARGEST_NOISE = 16.7

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox_word(key_low: Tensor, key_high: Tensor, ids: Tensor, position: Tensor) -> Tensor:
    """Return word 0, in 0 .. 2^32 - 1, of ids i64[N, n]; the other arguments i64[N, 1].

    Products of 64 bits wrap, which leaves their bits right.
    """
    c0, c1 = ids, position.expand_as(ids)
    c2 = c3 = torch.zeros_like(ids)
    k0, k1 = key_low, key_high
    for _ in range(_ROUNDS):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ k0, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0


def gumbel_noise(key_low: Tensor, key_high: Tensor, ids: Tensor, position: Tensor) -> Tensor:
    """Return the noise, f32, of ids i64[N, n]; the other arguments i64[N, 1]."""
    word = philox_word(key_low, key_high, ids, position)
    u = ((word >> 9).to(torch.float32) + 0.5) * 2.0**-23
    noise: Tensor = -torch.log(-torch.log(u))
    return noise
