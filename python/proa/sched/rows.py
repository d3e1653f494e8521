"""Live requests as rows of fixed arrays, so that a steady decode step touches no request object.

How far a row has come, in tokens of its request:

    0 ....... applied ..... computed ..... prefill_end ..... needed ..... limit
              |             |              |                 |            the request ends here at the latest
              |             |              |                 tokens whose K and V it can ever need
              |             |              tokens the host knew when the row was filled
              |             tokens planned: in the cache, or written by a step in flight
              ids the host knows

While `computed < prefill_end` the row is in prefill: chunks of known tokens. From then on it decodes: each step
computes one token and draws the next; `applied` follows when the step's result is in, at most one step later. The last
token of a request is drawn but never computed: `needed = limit - 1`.

Knows numbers of one request at a time; no block, budget or order.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from proa.request import NO_LOGPROBS, Request

#: Stop ids a row keeps in its fixed columns; more are kept in `Rows.long_stop`.
STOP_COLUMNS = 8
_NO_STOP = -1


class Rows:
    """Columns over request rows 0 .. max_rows - 1; see the module's picture for the counts.

    Attributes:
        request: the object behind each row, None for a free one.
        key: u64; the request's key.
        listens: bool; whether results of steps in flight still count for the row.
        tokens: i32[max_rows, max_model_len + 1]; known ids.
        decode_end: i32; `needed` while the row decodes and is in service, else 0: a row owes a token exactly when
            `computed < decode_end`.
        planned_step: i64; the last step that reads or writes the row.
        sample_index: i32; place of the row among the sampled rows of that step.
        stop_ids: i32[STOP_COLUMNS, max_rows]; -1 = none.
        logprob_bytes: i64; bytes of logprobs that one drawn token brings back.
        going_on, one_token, no_stop: u8, u16, i32; constant columns for a step in which nothing ends; never written.
        top: one more than the highest row in use; columns are read up to it.
        num_stop: columns of `stop_ids` in use.
        total_logprob_bytes: sum of `logprob_bytes`.
    """

    def __init__(self, max_rows: int, max_model_len: int, vocab_size: int) -> None:
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.request: list[Request | None] = [None] * max_rows
        self.key = np.zeros(max_rows, np.uint64)
        self.listens = np.zeros(max_rows, bool)
        self.tokens = np.zeros((max_rows, max_model_len + 1), np.int32)
        self.applied = np.zeros(max_rows, np.int32)
        self.computed = np.zeros(max_rows, np.int32)
        self.prefill_end = np.zeros(max_rows, np.int32)
        self.needed = np.zeros(max_rows, np.int32)
        self.limit = np.zeros(max_rows, np.int32)
        self.decode_end = np.zeros(max_rows, np.int32)
        self.prompt_len = np.zeros(max_rows, np.int32)
        self.min_tokens = np.zeros(max_rows, np.int32)
        self.stop_ids = np.full((STOP_COLUMNS, max_rows), _NO_STOP, np.int32)
        self.long_stop: dict[int, NDArray[np.int32]] = {}
        self.num_logprobs = np.full(max_rows, NO_LOGPROBS, np.int32)
        self.logprob_bytes = np.zeros(max_rows, np.int64)
        self.planned_step = np.zeros(max_rows, np.int64)
        self.sample_index = np.zeros(max_rows, np.int32)
        self.going_on = np.zeros(max_rows, np.uint8)
        self.one_token = np.ones(max_rows, np.uint16)
        self.no_stop = np.full(max_rows, _NO_STOP, np.int32)
        self.top = 0
        self.num_stop = 0
        self.total_logprob_bytes = 0
        self._free = list(range(max_rows))

    @property
    def num_free(self) -> int:
        """Rows without a request."""
        return len(self._free)

    def fill(self, request: Request, num_cached: int) -> int:
        """Give a request the lowest free row, its first `num_cached` tokens counted as computed, and return it."""
        row = heapq.heappop(self._free)
        known = len(request.known_ids)
        limit = min(request.prompt_len + request.max_tokens, self.max_model_len)
        self.request[row] = request
        self.key[row] = request.key
        self.listens[row] = True
        self.tokens[row, :known] = request.known_ids
        self.computed[row] = num_cached
        self.applied[row] = self.prefill_end[row] = known
        self.limit[row] = limit
        self.needed[row] = known if limit <= known else limit - 1
        self.decode_end[row] = 0
        self.prompt_len[row] = request.prompt_len
        self.min_tokens[row] = request.min_tokens
        self.num_logprobs[row] = request.num_logprobs
        self.logprob_bytes[row] = self.bytes_of(request.num_logprobs)
        self.planned_step[row] = 0
        self.total_logprob_bytes += int(self.logprob_bytes[row])
        self.top = max(self.top, row + 1)
        self._set_stop(row, request.stop_ids)
        return row

    def bytes_of(self, num_logprobs: int) -> int:
        """Bytes of logprobs that one token with k = `num_logprobs` brings back: id and value of each entry."""
        if num_logprobs == NO_LOGPROBS:
            return 0
        return 8 * (1 + (num_logprobs if num_logprobs >= 0 else self.vocab_size))

    def _set_stop(self, row: int, stop_ids: NDArray[np.int32]) -> None:
        self.stop_ids[:, row] = _NO_STOP
        if len(stop_ids) <= STOP_COLUMNS:
            self.stop_ids[: len(stop_ids), row] = stop_ids
            self.num_stop = max(self.num_stop, len(stop_ids))
        else:
            self.long_stop[row] = stop_ids

    def clear(self, row: int) -> None:
        """Free a row; no step that reads it may be in flight."""
        self.request[row] = None
        self.listens[row] = False
        self.decode_end[row] = 0
        self.total_logprob_bytes -= int(self.logprob_bytes[row])
        self.logprob_bytes[row] = 0
        self.long_stop.pop(row, None)
        heapq.heappush(self._free, row)
        while self.top > 0 and self.request[self.top - 1] is None:
            self.top -= 1
        if self.top == 0:
            self.num_stop = 0
