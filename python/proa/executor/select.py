"""Which executor runs the model: chosen by name, so that only the chosen one is imported."""

from __future__ import annotations

from proa.config.engine_config import EngineConfig
from proa.executor.interface import Executor, StartFailed
from proa.sched.plan import PlanLimits

#: Device -> executor that `auto` means there.
_AUTO = {"null": "null", "cpu": "torch", "cuda": "torch"}


def make_executor(config: EngineConfig) -> Executor:
    """Return the executor the configuration asks for, not started. Raises `StartFailed` of kind start_config."""
    name = _AUTO.get(config.device, "") if config.executor == "auto" else config.executor
    if name == "null":
        from proa.executor.null import NullExecutor

        return NullExecutor(_null_limits(config))
    if name == "cpu" and config.device == "cpu":
        from proa.executor.cpu import CpuExecutor

        return CpuExecutor(config)
    if name == "torch" and config.device != "null":
        try:
            from proa.executor.torch_executor import TorchExecutor
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise StartFailed("start_config", "running a model needs torch: pip install 'proa[torch]'") from error
        return TorchExecutor(config)
    raise StartFailed("start_config", f"no executor {config.executor!r} for device {config.device!r} in this build")


def _null_limits(config: EngineConfig) -> PlanLimits:
    """Limits without a device behind them: as configured, else those of a middling model.

    A token costs one byte of pretended KV memory, so `kv_cache_memory_bytes` sets the pool's size in tokens.
    """
    max_model_len = config.max_model_len or 8192
    max_num_seqs = config.max_num_seqs or 256
    num_tokens = config.kv_cache_memory_bytes or max(max_num_seqs * 1024, max_model_len)
    num_blocks = num_tokens // config.block_size
    if num_blocks == 0:
        raise StartFailed("start_memory", f"kv_cache_memory_bytes {num_tokens} holds no block of {config.block_size}")
    return PlanLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or 8192,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=config.block_size,
        vocab_size=config.tokenizer_vocab_size or 49152,
    )
