"""The executor's protocol: what the engine loop may ask of whatever runs the model.

The null, torch and (later) native CPU executors all stand behind it. The loop knows no device, no tensor and no model;
it is chosen by name in `executor/select.py`, so that only the chosen one is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from proa.sched.plan import PlanLimits, StepPlan, StepResult

#: Called while an executor starts: (phase, progress 0..1 or None). Phases as in wire.md section 2.
ReportPhase = Callable[[str, float | None], None]


@dataclass(slots=True, frozen=True)
class Ticket:
    """A submitted step, to be collected exactly once, in the order of submission."""

    step: int


@dataclass(slots=True, frozen=True)
class KernelChoice:
    """One line of the start-up report: which implementation an op got, and why."""

    op: str
    implementation: str
    reason: str


@dataclass(slots=True, frozen=True)
class ExecutorFacts:
    """What a started executor really has; the scheduler and `Ready` are built from it.

    Attributes:
        limits: rows, tokens, context, blocks, vocabulary.
        device: `cpu`, `cuda`, `null`.
        dtype: of the activations, `float32`, `bfloat16` or `float16`.
        cache_dtype: of K and V.
        block_bytes: KV bytes of one block over all layers.
        memory_bytes: the ledger: `weights`, `kv`, `workspace`, all in bytes.
        weights_identity: any bytes that change when the weights change.
        kernels: every choice with its reason.
        capabilities: optional feature -> (works, reason when it does not).
        details: facts for the report that no code decides on (thread count, instruction sets, file sizes).
    """

    limits: PlanLimits
    device: str
    dtype: str
    cache_dtype: str
    block_bytes: int
    memory_bytes: dict[str, int]
    weights_identity: bytes
    kernels: tuple[KernelChoice, ...] = ()
    capabilities: dict[str, tuple[bool, str]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


class StepFailed(Exception):
    """A whole step failed on the device; the engine reports `step_failed` and ends. The message is one line."""


class StartFailed(Exception):
    """The executor cannot start.

    Attributes:
        kind: `start_config`, `start_device`, `start_weights` or `start_memory` (wire.md section 4).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Executor(Protocol):
    """Runs steps in the order of submission; at most two tickets are outstanding.

    All methods are called from the engine's one step thread.
    """

    @property
    def completion_fd(self) -> int:
        """A descriptor that is readable whenever the oldest outstanding ticket can be collected without waiting.

        It is level-triggered and polled together with the socket; only `collect` consumes it.
        """
        ...

    def start(self, report: ReportPhase) -> ExecutorFacts:
        """Load weights, allocate all memory, warm up. Called once, before anything else. Raises `StartFailed`."""
        ...

    def submit(self, plan: StepPlan) -> Ticket:
        """Enqueue a step and return at once; the plan stays unchanged until it has been collected."""
        ...

    def masks(self, ticket: Ticket, buffer: NDArray[np.uint32]) -> None:
        """Hand over the grammar masks of a submitted step (bit set = allowed), u32[S, ceil(vocab / 32)].

        May follow while the step runs; the sampler waits for it when the plan asked for masks.
        """
        ...

    def collect(self, ticket: Ticket) -> StepResult:
        """Return the result of the oldest outstanding ticket, waiting for it if need be. Raises `StepFailed`."""
        ...

    def close(self) -> None:
        """Wait for what runs, then give everything back. Idempotent."""
        ...
