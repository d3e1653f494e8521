"""embedding: rows of a table for token ids.

Contract: (table [vocab, n], token_ids i64[T]) -> [T, n] in the table's dtype. Ids lie in 0 .. vocab - 1.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from proa.ops.registry import Implementation


def reference(table: Tensor, token_ids: Tensor) -> Tensor:
    """See the module's contract."""
    return functional.embedding(token_ids, table)


IMPLEMENTATIONS = (Implementation("torch", reference, "torch reads whole rows"),)
