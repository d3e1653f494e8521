"""From a configuration document to a serving engine: handshake, executor, scheduler, loop, and how it ends.

Exit codes: 0 after Shutdown (or when the parent is gone), 1 after a failed step or a bug, 2 when the start is refused
and must not be tried again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import time
import traceback

import zmq

from proa import __version__
from proa.config.engine_config import EngineConfig, parse
from proa.engine.core import EngineCore
from proa.engine.intake import IntakeLimits
from proa.engine.loop import run
from proa.engine.stats import StatsBook
from proa.errors import EngineStartError, FailureKind
from proa.executor.interface import Executor, ExecutorFacts, StartFailed, StepFailed
from proa.executor.select import make_executor
from proa.sched.scheduler import Scheduler, SchedulerConfig
from proa.transport import Transport, draw_incarnation
from proa.wire import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Cache,
    Capability,
    EngineFacts,
    EngineFailed,
    Hello,
    Ready,
)

_KNOCK_INTERVAL_MS = 1000
_LOADING_INTERVAL_NS = 100_000_000
_EXIT_FAILED = 1
_EXIT_REFUSED = 2


class Start:
    """One start of an engine: its phases, timed, and what is told of them."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.incarnation = draw_incarnation()
        self.transport = Transport(config.connect, config.engine_index, self.incarnation)
        self.phases: list[dict[str, object]] = []
        self._phase = "config"
        self._since_ns = time.monotonic_ns()
        self._told_ns = 0

    def report(self, phase: str, progress: float | None) -> None:
        """Tell the front end where the start is; called by the executor."""
        now = time.monotonic_ns()
        if phase != self._phase:
            self.close_phase()
            self._phase = phase
        elif now - self._told_ns < _LOADING_INTERVAL_NS:
            return
        self._told_ns = now
        self.transport.send(self._ready(phase, progress, None))

    def close_phase(self) -> None:
        """Note how long the running phase took."""
        now = time.monotonic_ns()
        self.phases.append({"phase": self._phase, "ms": (now - self._since_ns) / 1e6})
        self._since_ns = now

    def _ready(self, phase: str, progress: float | None, facts: EngineFacts | None) -> Ready:
        version = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
        return Ready(*version, self.config.engine_index, self.incarnation, phase, progress, facts)

    def say_ready(self, facts: ExecutorFacts) -> None:
        """Send the one message after which requests may come."""
        self.close_phase()
        self.transport.send(self._ready(self._phase, 1.0, _engine_facts(self.config, facts, self.phases)))

    def fail(self, kind: FailureKind, cause: str, core: EngineCore | None = None) -> None:
        """Send the last word; the traceback is that of the exception being handled."""
        keys = core.keys_in_flight() if core is not None else None
        failed = EngineFailed(cause.splitlines()[0] if cause else kind.value, kind, traceback.format_exc())
        if keys is not None:
            failed.request_key = keys
        self.transport.send(failed)


def main(config_text: str) -> int:
    """Run an engine to its end and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's: it drains, then says Shutdown
    try:
        config = parse(config_text)
    except EngineStartError as error:
        print(f"proa engine: {error.cause}", flush=True)
        return _EXIT_REFUSED
    start = Start(config)
    try:
        return _serve(start)
    finally:
        start.transport.close()


def _serve(start: Start) -> int:
    config = start.config
    hello = _shake_hands(start)
    if hello is None:
        return 0
    start.transport.peer_minor = hello.protocol_minor
    executor: Executor | None = None
    try:
        if hello.protocol_major != PROTOCOL_MAJOR:
            versions = f"the front end speaks {hello.protocol_major}, this engine {PROTOCOL_MAJOR}"
            raise StartFailed("start_config", f"wire protocol: {versions}")
        executor = make_executor(config)
        facts = executor.start(start.report)
        core = _make_core(config, start, executor, facts)
        start.say_ready(facts)
    except StartFailed as error:
        start.fail(FailureKind(error.kind), str(error))
        if executor is not None:
            executor.close()
        return _EXIT_REFUSED if error.kind in ("start_config", "start_plugin") else _EXIT_FAILED
    return _loop(start, core, hello.heartbeat_ms)


def _loop(start: Start, core: EngineCore, heartbeat_ms: int) -> int:
    try:
        run(core, heartbeat_ms)
        return 0
    except StepFailed as error:
        start.fail(FailureKind.STEP_FAILED, str(error), core)
    except Exception as error:  # the process ends either way: say why first
        start.fail(FailureKind.INTERNAL, f"{type(error).__name__}: {error}", core)
    finally:
        core.executor.close()
    return _EXIT_FAILED


def _shake_hands(start: Start) -> Hello | None:
    """Knock every second until Hello comes; None if the parent is gone."""
    while True:
        if start.config.parent_pid and os.getppid() != start.config.parent_pid:
            return None
        start.transport.knock()
        start.transport.socket.poll(_KNOCK_INTERVAL_MS, zmq.POLLIN)
        for message in start.transport.receive():
            if isinstance(message, Hello):
                return message
            start.transport.bad_frames["kind"] += 1


def _make_core(config: EngineConfig, start: Start, executor: Executor, facts: ExecutorFacts) -> EngineCore:
    chunk = config.max_prefill_chunk or facts.limits.max_num_batched_tokens
    policy = SchedulerConfig(min(chunk, facts.limits.max_num_batched_tokens), config.enable_prefix_caching)
    scheduler = Scheduler(facts.limits, policy)
    limits = IntakeLimits(facts.limits, config.max_logprobs, config.scheduling_policy == "priority")
    core = EngineCore(scheduler, executor, start.transport, StatsBook(start.incarnation), limits)
    core.checks_plans = config.debug_kernels
    return core


def _engine_facts(config: EngineConfig, facts: ExecutorFacts, phases: list[dict[str, object]]) -> EngineFacts:
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
