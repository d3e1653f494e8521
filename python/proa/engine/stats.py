"""`SchedulerStats`: gauges after apply and totals since the process started (metrics-and-bench.md section 2)."""

from __future__ import annotations

import os
import resource
import time
from enum import IntEnum
from typing import TYPE_CHECKING

from proa.sched.plan import StepMode, StepPlan
from proa.sched.scheduler import Scheduler
from proa.sched.waiting import Cause
from proa.wire import SchedulerStats

if TYPE_CHECKING:
    from proa.engine.core import EngineCore

_PROCESS_INTERVAL_NS = 1_000_000_000


class Phase(IntEnum):
    """Parts of a step's CPU time, in the order of `SchedulerStats.step_ns`."""

    SCHEDULE = 0
    SUBMIT = 1
    WAIT = 2
    APPLY = 3
    SEND = 4


class StatsBook:
    """What the loop counts, and the snapshots made of it."""

    def __init__(self, incarnation: int, num_blocks: int) -> None:
        self._stats = SchedulerStats(
            incarnation=incarnation,
            seq=0,
            num_running=0,
            num_waiting=0,
            waiting_causes=[0] * len(Cause),
            kv_blocks_used=0,
            kv_blocks_total=num_blocks,
            sleep_state=0,
            paused=False,
            step_age_ms=0,
            step_num_tokens=0,
            step_num_rows=0,
            num_steps=[0] * len(StepMode),
            step_ns=[0] * len(Phase),
            prefix_queries=0,
            prefix_hits=0,
            external_queries=0,
            external_hits=0,
            resumed_queries=0,
            resumed_hits=0,
            mm_queries=0,
            mm_hits=0,
            recomputed_tokens=0,
            finished_row_tokens=0,
            num_corrupted=0,
        )
        self._process_read_ns = 0
        self._last_gauges: tuple[object, ...] = ()

    def count_step(self, mode: StepMode) -> None:
        """Count an executed step."""
        self._stats.num_steps[mode] += 1

    def spend(self, phase: Phase, since_ns: int) -> int:
        """Add the time since `since_ns` to a phase; return now."""
        now = time.monotonic_ns()
        self._stats.step_ns[phase] += now - since_ns
        return now

    def snapshot(self, core: EngineCore, step: StepPlan | None, step_age_ms: int) -> SchedulerStats:
        """Return the state now; `step` is the step that has just been applied, None outside of one.

        The object is the same every time: encode it before the next call.
        """
        scheduler, stats = core.scheduler, self._stats
        counters = scheduler.counters
        self._last_gauges = self._gauges(scheduler)
        stats.seq += 1
        stats.num_running = scheduler.num_running
        stats.num_waiting = len(scheduler.waiting)
        stats.waiting_causes = scheduler.waiting.causes()
        stats.kv_blocks_used = scheduler.pool.num_held
        stats.paused = scheduler.is_paused
        stats.step_age_ms = step_age_ms
        stats.step_num_tokens = step.num_tokens if step is not None else 0
        stats.step_num_rows = step.num_rows if step is not None else 0
        stats.prefix_queries, stats.prefix_hits = counters.prefix_queries, counters.prefix_hits
        stats.resumed_queries, stats.resumed_hits = counters.resumed_queries, counters.resumed_hits
        stats.recomputed_tokens = counters.recomputed_tokens
        stats.finished_row_tokens = counters.finished_row_tokens
        stats.num_corrupted = counters.num_corrupted
        if core.transport.bad_frames:
            # The snapshot has no field of its own for them; the front end adds them to wire_bad_frames_total.
            stats.fallbacks = {f"wire/{reason}": count for reason, count in core.transport.bad_frames.items()}
        self._read_process(time.monotonic_ns())
        return stats

    def gauges_differ(self, scheduler: Scheduler) -> bool:
        """Whether a gauge has changed since the last snapshot."""
        return self._gauges(scheduler) != self._last_gauges

    @staticmethod
    def _gauges(scheduler: Scheduler) -> tuple[object, ...]:
        causes = scheduler.waiting.causes() if len(scheduler.waiting) else None
        return (scheduler.num_running, causes, scheduler.pool.num_held, scheduler.is_paused)

    def _read_process(self, now_ns: int) -> None:
        """Once a second what the process costs; absent in all other snapshots."""
        stats = self._stats
        if now_ns - self._process_read_ns < _PROCESS_INTERVAL_NS:
            stats.process_rss_bytes = stats.process_cpu_ns = stats.process_open_fds = None
            return
        self._process_read_ns = now_ns
        with open("/proc/self/statm", encoding="ascii") as statm:
            stats.process_rss_bytes = int(statm.read().split()[1]) * resource.getpagesize()
        stats.process_cpu_ns = time.process_time_ns()
        stats.process_open_fds = len(os.listdir("/proc/self/fd"))
