"""The way from a knock to `Ready`: handshake, phases with their times, and what may end a start early."""

from __future__ import annotations

import os
import time

from proa.config.engine_config import EngineConfig
from proa.engine.facts import engine_facts
from proa.engine.waiter import Waiter
from proa.executor.interface import ExecutorFacts
from proa.transport import Transport, draw_incarnation
from proa.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Abort, EngineFacts, Hello, Ready, Shutdown

_KNOCK_INTERVAL_MS = 1000
_LOADING_INTERVAL_NS = 100_000_000


class StartEnded(Exception):
    """The front end said Shutdown, or is gone, before the engine was ready."""


class Start:
    """One start of an engine.

    Attributes:
        incarnation: number of this process.
        phases: {phase, ms} of each phase that has ended.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.incarnation = draw_incarnation()
        self.transport = Transport(config.connect, config.engine_index, self.incarnation)
        self.phases: list[dict[str, object]] = []
        self._phase = "config"
        self._since_ns = time.monotonic_ns()
        self._told_ns = 0

    def shake_hands(self) -> Hello:
        """Knock every second until Hello comes."""
        waiter = Waiter(self.transport, None)
        while True:
            self.transport.knock()
            waiter.wait(_KNOCK_INTERVAL_MS)
            hello = self._listen()
            if hello is not None:
                self.transport.peer_minor = hello.protocol_minor
                return hello

    def report(self, phase: str, progress: float | None) -> None:
        """Tell the front end where the start is; called by the executor. Raises `StartEnded`."""
        self._listen()
        now = time.monotonic_ns()
        if phase != self._phase:
            self._close_phase()
            self._phase = phase
        elif now - self._told_ns < _LOADING_INTERVAL_NS:
            return
        self._told_ns = now
        self.transport.send(self._ready(progress, None))

    def say_ready(self, facts: ExecutorFacts) -> None:
        """Send the one message after which requests may come."""
        self._listen()
        self._close_phase()
        self.transport.send(self._ready(1.0, engine_facts(self.config, facts, self.phases)))

    def _close_phase(self) -> None:
        now = time.monotonic_ns()
        self.phases.append({"phase": self._phase, "ms": (now - self._since_ns) / 1e6})
        self._since_ns = now

    def _ready(self, progress: float | None, facts: EngineFacts | None) -> Ready:
        version = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
        return Ready(*version, self.config.engine_index, self.incarnation, self._phase, progress, facts)

    def _listen(self) -> Hello | None:
        """Take in what has come: Hello, heartbeats and Shutdown; anything else is too early."""
        if parent_is_gone(self.config.parent_pid):
            raise StartEnded
        hello: Hello | None = None
        for message in self.transport.receive():
            if isinstance(message, Shutdown):
                raise StartEnded
            if isinstance(message, Hello) and hello is None and not self.phases:
                hello = message
            elif not (isinstance(message, Abort) and len(message.request_key) == 0):
                self.transport.count_bad("kind", f"{type(message).__name__} before the engine is ready")
        return hello


def parent_is_gone(parent_pid: int) -> bool:
    """Whether the process this one must not outlive has died; `parent_pid` 0 = there is none."""
    return parent_pid != 0 and os.getppid() != parent_pid
