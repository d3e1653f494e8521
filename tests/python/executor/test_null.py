"""The null executor draws by a pure function, whatever stands beside a row."""

from __future__ import annotations

import numpy as np

from proa.executor.null import token_of


def test_tokens_depend_on_stream_and_position_only() -> None:
    keys = np.array([1, 2**64 - 1, 7, 7], np.uint64)
    positions = np.array([0, 5, 5, 6], np.int32)
    ids = token_of(keys, positions, 49152)
    assert ids.dtype == np.int32 and (ids >= 0).all() and (ids < 49152).all()
    for i in range(4):
        assert token_of(keys[i : i + 1], positions[i : i + 1], 49152).tolist() == [ids[i]]
    assert ids[2] != ids[3]
