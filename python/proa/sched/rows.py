"""Live requests as rows of fixed arrays, so that a steady decode step touches no request object.

A row's tokens and how far things have come, all counted in tokens of the request:

    0 ........ computed ........ applied ........ length ........ limit
    |-- in KV (planned) --|                          |
                          applied: ids the host knows |
                                                     length: known or being drawn by a step in flight

`computed` and `length` run ahead with planning; `applied` follows when a step's result is in. `needed` is the number of
tokens whose KV the request can ever need: the last token of a request is drawn but never computed.
"""

from __future__ import annotations

import numpy as np

from proa.kvcache.block_pool import BlockPool
from proa.request import Request

#: Stop ids a row keeps in its fixed columns; more are kept in `Rows.long_stop`.
STOP_COLUMNS = 8
_NO_STOP = -1
_NO_DEADLINE = np.iinfo(np.int64).max


class Rows:
    """Columns over request rows 0 .. max_rows - 1; see the module's picture for the counts."""

    def __init__(self, max_rows: int, max_model_len: int, block_size: int) -> None:
        blocks_per_row = -(-max_model_len // block_size)
        self.max_model_len = max_model_len
        self.request: list[Request | None] = [None] * max_rows
        self.key = np.zeros(max_rows, np.uint64)
        self.alive = np.zeros(max_rows, bool)
        self.tokens = np.zeros((max_rows, max_model_len + 1), np.int32)
        self.blocks = np.zeros((max_rows, blocks_per_row), np.int32)
        self.num_blocks = np.zeros(max_rows, np.int32)
        self.length = np.zeros(max_rows, np.int32)
        self.computed = np.zeros(max_rows, np.int32)
        self.applied = np.zeros(max_rows, np.int32)
        self.needed = np.zeros(max_rows, np.int32)
        self.limit = np.zeros(max_rows, np.int32)
        self.prompt_len = np.zeros(max_rows, np.int32)
        self.prefill_end = np.zeros(max_rows, np.int32)
        self.published = np.zeros(max_rows, np.int32)
        self.min_tokens = np.zeros(max_rows, np.int32)
        self.stop_ids = np.full((max_rows, STOP_COLUMNS), _NO_STOP, np.int32)
        self.long_stop: dict[int, frozenset[int]] = {}
        self.num_logprobs = np.full(max_rows, -1, np.int32)
        self.prompt_k = np.full(max_rows, -1, np.int32)
        self.deadline_ns = np.full(max_rows, _NO_DEADLINE, np.int64)
        self.planned_step = np.zeros(max_rows, np.int64)
        self.sample_index = np.full(max_rows, -1, np.int32)
        self.sampled_step = np.full(max_rows, -1, np.int64)
        self.cached_tokens = np.zeros(max_rows, np.int32)
        self._free = list(range(max_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Rows without a request."""
        return len(self._free)

    def fill(self, request: Request, hit_blocks: list[int], block_size: int) -> int:
        """Give a request a free row, its cached blocks already in place, and return the row."""
        row = self._free.pop()
        known = len(request.known_ids)
        limit = min(request.prompt_len + request.max_tokens, self.max_model_len)
        self.request[row] = request
        self.key[row] = request.key
        self.alive[row] = True
        self.tokens[row, :known] = request.known_ids
        self.blocks[row, : len(hit_blocks)] = hit_blocks
        self.num_blocks[row] = self.published[row] = len(hit_blocks)
        self.cached_tokens[row] = self.computed[row] = len(hit_blocks) * block_size
        self.length[row] = self.applied[row] = self.prefill_end[row] = known
        self.limit[row] = limit
        self.needed[row] = known if limit <= known else limit - 1
        self.prompt_len[row] = request.prompt_len
        self.min_tokens[row] = request.min_tokens
        self.num_logprobs[row] = request.num_logprobs
        self.prompt_k[row] = request.num_prompt_logprobs
        self.deadline_ns[row] = _NO_DEADLINE if request.deadline_ns is None else request.deadline_ns
        self.planned_step[row] = 0
        self.sampled_step[row] = -1
        self._set_stop(row, request)
        return row

    def _set_stop(self, row: int, request: Request) -> None:
        self.stop_ids[row] = _NO_STOP
        self.long_stop.pop(row, None)
        if len(request.stop_ids) <= STOP_COLUMNS:
            self.stop_ids[row, : len(request.stop_ids)] = request.stop_ids
        else:
            self.long_stop[row] = frozenset(request.stop_ids.tolist())

    def clear(self, row: int, pool: BlockPool) -> None:
        """Give a row's blocks back and free the row; no step that reads it may be in flight."""
        pool.release(self.held(row))
        self.num_blocks[row] = 0
        self.request[row] = None
        self.alive[row] = False
        self.deadline_ns[row] = _NO_DEADLINE
        self.long_stop.pop(row, None)
        self._free.append(row)

    def held(self, row: int) -> list[int]:
        """Blocks of a row, in token order."""
        blocks: list[int] = self.blocks[row, : self.num_blocks[row]].tolist()
        return blocks

    def all_held(self) -> list[int]:
        """Blocks of all rows, each reference once."""
        return [block for row, request in enumerate(self.request) if request is not None for block in self.held(row)]
