"""How much memory the KV cache gets, how long a context may be, how many rows and tokens a step has.

Owns the defaults of both devices and the arithmetic. Allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from proa.config.engine_config import EngineConfig
from proa.executor.interface import StartFailed
from proa.ops.interface import AttentionLayer
from proa.worker.host import available_bytes

#: Default pool on a CPU: a share of the memory that is free, and no more than the cap.
CPU_CACHE_SHARE = 0.25
CPU_CACHE_CAP_BYTES = 1 << 30
#: Request rows by default.
DEFAULT_ROWS = {"cpu": 64, "cuda": 256}
#: Tokens a step on CUDA, and bounds of what a CPU's warm-up may choose.
CUDA_STEP_TOKENS = 8192
CPU_STEP_TOKENS = (64, 4096)
#: On a CPU a step's default budget is what runs in this time (wire.md section 7).
CPU_STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class CacheSize:
    """num_blocks blocks of block_bytes each, over all layers; max_model_len tokens fit in them."""

    num_blocks: int
    block_bytes: int
    max_model_len: int


def bytes_per_block(layers: list[AttentionLayer], block_size: int, element_bytes: int) -> int:
    """Return the bytes that K and V of one block take over all layers."""
    return sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers) * block_size * element_bytes


def size_cache(config: EngineConfig, context_length: int, block_bytes: int, free_bytes: int) -> CacheSize:
    """Return the pool's size and the longest context.

    Args:
        context_length: tokens the model was made for.
        free_bytes: what the pool may take when `kv_cache_memory_bytes` does not say.

    Raises:
        StartFailed: start_memory when the pool cannot hold one request of `max_model_len`, or one block.
    """
    pool_bytes = config.kv_cache_memory_bytes or free_bytes
    num_blocks = pool_bytes // block_bytes
    if num_blocks < 1:
        raise StartFailed(
            "start_memory", f"{pool_bytes} bytes for the KV cache hold no block; one takes {block_bytes} bytes"
        )
    capacity = num_blocks * config.block_size
    if config.max_model_len is not None and config.max_model_len > capacity:
        needed = -(-config.max_model_len // config.block_size) * block_bytes
        raise StartFailed(
            "start_memory",
            f"max_model_len {config.max_model_len} needs {needed} bytes of KV cache and {pool_bytes} are there: lower "
            f"--max-model-len to {capacity} or raise --kv-cache-memory-bytes",
        )
    wanted = config.max_model_len or context_length
    return CacheSize(num_blocks, block_bytes, min(wanted, capacity))


def free_cpu_bytes() -> int:
    """Return the default size of a CPU's pool."""
    return min(int(available_bytes() * CPU_CACHE_SHARE), CPU_CACHE_CAP_BYTES)
