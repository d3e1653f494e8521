"""`SchedulerStats`: gauges after apply and totals since the process started (metrics-and-bench.md section 2)."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from proa.sched.plan import StepMode, StepPlan
from proa.sched.scheduler import Scheduler
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


@dataclass(slots=True)
class StatsBook:
    """What the loop counts, and the snapshots made of it."""

    incarnation: int
    seq: int = 0
    num_steps: list[int] = field(default_factory=lambda: [0, 0, 0])
    step_ns: list[int] = field(default_factory=lambda: [0, 0, 0, 0, 0])
    _process_read_ns: int = 0
    _last_gauges: tuple[object, ...] = ()

    def count_step(self, mode: StepMode) -> None:
        """Count an executed step."""
        self.num_steps[mode] += 1

    def spend(self, phase: Phase, since_ns: int) -> int:
        """Add the time since `since_ns` to a phase; return now."""
        now = time.monotonic_ns()
        self.step_ns[phase] += now - since_ns
        return now

    def snapshot(self, core: EngineCore, step: StepPlan | None, step_age_ms: int) -> SchedulerStats:
        """Return the state now; `step` is the step that has just been applied, None outside of one."""
        self.seq += 1
        scheduler = core.scheduler
        counters = scheduler.counters
        self._last_gauges = self._gauges(scheduler)
        stats = SchedulerStats(
            incarnation=self.incarnation,
            seq=self.seq,
            num_running=scheduler.num_running,
            num_waiting=len(scheduler.waiting),
            waiting_causes=scheduler.waiting.causes(),
            kv_blocks_used=scheduler.pool.num_held,
            kv_blocks_total=scheduler.pool.num_blocks,
            sleep_state=0,
            paused=scheduler.is_paused,
            step_age_ms=step_age_ms,
            step_num_tokens=step.num_tokens if step is not None else 0,
            step_num_rows=step.num_rows if step is not None else 0,
            num_steps=list(self.num_steps),
            step_ns=list(self.step_ns),
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            external_queries=0,
            external_hits=0,
            resumed_queries=counters.resumed_queries,
            resumed_hits=counters.resumed_hits,
            mm_queries=0,
            mm_hits=0,
            recomputed_tokens=counters.recomputed_tokens,
            finished_row_tokens=counters.finished_row_tokens,
            num_corrupted=counters.num_corrupted,
        )
        if core.transport.bad_frames:
            stats.fallbacks = {f"wire/{reason}": count for reason, count in core.transport.bad_frames.items()}
        self._add_process(stats)
        return stats

    def gauges_differ(self, scheduler: Scheduler) -> bool:
        """Whether a gauge has changed since the last snapshot."""
        return self._gauges(scheduler) != self._last_gauges

    @staticmethod
    def _gauges(scheduler: Scheduler) -> tuple[object, ...]:
        return (scheduler.num_running, len(scheduler.waiting), scheduler.pool.num_held, scheduler.is_paused)

    def _add_process(self, stats: SchedulerStats) -> None:
        now = time.monotonic_ns()
        if now - self._process_read_ns < _PROCESS_INTERVAL_NS:
            return
        self._process_read_ns = now
        with open("/proc/self/statm", encoding="ascii") as statm:
            stats.process_rss_bytes = int(statm.read().split()[1]) * resource.getpagesize()
        stats.process_cpu_ns = time.process_time_ns()
        stats.process_open_fds = len(os.listdir("/proc/self/fd"))
