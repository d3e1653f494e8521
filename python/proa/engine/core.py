"""The engine's state and what each message does to it. The loop (loop.py) decides when."""

from __future__ import annotations

import time
from collections import deque
from enum import Enum

import numpy as np

from proa.engine.intake import IntakeLimits, to_requests
from proa.engine.outputs import to_outputs
from proa.engine.stats import Phase, StatsBook
from proa.engine.utility import call_utility
from proa.errors import AbortCause, FinishCode
from proa.executor.interface import Executor, Ticket
from proa.sched.apply import apply, idle_events
from proa.sched.events import StepEvents
from proa.sched.plan import StepPlan
from proa.sched.plan_check import check_plan
from proa.sched.scheduler import Scheduler
from proa.transport import Transport
from proa.wire import Abort, AddRequests, Hello, Message, Shutdown, ShutdownMode, Utility


class State(Enum):
    """What the loop goes on for."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class EngineCore:
    """Scheduler, executor and socket of one engine, joined."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, transport: Transport, stats: StatsBook, limits: IntakeLimits
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.transport = transport
        self.stats = stats
        self.limits = limits
        self.state = State.RUNNING
        self.checks_plans = False
        self.in_flight: deque[tuple[StepPlan, Ticket, int]] = deque()
        self.stop_at_ns: int | None = None
        self.last_sent_ns = time.monotonic_ns()
        self._previous: StepPlan | None = None

    # ---- messages ---------------------------------------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """Do what a message of the front end asks; a bad request harms only itself."""
        if isinstance(message, AddRequests):
            self._add(message)
        elif isinstance(message, Abort):
            for key, cause in zip(message.request_key.tolist(), message.cause.tolist(), strict=True):
                # The front end has closed the record: no row is owed. Causes are a closed list, checked by decode.
                assert AbortCause(cause)
                self.scheduler.end(key, None)
        elif isinstance(message, Utility):
            self.transport.send(call_utility(self, message))
        elif isinstance(message, Shutdown):
            self.stop_at_ns = time.monotonic_ns() + message.deadline_ms * 1_000_000
            self.state = State.DRAINING if message.mode is ShutdownMode.DRAIN else State.STOPPED
        elif isinstance(message, Hello):
            self.transport.bad_frames["kind"] += 1  # a second Hello says nothing new

    def _add(self, message: AddRequests) -> None:
        requests, refused = to_requests(message, self.limits, time.monotonic_ns())
        for key, reason in refused:
            self.scheduler.end_unknown(key, FinishCode.REFUSED, reason)
        for request in requests:
            if self.scheduler.knows(request.key):
                continue  # a key is never used twice; the first request keeps it
            self.scheduler.add(request)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def submit_next(self) -> bool:
        """Plan and launch the next step, if there is one and the front end takes what it will give."""
        if not self.transport.can_send:
            return False
        start = time.monotonic_ns()
        plan = self.scheduler.schedule(start)
        now = self.stats.spend(Phase.SCHEDULE, start)
        if plan is None:
            return False
        if self.checks_plans:
            check_plan(plan, self.scheduler.limits, self._previous)
        self._previous = plan
        self.in_flight.append((plan, self.executor.submit(plan), now))
        self.stats.spend(Phase.SUBMIT, now)
        return True

    def finish_step(self) -> None:
        """Collect the oldest step, apply it and tell the front end."""
        plan, ticket, _ = self.in_flight.popleft()
        start = time.monotonic_ns()
        result = self.executor.collect(ticket)
        now = self.stats.spend(Phase.WAIT, start)
        events = apply(self.scheduler, plan, result)
        self.stats.count_step(result.mode)
        stamp = self.stats.spend(Phase.APPLY, now)
        self._send(events, plan, stamp)
        self.stats.spend(Phase.SEND, stamp)

    def report(self) -> None:
        """Tell the front end what no step will tell: ended requests, stamps, changed gauges, a heartbeat."""
        self._send(idle_events(self.scheduler), None, time.monotonic_ns())

    def _send(self, events: StepEvents, plan: StepPlan | None, stamp_ns: int) -> None:
        stats = self.stats.snapshot(self.scheduler, plan, self.step_age_ms(stamp_ns))
        self.transport.send(to_outputs(events, stats, stamp_ns, self.limits.plan.vocab_size))
        self.last_sent_ns = stamp_ns

    def step_age_ms(self, now_ns: int) -> int:
        """How long the oldest outstanding step has run; 0 between steps."""
        return max(now_ns - self.in_flight[0][2], 0) // 1_000_000 if self.in_flight else 0

    @property
    def has_news(self) -> bool:
        """Whether requests ended or were stamped outside of a step."""
        return bool(self.scheduler.ended or self.scheduler.stamps)

    def keys_in_flight(self) -> np.ndarray:
        """Request keys of the steps outstanding, u64."""
        keys = [self.scheduler.rows.key[plan.row] for plan, _, _ in self.in_flight]
        return np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.uint64)
