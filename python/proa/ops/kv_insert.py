"""kv_insert: writes K and V of new tokens into the paged cache.

Contract: (cache, k [T, n], v [T, n], slots i64[T]) -> None; row t goes to slot slots[t], converted to the cache's
dtype. Slots are distinct. Nothing else is touched.
"""

from __future__ import annotations

from torch import Tensor

from proa.ops.registry import Implementation
from proa.ops.step import LayerCache


def reference(cache: LayerCache, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """See the module's contract."""
    cache.k.index_copy_(0, slots, k.to(cache.k.dtype))
    cache.v.index_copy_(0, slots, v.to(cache.v.dtype))


IMPLEMENTATIONS = (Implementation("torch", reference, "one indexed copy each"),)
