"""The engine's one loop: receive, plan and launch, then apply the step before and send.

Step N + 1 is planned and launched before step N's tokens are read; while a step runs the loop waits for it and for the
socket together. Nothing here waits blindly: every wait ends with a message, a finished step, or a time that is due.
"""

from __future__ import annotations

import gc
import time

import zmq

from proa.engine.core import EngineCore, State

#: Least time between two messages that only carry changed gauges.
GAUGE_INTERVAL_MS = 100


def run(core: EngineCore, heartbeat_ms: int) -> None:
    """Serve until the front end says Shutdown. Raises whatever a whole step raises."""
    poller = zmq.Poller()
    poller.register(core.transport.socket, zmq.POLLIN)
    poller.register(core.executor.completion_fd, zmq.POLLIN)
    gc.freeze()
    gc.disable()  # collections happen when idle, never between two tokens
    while core.state is not State.STOPPED:
        for message in core.transport.receive():
            core.handle(message)
        launched = core.submit_next()
        if core.in_flight and (len(core.in_flight) == 2 or not launched):
            _wait_for_step(core, poller, heartbeat_ms)
            core.finish_step()
        elif not core.in_flight:
            if core.has_news:
                core.report()
            if core.state is State.DRAINING and not core.scheduler.has_work:
                return
            _wait_for_work(core, poller, heartbeat_ms)
        if core.stop_at_ns is not None and time.monotonic_ns() >= core.stop_at_ns:
            return


def _wait_for_step(core: EngineCore, poller: zmq.Poller, heartbeat_ms: int) -> None:
    """Return when the oldest step can be collected; meanwhile take messages and send heartbeats."""
    while True:
        ready = dict(poller.poll(heartbeat_ms))
        if core.executor.completion_fd in ready:
            return
        if core.transport.socket in ready:
            for message in core.transport.receive():
                core.handle(message)
        elif _since_ms(core.last_sent_ns) >= heartbeat_ms:
            core.report()


def _wait_for_work(core: EngineCore, poller: zmq.Poller, heartbeat_ms: int) -> None:
    """Return when a message has come or something is due."""
    changed = core.stats.gauges_differ(core.scheduler)
    if changed and _since_ms(core.last_sent_ns) >= GAUGE_INTERVAL_MS:
        core.report()
        changed = False
    if not core.scheduler.has_work and not changed:
        gc.collect(1)
    busy = changed or core.scheduler.has_work or core.stop_at_ns is not None
    if not poller.poll(GAUGE_INTERVAL_MS if busy else heartbeat_ms) and _since_ms(core.last_sent_ns) >= heartbeat_ms:
        core.report()


def _since_ms(stamp_ns: int) -> int:
    return (time.monotonic_ns() - stamp_ns) // 1_000_000
