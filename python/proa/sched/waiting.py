"""Requests that have no row yet, in the order in which they should get one, and why each waits."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from enum import IntEnum

from proa.request import Request


class Cause(IntEnum):
    """Why a request waits; the order is that of `SchedulerStats.waiting_causes` (metrics-and-bench.md section 2)."""

    SEATS = 0
    TOKEN_BUDGET = 1
    KV_BLOCKS = 2
    PRIORITY = 3
    LORA_SLOT = 4
    GRAMMAR = 5
    KV_LOAD = 6
    PAUSED = 7


Rank = tuple[int, int, int]


def rank_of(request: Request) -> Rank:
    """Sort key of the order of service: the lower priority number first, then the earlier arrival."""
    return (request.priority, request.arrival, request.key)


class WaitingQueue:
    """A queue in the order of service. A preempted request keeps its arrival, so it goes back to its old place."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._order: list[Rank] = []
        self._skipped: dict[int, Cause] = {}
        self._blocked = Cause.TOKEN_BUDGET

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: int) -> bool:
        return key in self._requests

    def push(self, request: Request) -> None:
        """Queue a request."""
        self._requests[request.key] = request
        insort(self._order, rank_of(request))

    def remove(self, key: int) -> Request | None:
        """Take a request out by key; None if it is not here."""
        request = self._requests.pop(key, None)
        if request is not None:
            del self._order[bisect_left(self._order, rank_of(request))]
            self._skipped.pop(key, None)
        return request

    def get(self, key: int) -> Request | None:
        """Return a waiting request by key."""
        return self._requests.get(key)

    def in_order(self) -> Iterator[Request]:
        """Yield the waiting requests, first in line first; those yielded may be removed meanwhile."""
        for _, _, key in list(self._order):
            yield self._requests[key]

    def place(self, request: Request) -> int:
        """How many requests stand before this one."""
        return bisect_left(self._order, rank_of(request))

    # ---- causes -----------------------------------------------------------------------------------------------------

    def note(self, blocked: Cause, skipped: dict[int, Cause]) -> None:
        """Remember the outcome of a planning: those passed over, by key, and what stopped all the others."""
        self._blocked, self._skipped = blocked, skipped

    def cause_of(self, key: int) -> Cause:
        """Why a waiting request waits: the first cause the scheduler met."""
        return self._skipped.get(key, self._blocked)

    def causes(self) -> list[int]:
        """Waiting requests by cause; sums to their number."""
        counts = [0] * len(Cause)
        for cause in self._skipped.values():
            counts[cause] += 1
        counts[self._blocked] += len(self._order) - len(self._skipped)
        return counts
