"""Requests that have no row yet, in the order in which they should get one."""

from __future__ import annotations

import heapq
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


class WaitingQueue:
    """A queue by (priority, arrival). A preempted request keeps its arrival, so it goes back to its old place."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._earliest_deadline: int | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, key: int) -> bool:
        return key in self._requests

    def push(self, request: Request) -> None:
        """Queue a request."""
        self._requests[request.key] = request
        heapq.heappush(self._heap, (request.priority, request.arrival, request.key))
        if request.deadline_ns is not None:
            earliest = self._earliest_deadline
            self._earliest_deadline = request.deadline_ns if earliest is None else min(earliest, request.deadline_ns)

    def remove(self, key: int) -> Request | None:
        """Take a request out by key; None if it is not here. Its heap entry is skipped later."""
        return self._requests.pop(key, None)

    def in_order(self) -> Iterator[Request]:
        """Yield requests in order; those the caller removes meanwhile are gone afterwards."""
        kept: list[tuple[int, int, int]] = []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                request = self._requests.get(entry[2])
                if request is None:
                    continue
                kept.append(entry)
                yield request
        finally:
            for entry in kept:
                if entry[2] in self._requests:
                    heapq.heappush(self._heap, entry)

    def expired(self, now_ns: int) -> list[Request]:
        """Take out and return requests whose deadline has passed."""
        if self._earliest_deadline is None or now_ns < self._earliest_deadline:
            return []
        late = [r for r in self._requests.values() if r.deadline_ns is not None and r.deadline_ns <= now_ns]
        for request in late:
            del self._requests[request.key]
        left = [r.deadline_ns for r in self._requests.values() if r.deadline_ns is not None]
        self._earliest_deadline = min(left, default=None)
        return late

    def keys(self) -> list[int]:
        """Keys of all waiting requests."""
        return list(self._requests)

    def get(self, key: int) -> Request | None:
        """Return a waiting request by key."""
        return self._requests.get(key)
