"""The native CPU executor: models on kernels of our own, one native call a step, no torch in the process.

Owns the order of a start and the threads' number. The program is recorded from the model, the weights stay in the form
of the file (quantised ones are repacked once), and the runner's own threads execute the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proa._rust import ModelError, open_model
from proa.config.engine_config import EngineConfig
from proa.config.model_config import ModelConfig, model_config
from proa.executor.interface import ExecutorFacts, KernelChoice, ReportPhase, StartFailed, StepFailed, Ticket
from proa.models.select import make_model
from proa.ops.cpu import library
from proa.ops.cpu.runner import CacheType, CpuRunner, RunnerConfig, RunnerError, Weights
from proa.ops.interface import Model, Parameter
from proa.program.fuse import Unfusable
from proa.program.native import Source, build
from proa.program.record import record
from proa.sched.plan import PlanLimits, StepPlan, StepResult
from proa.weights.dequantise import UnknownType, expand
from proa.weights.files import find_tensors, modules_with_bias, rope_factors
from proa.worker import sizing
from proa.worker.host import num_cores

if TYPE_CHECKING:
    from proa._rust import Tensor

#: Types the kernels read, by GGUF's numbers.
TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "BF16": 30,
}
_CACHE_TYPES = {"float32": CacheType.FLOAT32, "float16": CacheType.FLOAT16, "bfloat16": CacheType.BFLOAT16}
_CACHE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Tokens a step by default: some 250 ms of the default model on two cores.
_STEP_TOKENS = 256
_BLOCK_MULTIPLE = 16


class CpuExecutor:
    """See `Executor`."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._runner: CpuRunner | None = None
        self._tensors: dict[str, Tensor] = {}

    @property
    def completion_fd(self) -> int:
        """See `Executor`."""
        return self._started.completion_fd

    @property
    def _started(self) -> CpuRunner:
        assert self._runner is not None, "started before it is asked"
        return self._runner

    def start(self, report: ReportPhase) -> ExecutorFacts:
        """See `Executor`."""
        config = self._config
        _check_choices(config)
        report("device", None)
        try:
            opened = open_model(config.model_path)
        except ModelError as error:
            raise StartFailed("start_weights", str(error)) from error
        shape = model_config(opened.config)
        model: Model = make_model(shape, modules_with_bias(opened), rope_factors(opened))
        is_gguf = opened.format == "gguf"
        if is_gguf and shape.rope_dim != shape.head_dim:
            raise StartFailed("start_config", f"a GGUF rope of {shape.rope_dim} in heads of {shape.head_dim} numbers")
        report("weights", None)
        self._tensors = {parameter.name: tensor for parameter, tensor in find_tensors(opened, model.parameters)}
        limits = self._limits(model, shape)
        try:
            self._runner = CpuRunner(self._runner_config(limits))
            source = Source(self._matrix, self._vector, is_gguf, limits.max_model_len)
            build(self._runner, record(model), model.attention_layers, source)
        except (RunnerError, Unfusable) as error:
            kind = "start_config" if isinstance(error, Unfusable) else "start_memory"
            raise StartFailed(kind, str(error)) from error
        report("kv", None)
        return self._facts(limits, model, shape)

    def submit(self, plan: StepPlan) -> Ticket:
        """See `Executor`."""
        self._started.submit(plan)
        return Ticket(plan.step)

    def masks(self, ticket: Ticket, buffer: NDArray[np.uint32]) -> None:
        """See `Executor`; the capability table says that there are no grammars here."""
        raise StepFailed(f"step {ticket.step}: the CPU executor takes no grammar masks")

    def collect(self, ticket: Ticket) -> StepResult:
        """See `Executor`."""
        result = self._started.collect()
        assert result.step == ticket.step, "tickets are collected in order"
        return result

    def close(self) -> None:
        """See `Executor`."""
        if self._runner is not None:
            self._runner.close()

    # ---- what the program is built from -----------------------------------------------------------------------------

    def _matrix(self, parameter: Parameter) -> Weights:
        tensor = self._tensors[parameter.name]
        number = TYPES.get(tensor.type)
        if number is None:
            known = ", ".join(TYPES)
            raise StartFailed("start_weights", f"tensor {tensor.name} has type {tensor.type}; known: {known}")
        rows, cols = parameter.shape
        return Weights(number, rows, cols, np.frombuffer(memoryview(tensor), np.uint8))

    def _vector(self, parameter: Parameter) -> NDArray[np.float32]:
        tensor = self._tensors[parameter.name]
        try:
            values = expand(np.frombuffer(memoryview(tensor), np.uint8), tensor.type, tensor.shape).values
        except UnknownType as error:
            raise StartFailed("start_weights", f"tensor {tensor.name}: {error}") from error
        if values.dtype == np.uint16:  # bf16 by its bits
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(values, np.float32)

    def _limits(self, model: Model, shape: ModelConfig) -> PlanLimits:
        config = self._config
        element = _CACHE_BYTES[_cache_dtype(config)]
        block_bytes = sizing.bytes_per_block(model.attention_layers, config.block_size, element)
        size = sizing.size_cache(config, shape.context_length, block_bytes, sizing.free_cpu_bytes())
        num_rows = config.max_num_seqs or sizing.DEFAULT_ROWS["cpu"]
        return PlanLimits(
            max_num_seqs=num_rows,
            max_num_batched_tokens=config.max_num_batched_tokens or max(_STEP_TOKENS, num_rows),
            max_model_len=size.max_model_len,
            num_blocks=size.num_blocks,
            block_size=config.block_size,
            vocab_size=shape.vocab_size,
        )

    def _runner_config(self, limits: PlanLimits) -> RunnerConfig:
        config = self._config
        return RunnerConfig(
            max_rows=limits.max_num_seqs,
            max_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            cache_type=_CACHE_TYPES[_cache_dtype(config)],
            vocab_size=limits.vocab_size,
            reachable_vocab=min(config.tokenizer_vocab_size or limits.vocab_size, limits.vocab_size),
            threads=config.threads or num_cores(),
            int8=config.cpu_activations != "f32",
            isa="" if config.cpu_isa == "auto" else config.cpu_isa,
        )

    def _facts(self, limits: PlanLimits, model: Model, shape: ModelConfig) -> ExecutorFacts:
        memory = self._started.memory_bytes()
        mapped = sum(tensor.nbytes for tensor in self._tensors.values() if tensor.type in ("F32", "F16", "BF16"))
        isa = self._started.isa
        int8 = self._config.cpu_activations != "f32"
        reason = "quantised weights meet int8 activations" if int8 else "activations stay in f32"
        kernels = (
            KernelChoice("program", "native", f"instruction set {isa}: {library.available_isas()} are here"),
            KernelChoice("linear", "int8" if int8 else "f32", reason),
        )
        identity = "/".join(sorted(f"{tensor.name}:{tensor.type}:{tensor.nbytes}" for tensor in self._tensors.values()))
        cache = _cache_dtype(self._config)
        return ExecutorFacts(
            limits=limits,
            device="cpu",
            dtype="float32",
            cache_dtype=cache,
            block_bytes=sizing.bytes_per_block(model.attention_layers, limits.block_size, _CACHE_BYTES[cache]),
            memory_bytes={"weights": memory["packed"] + mapped, "kv": memory["kv"], "workspace": memory["workspace"]},
            weights_identity=identity.encode(),
            kernels=kernels,
            capabilities={"structured_outputs": (False, "the CPU executor takes no grammar masks yet")},
            details={"architecture": shape.architecture, "threads": self._config.threads or num_cores(), "isa": isa},
        )


def _cache_dtype(config: EngineConfig) -> str:
    """`auto` is exact beside exact activations, and half as large otherwise."""
    if config.kv_cache_dtype == "auto":
        return "float32" if config.cpu_activations == "f32" else "bfloat16"
    return config.kv_cache_dtype


def _check_choices(config: EngineConfig) -> None:
    """Refuse what these kernels cannot honour, by name."""
    if config.dtype not in ("auto", "float32"):
        raise StartFailed("start_config", f"dtype {config.dtype}: only --executor torch computes in it on a CPU")
    if config.load_format != "auto":
        raise StartFailed("start_config", f"load_format {config.load_format}: the CPU executor reads files only")
    if config.kernel:
        ops = ", ".join(config.kernel)
        raise StartFailed("start_config", f"kernel {ops}: the CPU executor has one implementation of each op")
    if config.block_size % _BLOCK_MULTIPLE:
        raise StartFailed("start_config", f"block_size {config.block_size} is no multiple of {_BLOCK_MULTIPLE}")
    if config.kv_cache_dtype not in ("auto", *_CACHE_TYPES):
        known = ", ".join(["auto", *_CACHE_TYPES])
        raise StartFailed("start_config", f"kv_cache_dtype {config.kv_cache_dtype!r} is not supported; {known} are")
    isas = library.available_isas()
    if config.cpu_isa != "auto" and config.cpu_isa not in isas:
        raise StartFailed("start_config", f"cpu_isa {config.cpu_isa!r} is not here; {', '.join(isas)} are")
