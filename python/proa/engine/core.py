"""The engine's state and what each message does to it. The loop (loop.py) decides when."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
from numpy.typing import NDArray

from proa.engine.intake import IntakeLimits, to_requests
from proa.engine.outputs import to_outputs
from proa.engine.progress import ProgressBook
from proa.engine.start import parent_is_gone
from proa.engine.stats import Phase, StatsBook
from proa.engine.utility import call_utility
from proa.errors import FinishCode
from proa.executor.interface import Executor, Ticket
from proa.sched.apply import apply, idle_events
from proa.sched.events import StepEvents
from proa.sched.plan import StepPlan
from proa.sched.plan_check import check_plan
from proa.sched.scheduler import Scheduler
from proa.transport import Transport, Unreadable
from proa.wire import Abort, AddRequests, Message, Shutdown, ShutdownMode, Utility

#: Steps outstanding at most: one runs, one waits for it on the device.
MAX_IN_FLIGHT = 2
#: Least time between two messages that only carry changed gauges.
_GAUGE_INTERVAL_NS = 100_000_000


class EngineCore:
    """Scheduler, executor and socket of one engine, joined.

    Attributes:
        clears_cache: the prefix cache is to be dropped when the pause has been reached.
        num_applied: steps applied.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, transport: Transport, limits: IntakeLimits, incarnation: int
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.transport = transport
        self.limits = limits
        self.stats = StatsBook(incarnation, limits.plan.num_blocks)
        self.progress = ProgressBook()
        self.clears_cache = False
        self.checks_plans = False
        self.heartbeat_ns = 1_000_000_000
        self.parent_pid = 0
        self.num_applied = 0
        self._in_flight: deque[tuple[StepPlan, Ticket]] = deque()
        self._previous: StepPlan | None = None
        self._running_since_ns = 0
        self._last_sent_ns = time.monotonic_ns()
        self._stop_at_ns: int | None = None
        self._drains = False

    # ---- messages ---------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Do what the front end has asked meanwhile."""
        for message in self.transport.receive():
            self._handle(message)
        if self.clears_cache and self.scheduler.is_paused:
            self.clears_cache = False
            self.scheduler.pool.reset_cache()

    def _handle(self, message: Message | Unreadable) -> None:
        if isinstance(message, AddRequests):
            self._add(message)
        elif isinstance(message, Abort):
            for key in message.request_key.tolist():
                self.scheduler.abort(key)  # the front end has closed the record: no row is owed, whatever the cause
        elif isinstance(message, Utility):
            self.transport.send(call_utility(self, message))
        elif isinstance(message, Shutdown):
            self._stop_at_ns = time.monotonic_ns() + message.deadline_ms * 1_000_000
            self._drains = message.mode is ShutdownMode.DRAIN
        elif isinstance(message, Unreadable):
            for key in message.keys:
                self.scheduler.refuse(key, FinishCode.REFUSED, message.reason)
        else:
            self.transport.count_bad("kind", f"{type(message).__name__} to a running engine")

    def _add(self, message: AddRequests) -> None:
        requests, refused = to_requests(message, self.limits, time.monotonic_ns())
        good = {request.key for request in requests}
        for request in requests:
            if not self.scheduler.knows(request.key):  # an open key keeps its first request
                self.scheduler.add(request)
                self.progress.watch(request)
        for refusal in refused:
            if refusal.key not in good:
                self.scheduler.refuse(refusal.key, refusal.finish, refusal.reason)

    @property
    def has_ended(self) -> bool:
        """Whether the loop must return: a Shutdown is carried out, or the parent is gone."""
        if parent_is_gone(self.parent_pid):
            return True
        if self._stop_at_ns is None:
            return False
        open_ends = self.scheduler.has_work or self._in_flight or self.scheduler.ended
        is_done = not (self._drains and open_ends)
        return is_done or time.monotonic_ns() >= self._stop_at_ns

    # ---- steps ------------------------------------------------------------------------------------------------------

    @property
    def may_launch(self) -> bool:
        """Whether a further step may be outstanding."""
        return len(self._in_flight) < MAX_IN_FLIGHT

    def launch(self) -> bool:
        """Plan and submit the next step, if there is one and the front end takes what it will give."""
        if not self.may_launch or not self.transport.has_room:
            return False
        start = time.monotonic_ns()
        plan = self.scheduler.schedule(start)
        now = self.stats.spend(Phase.SCHEDULE, start)
        if plan is None:
            return False
        if self.checks_plans:
            check_plan(plan, self.scheduler.limits, self._previous)
            self._previous = plan
        if not self._in_flight:
            self._running_since_ns = now
        self._in_flight.append((plan, self.executor.submit(plan)))
        self.stats.spend(Phase.SUBMIT, now)
        return True

    def finish_step(self) -> None:
        """Collect the oldest step, apply it and tell the front end."""
        plan, ticket = self._in_flight[0]
        start = time.monotonic_ns()
        result = self.executor.collect(ticket)
        now = self.stats.spend(Phase.WAIT, start)
        self._in_flight.popleft()
        self._running_since_ns = now
        events = apply(self.scheduler, result)
        self.num_applied += 1
        self.stats.count_step(result.mode)
        stamp = self.stats.spend(Phase.APPLY, now)
        self._send(events, plan, stamp)
        self.stats.spend(Phase.SEND, stamp)

    def _send(self, events: StepEvents, plan: StepPlan | None, now_ns: int) -> None:
        stats = self.stats.snapshot(self, plan, self._step_age_ms(now_ns))
        outputs = to_outputs(events, stats, now_ns, self.limits.plan.vocab_size)
        outputs.progress = self.progress.group(self.scheduler, now_ns)
        self.transport.send(outputs)
        self._last_sent_ns = now_ns

    def _step_age_ms(self, now_ns: int) -> int:
        """How long the step now running has run; 0 between steps."""
        return max(now_ns - self._running_since_ns, 0) // 1_000_000 if self._in_flight else 0

    def keys_in_flight(self) -> NDArray[np.uint64]:
        """Request keys of the steps outstanding."""
        keys = [self.scheduler.rows.key[plan.row] for plan, _ in self._in_flight]
        return np.unique(np.concatenate(keys)) if keys else np.zeros(0, np.uint64)

    # ---- between steps ----------------------------------------------------------------------------------------------

    def prepare_wait(self) -> int:
        """Tell the front end what must not wait for a step; returns the most milliseconds the loop may rest."""
        now = time.monotonic_ns()
        self.scheduler.expire(now)
        due = self._next_message_ns()
        if not self.transport.has_room:
            due = now + self.heartbeat_ns  # a message would only lengthen the queue; room ends the wait
        elif now >= due:
            self._send(idle_events(self.scheduler), None, now)
            due = self._next_message_ns()
        for other in (self.scheduler.next_deadline_ns, self._stop_at_ns):
            if other is not None:
                due = min(due, other)
        return max(-(-(due - now) // 1_000_000), 0)

    def _next_message_ns(self) -> int:
        """When the front end must hear something, if no step ends before."""
        if self.scheduler.ended or (self.scheduler.stamps and not self._in_flight):
            return self._last_sent_ns
        due = self._last_sent_ns + self.heartbeat_ns
        soon = self._last_sent_ns + _GAUGE_INTERVAL_NS
        progress_ns = self.progress.due_ns
        if progress_ns is not None:
            due = min(due, max(progress_ns, soon))
        if self.scheduler.stamps or self.stats.gauges_differ(self.scheduler):
            due = min(due, soon)
        return due
