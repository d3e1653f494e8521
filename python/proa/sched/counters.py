"""Totals since the engine process started, as `SchedulerStats` sends them (metrics-and-bench.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from proa.request import Request


@dataclass(slots=True)
class Counters:
    """Whole numbers that only rise."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    resumed_queries: int = 0
    resumed_hits: int = 0
    recomputed_tokens: int = 0
    finished_row_tokens: int = 0
    num_corrupted: int = 0

    def count_lookup(self, num_tokens: int, num_hit: int, request: Request) -> None:
        """Count one admission's look-up: tokens asked for and found, apart for first admissions and resumes."""
        if request.scheduled_before:
            self.resumed_queries += num_tokens
            self.resumed_hits += num_hit
        else:
            self.prefix_queries += num_tokens
            self.prefix_hits += num_hit
