"""Totals since the engine process started, as `SchedulerStats` sends them (metrics-and-bench.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from proa.request import Request


@dataclass(slots=True)
class Counters:
    """Whole numbers that only rise, in tokens; `num_corrupted` in requests."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    resumed_queries: int = 0
    resumed_hits: int = 0
    recomputed_tokens: int = 0
    finished_row_tokens: int = 0
    num_corrupted: int = 0

    def count_seat(self, request: Request, num_hit: int) -> None:
        """Count a request that gets a row: tokens asked of the cache and found, and those computed once more.

        First admissions and resumes are kept apart.
        """
        known = len(request.known_ids)
        if not request.scheduled_before:
            self.prefix_queries += known
            self.prefix_hits += num_hit
            return
        self.resumed_queries += known
        self.resumed_hits += num_hit
        again = max(min(request.num_lost, known) - num_hit, 0)
        request.num_recomputed += again
        self.recomputed_tokens += again
