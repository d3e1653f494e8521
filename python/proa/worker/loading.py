"""From a configuration to a runner: opens the model, loads its weights, sizes and allocates its cache, warms up.

Owns the order of a start and the memory ledger. Knows nothing of threads, tickets or plans in flight.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from proa._rust import ModelError, open_model
from proa.config.engine_config import EngineConfig
from proa.config.model_config import model_config
from proa.executor.interface import ExecutorFacts, KernelChoice, ReportPhase, StartFailed
from proa.models.select import make_model
from proa.ops.interface import AttentionLayer, Model
from proa.ops.registry import Facts, choose
from proa.ops.step import LayerCache
from proa.ops.torch_ops import TABLE, TorchOps
from proa.sched.plan import PlanLimits
from proa.weights.files import modules_with_bias, rope_factors
from proa.worker import sizing
from proa.worker.device import DTYPES, Device, open_device
from proa.worker.runner import Runner
from proa.worker.warm_up import prompt_plan, tokens_in
from proa.worker.weights import generate_weights, load_weights, num_bytes, weights_identity


class Loader:
    """One start. Call the steps in their order, or `load` for all of them."""

    def __init__(self, config: EngineConfig, report: ReportPhase) -> None:
        self.config, self.report = config, report

    def load(self) -> tuple[Runner, ExecutorFacts, Device]:
        """Return a warm runner and what it has. Raises `StartFailed`."""
        config, report = self.config, self.report
        report("device", None)
        self.device = open_device(config.device, config.threads)
        self._open()
        self._functions, kernels = choose(TABLE, self._facts(), config.kernel)
        report("weights", 0.0)
        self._load_weights()
        report("kv", None)
        workspace = self._measure_workspace()
        self._size_limits(workspace)
        runner = self._runner(self.limits)
        report("warm_up", None)
        if self.device.is_cuda:
            runner.run(prompt_plan(min(64, self.limits.max_model_len), self.limits))
            torch.cuda.synchronize()
        else:
            self._fit_budget(runner)
        return runner, self._executor_facts(kernels, workspace), self.device

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self.config
        if config.cpu_isa != "auto":
            raise StartFailed("start_config", f"cpu_isa {config.cpu_isa!r}: torch chooses its instruction set itself")
        try:
            self.opened = open_model(config.model_path, config.load_format != "dummy")
        except ModelError as error:
            raise StartFailed("start_weights", str(error)) from error
        self.model_config = model_config(self.opened.config)
        self.model: Model = make_model(self.model_config, modules_with_bias(self.opened), rope_factors(self.opened))
        self.dtype_name = _choose_dtype(config, self.model_config.dtype)
        self.cache_dtype_name = _choose_cache_dtype(config, self.dtype_name)

    def _load_weights(self) -> None:
        target = (self.device, DTYPES[self.dtype_name])
        if self.config.load_format == "dummy":
            self.weights = generate_weights(self.model, target)
        else:
            self.weights = load_weights(self.opened, self.model, target, lambda share: self.report("weights", share))

    def _facts(self) -> Facts:
        head_dim = self.model.attention_layers[0].head_dim
        return Facts(self.device.name, self.dtype_name, self.cache_dtype_name, head_dim, self.device.capability)

    def _measure_workspace(self) -> int:
        """Bytes a largest step needs beside weights and cache: measured on CUDA, added up from its buffers on a CPU."""
        config, shape = self.config, self.model_config
        num_tokens = config.max_num_batched_tokens or sizing.CUDA_STEP_TOKENS
        num_rows = config.max_num_seqs or sizing.DEFAULT_ROWS[self.device.name]
        logits = 3 * num_rows * shape.vocab_size * 4
        if not self.device.is_cuda:
            width = 4 * shape.hidden_size + 3 * shape.ffn_size
            tokens = config.max_num_batched_tokens or sizing.CPU_STEP_TOKENS[1]
            return logits + tokens * width * DTYPES[self.dtype_name].itemsize
        length = min(config.max_model_len or shape.context_length, num_tokens)
        num_blocks = -(-num_tokens // config.block_size) + num_rows
        limits = PlanLimits(num_rows, num_tokens, length, num_blocks, config.block_size, shape.vocab_size)
        torch.cuda.reset_peak_memory_stats()
        runner = self._runner(limits)
        held = torch.cuda.memory_allocated()
        runner.run(prompt_plan(min(num_tokens, length * num_rows), limits))
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - held
        del runner
        torch.cuda.empty_cache()
        return peak + logits

    def _size_limits(self, workspace: int) -> None:
        config, shape, cuda = self.config, self.model_config, self.device.is_cuda
        element = DTYPES[self.cache_dtype_name].itemsize
        block_bytes = sizing.bytes_per_block(self.model.attention_layers, config.block_size, element)
        free = _free_cuda_bytes(config, workspace) if cuda else sizing.free_cpu_bytes()
        self.cache_size = sizing.size_cache(config, shape.context_length, block_bytes, free)
        num_rows = config.max_num_seqs or sizing.DEFAULT_ROWS[self.device.name]
        default_tokens = sizing.CUDA_STEP_TOKENS if cuda else sizing.CPU_STEP_TOKENS[1]
        self.limits = PlanLimits(
            max_num_seqs=num_rows,
            max_num_batched_tokens=config.max_num_batched_tokens or default_tokens,
            max_model_len=self.cache_size.max_model_len,
            num_blocks=self.cache_size.num_blocks,
            block_size=config.block_size,
            vocab_size=shape.vocab_size,
        )

    def _runner(self, limits: PlanLimits) -> Runner:
        layers, dtype = self.model.attention_layers, DTYPES[self.cache_dtype_name]
        cache = [_allocate(layer, limits, dtype, self.device) for layer in layers]
        ops = TorchOps(self.weights, cache, layers, self._functions)
        return Runner(self.model, ops, limits, self._num_reachable(), self.device)

    def _num_reachable(self) -> int:
        vocab = self.model_config.vocab_size
        return min(self.config.tokenizer_vocab_size or vocab, vocab)

    def _fit_budget(self, runner: Runner) -> None:
        """Warm up and, unless the configuration says it, set the step's token budget by the measured rate."""
        num_tokens = tokens_in(sizing.CPU_STEP_S, runner.run, self.limits)
        if self.config.max_num_batched_tokens is None:
            least, most = sizing.CPU_STEP_TOKENS
            budget = max(min(max(num_tokens, least), most), self.limits.max_num_seqs)
            self.limits = replace(self.limits, max_num_batched_tokens=budget)

    def _executor_facts(self, kernels: tuple[KernelChoice, ...], workspace: int) -> ExecutorFacts:
        no_masks = "the torch executor takes no grammar masks yet"
        return ExecutorFacts(
            limits=self.limits,
            device=self.device.name,
            dtype=self.dtype_name,
            cache_dtype=self.cache_dtype_name,
            block_bytes=self.cache_size.block_bytes,
            memory_bytes={
                "weights": num_bytes(self.weights),
                "kv": self.cache_size.num_blocks * self.cache_size.block_bytes,
                "workspace": workspace,
            },
            weights_identity=weights_identity(self.opened),
            kernels=kernels,
            capabilities={"structured_outputs": (False, no_masks)},
            details={"architecture": self.model_config.architecture, "threads": torch.get_num_threads()},
        )


def _choose_dtype(config: EngineConfig, published: str | None) -> str:
    """Return the dtype of weights and activations.

    `auto` is float32 on a CPU: quantised weights expand to it exactly, and without bf16 instructions torch's bf16
    products were measured no faster (two AVX2 cores, 135 M weights, 1 to 64 tokens). On CUDA it is the type the weights
    were published in, bfloat16 where the files do not say or say float32.
    """
    if config.dtype != "auto":
        return config.dtype
    if config.device == "cpu":
        return "float32"
    return "float16" if published == "float16" else "bfloat16"


def _choose_cache_dtype(config: EngineConfig, dtype: str) -> str:
    if config.kv_cache_dtype == "auto":
        return dtype
    if config.kv_cache_dtype not in DTYPES:
        known = ", ".join(["auto", *DTYPES])
        raise StartFailed("start_config", f"kv_cache_dtype {config.kv_cache_dtype!r} is not supported; {known} are")
    return config.kv_cache_dtype


def _allocate(layer: AttentionLayer, limits: PlanLimits, dtype: torch.dtype, device: Device) -> LayerCache:
    """Zeroed, so that the memory is really there when the engine says it is ready."""
    shape = (limits.num_blocks * limits.block_size, layer.num_kv_heads * layer.head_dim)
    return LayerCache(*(torch.zeros(shape, dtype=dtype, device=device.torch_device) for _ in range(2)))


def _free_cuda_bytes(config: EngineConfig, workspace: int) -> int:
    """What the share of the device's memory leaves for the cache; the share counts what others hold already."""
    free, total = torch.cuda.mem_get_info()
    held_by_all = total - free
    left = int(total * config.gpu_memory_utilization) - held_by_all - workspace
    if left <= 0:
        raise StartFailed(
            "start_memory",
            f"gpu_memory_utilization {config.gpu_memory_utilization} of {total} bytes leaves nothing for the KV cache: "
            f"{held_by_all} bytes are taken and a step needs {workspace}",
        )
    return left
