"""What an engine that is ready says about itself (wire.md section 2)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time

from proa import __version__
from proa.config.engine_config import EngineConfig
from proa.executor.interface import ExecutorFacts
from proa.wire import Cache, Capability, EngineFacts


def engine_facts(config: EngineConfig, facts: ExecutorFacts, phases: list[dict[str, object]]) -> EngineFacts:
    """Return what `Ready` says of an engine: its configuration as it came out, its limits, its start."""
    limits = facts.limits
    memory = [{"memory": name, "bytes": size} for name, size in facts.memory_bytes.items()]
    details = [{"fact": name, "value": value} for name, value in facts.details.items()]
    return EngineFacts(
        engine_version=__version__,
        device=facts.device,
        pid=os.getpid(),
        clock_ns=time.monotonic_ns(),
        max_model_len=limits.max_model_len,
        vocab_size=limits.vocab_size,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_spec_tokens=0,
        max_logprobs=config.max_logprobs,
        cache=Cache(facts.cache_dtype, config.gpu_memory_utilization, config.enable_prefix_caching, "sha256"),
        identity_hash=bytes(32),
        config_hash=_config_hash(config),
        step_group=0,
        capabilities={name: Capability(ok, reason) for name, (ok, reason) in facts.capabilities.items()},
        kernels=[dataclasses.asdict(choice) for choice in facts.kernels] + [{"dtype": facts.dtype}],
        startup=[*phases, *memory, *details],
        markers=[],
    )


def _config_hash(config: EngineConfig) -> bytes:
    """SHA-256 of what engines of one front end must agree on: all but addresses, indexes and process ids."""
    shared = dataclasses.asdict(config)
    for private in ("connect", "engine_index", "parent_pid"):
        del shared[private]
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).digest()
