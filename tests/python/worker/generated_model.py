"""A directory with a configuration and no weights, for `--load-format dummy`."""

from __future__ import annotations

import json
from pathlib import Path

from proa.config.engine_config import EngineConfig
from proa.executor.interface import ExecutorFacts
from proa.executor.torch_executor import TorchExecutor

SHAPE = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_config(folder: Path, **changes: object) -> Path:
    """Write config.json and return the folder."""
    (folder / "config.json").write_text(json.dumps(SHAPE | changes))
    return folder


def start(folder: Path, **changes: object) -> tuple[TorchExecutor, ExecutorFacts]:
    """Start an executor on generated weights."""
    values: dict[str, object] = {"load_format": "dummy", "dtype": "float32", "kv_cache_memory_bytes": 1 << 23}
    values |= {"threads": 1}
    config = EngineConfig(connect="", model_path=str(folder), **(values | changes))  # type: ignore[arg-type]
    executor = TorchExecutor(config)
    return executor, executor.start(lambda phase, progress: None)
