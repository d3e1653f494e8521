"""Rows in service, in their order, and rows on their way out.

A row cannot be cleared while a step that reads it is in flight: it *leaves* first (its request has ended, or is
preempted and comes back to the queue) and is cleared when its last step has been applied.

Knows rows and blocks, but no plan, queue or budget.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from proa.kvcache.block_manager import BlockManager
from proa.request import Request
from proa.sched.rows import Rows
from proa.sched.waiting import Rank, rank_of


class Service:
    """Who has a row.

    Attributes:
        row_of: key -> row of every request with a row, leaving ones included as long as they have not ended.
        leaving: row -> request that comes back to the queue, or None for one that has ended.
        leaving_blocks: blocks (shared ones counted each time) that leaving rows will give back.
    """

    def __init__(self, rows: Rows, blocks: BlockManager) -> None:
        self.row_of: dict[int, int] = {}
        self.leaving: dict[int, Request | None] = {}
        self.leaving_blocks = 0
        self._rows = rows
        self._blocks = blocks
        self._running: list[tuple[Rank, int]] = []
        self._prefilling: list[tuple[Rank, int]] = []

    @property
    def num_running(self) -> int:
        """Requests that hold blocks and take part in steps; preempted ones too until their row is cleared."""
        return len(self.row_of)

    @property
    def num_in_service(self) -> int:
        """Rows that may be planned."""
        return len(self._running)

    @property
    def last(self) -> int:
        """The row that gives way first."""
        return self._running[-1][1]

    def in_order(self) -> list[int]:
        """Rows in service, in the order of service."""
        return [row for _, row in self._running]

    def prefilling(self) -> list[int]:
        """Rows in service that have known tokens to compute, in the order of service."""
        return [row for _, row in self._prefilling]

    def has(self, row: int) -> bool:
        """Whether a row is in service."""
        return row not in self.leaving and self._rows.request[row] is not None

    def request_of(self, row: int) -> Request:
        """The request behind a row in use."""
        request = self._rows.request[row]
        assert request is not None, "only rows in use are asked for"
        return request

    def seat(self, request: Request, hits: list[int]) -> int:
        """Give a request a row and its cached blocks; returns the row."""
        row = self._rows.fill(request, len(hits) * self._blocks.block_size)
        self._blocks.seat(row, hits)
        self.row_of[request.key] = row
        insort(self._running, (rank_of(request), row))
        insort(self._prefilling, (rank_of(request), row))
        return row

    def prefilled(self, row: int) -> None:
        """All known tokens of a row are planned: from now on it decodes."""
        _discard(self._prefilling, (rank_of(self.request_of(row)), row))
        self._rows.decode_end[row] = self._rows.needed[row]

    def leave(self, row: int, applied_step: int, resumes: bool) -> Request | None:
        """Take a row out of service; returns the request if it can go back to the queue at once."""
        request = self.request_of(row)
        entry = (rank_of(request), row)
        _discard(self._running, entry)
        _discard(self._prefilling, entry)
        self._rows.decode_end[row] = 0
        self._blocks.renounce(request)
        self.leaving[row] = request if resumes else None
        self.leaving_blocks += int(self._blocks.num_blocks[row])
        if not resumes:
            self._hang_up(row, request)
        return self._clear(row) if self._rows.planned_step[row] <= applied_step else None

    def end(self, row: int, applied_step: int) -> None:
        """End the request behind a row, in service or leaving."""
        if row not in self.leaving:
            self.leave(row, applied_step, False)
            return
        request = self.leaving[row]
        if request is not None:
            self.leaving[row] = None
            self._hang_up(row, request)

    def _hang_up(self, row: int, request: Request) -> None:
        self._rows.listens[row] = False
        del self.row_of[request.key]

    def release(self, applied_step: int) -> list[Request]:
        """Clear leaving rows whose last step has been applied; returns those that go back to the queue."""
        due = [row for row in self.leaving if self._rows.planned_step[row] <= applied_step]
        return [request for row in due if (request := self._clear(row)) is not None]

    def _clear(self, row: int) -> Request | None:
        request = self.leaving.pop(row)
        self.leaving_blocks -= int(self._blocks.num_blocks[row])
        if request is not None:
            del self.row_of[request.key]
            self._carry_over(row, request)
        self._blocks.release(row)
        self._rows.clear(row)
        return request

    def _carry_over(self, row: int, request: Request) -> None:
        """Keep what a preempted request has drawn; its K and V are computed again later."""
        applied = int(self._rows.applied[row])
        request.num_emitted += applied - len(request.known_ids)
        request.known_ids = self._rows.tokens[row, :applied].copy()
        request.prompt_scored = request.prompt_sent


def _discard(entries: list[tuple[Rank, int]], entry: tuple[Rank, int]) -> None:
    at = bisect_left(entries, entry)
    if at < len(entries) and entries[at] == entry:
        del entries[at]
