"""Where requests that want progress stand before their first token: the group `progress` of StepOutputs."""

from __future__ import annotations

import numpy as np

from proa.request import FLAG_PROGRESS, Request
from proa.sched.scheduler import Scheduler
from proa.wire import IN_PREFILL, Progress

_INTERVAL_NS = 500_000_000


class ProgressBook:
    """Remembers who wants progress; costs nothing while nobody does."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._told_ns = 0

    def watch(self, request: Request) -> None:
        """Tell this request's progress from now on, if it asked for it."""
        if request.flags & FLAG_PROGRESS:
            self._keys.add(request.key)

    @property
    def due_ns(self) -> int | None:
        """When there may be something to tell; None while nobody is watched."""
        return self._told_ns + _INTERVAL_NS if self._keys else None

    def group(self, scheduler: Scheduler, now_ns: int) -> Progress | None:
        """Return the columns if their time has come; forgets requests that decode or have ended."""
        if not self._keys or now_ns < self._told_ns + _INTERVAL_NS:
            return None
        self._told_ns = now_ns
        told: list[tuple[int, ...]] = []
        for key in sorted(self._keys):
            entry = _entry(scheduler, key)
            if entry is None:
                self._keys.discard(key)
            else:
                told.append((key, *entry))
        if not told:
            return None
        keys, reasons, *counts = zip(*told, strict=True)
        position, cached, computed = (np.array(column, np.uint32) for column in counts)
        return Progress(np.array(keys, np.uint64), np.array(reasons, np.uint8), position, cached, computed)


def _entry(scheduler: Scheduler, key: int) -> tuple[int, int, int, int] | None:
    """(reason, position, cached, computed) of a request that has not begun to decode."""
    waiting = scheduler.waiting.get(key)
    if waiting is not None:
        return int(scheduler.waiting.cause_of(key)), scheduler.waiting.place(waiting), 0, 0
    row = scheduler.service.row_of.get(key)
    if row is None or scheduler.rows.computed[row] >= scheduler.rows.prefill_end[row]:
        return None
    cached = int(scheduler.blocks.num_hit[row]) * scheduler.limits.block_size
    return IN_PREFILL, 0, cached, int(scheduler.rows.computed[row]) - cached
