"""From a configuration document to a serving engine, and how it ends.

Exit codes: 0 after Shutdown (or when the parent is gone), 1 after a failed step, a failed start that may be tried again
or a bug, 2 when the start is refused and must not be tried again.
"""

from __future__ import annotations

import logging
import signal
import sys
import traceback

from proa import env
from proa.config.engine_config import EngineConfig, parse
from proa.engine.core import EngineCore
from proa.engine.intake import IntakeLimits
from proa.engine.loop import run
from proa.engine.start import Start, StartEnded
from proa.errors import EngineStartError, FailureKind
from proa.executor.interface import Executor, ExecutorFacts, StartFailed, StepFailed
from proa.executor.select import make_executor
from proa.sched.scheduler import Scheduler, SchedulerConfig
from proa.wire import PROTOCOL_MAJOR, EngineFailed, Hello

_EXIT_FAILED = 1
_EXIT_REFUSED = 2
_NEVER_RETRIED = (FailureKind.START_CONFIG, FailureKind.START_PLUGIN)
_LOG = logging.getLogger("proa.engine")


def main(config_text: str) -> int:
    """Run an engine to its end and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's: it drains, then says Shutdown
    level = env.read("PROA_LOG_LEVEL").upper()
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = parse(config_text)
    except EngineStartError as error:
        _LOG.error("%s", error.cause)
        return _EXIT_REFUSED
    start = Start(config)
    try:
        return _serve(start)
    except StartEnded:
        return 0  # in the handshake
    finally:
        start.transport.close()


def _serve(start: Start) -> int:
    hello = start.shake_hands()
    executor: Executor | None = None
    core: EngineCore | None = None
    try:
        _check_version(hello)
        executor = make_executor(start.config)
        facts = executor.start(start.report)
        core = _make_core(start, executor, facts)
        core.heartbeat_ns = max(hello.heartbeat_ms, 1) * 1_000_000
        start.say_ready(facts)
        run(core)
        return 0
    except StartFailed as error:
        kind = FailureKind(error.kind)
        _fail(start, kind, str(error))
        return _EXIT_REFUSED if kind in _NEVER_RETRIED else _EXIT_FAILED
    except StepFailed as error:
        _fail(start, FailureKind.STEP_FAILED, str(error), core)
        return _EXIT_FAILED
    except StartEnded:
        return 0
    except Exception as error:  # a bug: the process ends, but says why first
        kind = FailureKind.START_MEMORY if core is None and isinstance(error, MemoryError) else FailureKind.INTERNAL
        _fail(start, kind, f"{type(error).__name__}: {error}", core)
        raise
    finally:
        if executor is not None:
            executor.close()


def _fail(start: Start, kind: FailureKind, cause: str, core: EngineCore | None = None) -> None:
    """Send the last word; the traceback is that of the exception being handled."""
    line = cause.splitlines()[0] if cause else kind.value
    _LOG.error("%s: %s", kind.value, line)
    failed = EngineFailed(line, kind, traceback.format_exc())
    if core is not None:
        failed.request_key = core.keys_in_flight()
    start.transport.send(failed)


def _check_version(hello: Hello) -> None:
    if hello.protocol_major != PROTOCOL_MAJOR:
        versions = f"the front end speaks {hello.protocol_major}, this engine {PROTOCOL_MAJOR}"
        raise StartFailed("start_config", f"wire protocol: {versions}")


def _make_core(start: Start, executor: Executor, facts: ExecutorFacts) -> EngineCore:
    config = start.config
    policy = _policy(config, facts)
    limits = IntakeLimits(facts.limits, config.max_logprobs, config.scheduling_policy == "priority")
    core = EngineCore(Scheduler(facts.limits, policy), executor, start.transport, limits, start.incarnation)
    core.parent_pid = config.parent_pid
    core.checks_plans = config.debug_kernels
    return core


def _policy(config: EngineConfig, facts: ExecutorFacts) -> SchedulerConfig:
    most = facts.limits.max_num_batched_tokens
    return SchedulerConfig(min(config.max_prefill_chunk or most, most), config.enable_prefix_caching)
