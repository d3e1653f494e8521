"""When logits are not finite: whose fault it is, which blocks are not to be trusted, who is computed again.

A request whose logit row is NaN, or has no finite entry, ends, and every block it ever computed is withdrawn from the
prefix cache with all that was computed on top of it. Requests that began on such a block are innocent: what their steps
in flight bring is thrown away, and they are computed again without reading the cache.
"""

from __future__ import annotations

import numpy as np

from proa.sched.plan import StepResult
from proa.sched.plan_builder import Planned
from proa.sched.scheduler import Scheduler


def find_corrupted(scheduler: Scheduler, planned: Planned, result: StepResult) -> list[int]:
    """Return the rows whose requests must end; withdraw their blocks and send their victims back to the queue."""
    plan = planned.plan
    tokens = plan.logit_token[np.flatnonzero(result.nonfinite)]
    plan_rows = np.unique(np.searchsorted(plan.query_start, tokens, side="right") - 1)
    flagged = [row for row in plan.row[plan_rows].tolist() if scheduler.rows.listens[row]]
    withdrawn: set[int] = set()
    for row in flagged:
        withdrawn |= scheduler.blocks.withdraw(scheduler.service.request_of(row))
    victims = [row for row in _listening(scheduler) if scheduler.blocks.has_hit(row, withdrawn)]
    for row in victims:
        _recompute(scheduler, row)
    return [row for row in flagged if row not in victims]


def _listening(scheduler: Scheduler) -> list[int]:
    return [row for row in scheduler.service.row_of.values() if scheduler.rows.listens[row]]


def _recompute(scheduler: Scheduler, row: int) -> None:
    request = scheduler.service.request_of(row)
    request.reads_cache = False
    scheduler.rows.listens[row] = False
    if scheduler.service.has(row):
        scheduler.preempt(row, scheduler.last_now_ns)
