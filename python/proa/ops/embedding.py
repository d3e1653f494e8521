"""embedding: rows of a table for token ids.

Contract: (table [vocab, n], token_ids i64[T]) -> f32[T, n]. Ids lie in 0 .. vocab - 1. What begins here is the residual
stream: kept in f32, it takes in every layer's output without rounding, for little memory traffic.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Implementation


def reference(table: Tensor, token_ids: Tensor) -> Tensor:
    """See the module's contract."""
    return functional.embedding(token_ids, table).to(torch.float32)


IMPLEMENTATIONS = (Implementation("torch", reference, "torch reads whole rows"),)
