"""Which block holds which token of which row: growing, finding, publishing, giving back.

Who owns which interval of a row's tokens (all edges but `computed` lie on block edges):

    0 .............. cached ............... published .......... computed ......... capacity
    |----- hit ------|------- filled --------|----- filling ------|----- reserved ------|
     found by hash    computed by this row,   computed or being     taken from the pool,
     at the look-up;  full, its ids applied;  computed by a step    nothing written yet;
     shared: read     findable, others may    in flight; this row   this row only
     only, the row    hold it too: read only  only writes here
     holds one
     reference

`cached <= published <= computed <= capacity` at every moment. A look-up finds full blocks only and leaves the last
known token out, so a hit row always has a token to compute. A row writes only behind `published`; a findable block is
never written again. `published` moves in `apply` (ids known), `computed` in planning, `capacity` in `grow`.

One manager serves one KV group; a model whose layers have several kinds of needs has one manager each over one pool.
Knows request rows and block hashes, but no step, budget or order of service.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proa.kvcache.block_hash import ROOT, block_hash
from proa.kvcache.block_pool import Audit, BlockPool
from proa.request import Request

I32 = NDArray[np.int32]
_EMPTY = np.zeros(0, np.int32)


@dataclass(slots=True, frozen=True)
class LookUp:
    """What the cache has of a request's beginning.

    Attributes:
        blocks: findable blocks of its first tokens, in order, not held yet.
        is_loading: whether the block after them is just being computed by another request.
    """

    blocks: list[int]
    is_loading: bool = False


class BlockManager:
    """Block table of one KV group, over the rows 0 .. max_rows - 1.

    Attributes:
        block_size_array: i32[]; tokens a block, in the form in which arithmetic on columns is fast.
        table: i32[max_rows, blocks per row]; blocks of each row, in token order.
        num_blocks: i32[max_rows]; entries of `table` in use.
        capacity: i32[max_rows]; tokens those blocks hold.
        num_hit: i32[max_rows]; blocks the row found in the cache when it was seated.
        num_published: i32[max_rows]; blocks up to which the row has been published.
    """

    def __init__(self, pool: BlockPool, block_size: int, max_rows: int, max_model_len: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.block_size_array = np.array(block_size, np.int32)
        self.table: I32 = np.zeros((max_rows, -(-max_model_len // block_size)), np.int32)
        self.num_blocks: I32 = np.zeros(max_rows, np.int32)
        self.capacity: I32 = np.zeros(max_rows, np.int32)
        self.num_hit: I32 = np.zeros(max_rows, np.int32)
        self.num_published: I32 = np.zeros(max_rows, np.int32)
        self._computing: dict[bytes, int] = {}
        self._changes: list[tuple[I32, I32, I32]] = []
        self._seated: set[int] = set()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    # ---- finding ----------------------------------------------------------------------------------------------------

    def look_up(self, request: Request) -> LookUp:
        """Find the cached beginning of a request that has no row: full blocks, at most all known tokens but one."""
        if request.waits_for is not None and request.waits_for in self._computing:
            return LookUp([], True)
        request.waits_for = None
        self._hash_known(request)
        blocks: list[int] = []
        for content in request.block_hashes[: (len(request.known_ids) - 1) // self.block_size]:
            block = self.pool.find(content)
            if block is None:
                if content in self._computing:
                    request.waits_for = content
                    return LookUp([], True)
                break
            blocks.append(block)
        return LookUp(blocks)

    def announce(self, request: Request, num_hit: int) -> None:
        """Say that a seated request computes the blocks behind its first `num_hit`: others wait for them."""
        self._hash_known(request)
        for content in request.block_hashes[num_hit:]:
            self._computing.setdefault(content, request.key)

    def renounce(self, request: Request) -> None:
        """Say that a request computes nothing any more: nobody is to wait for it."""
        for content in request.block_hashes:
            if self._computing.get(content) == request.key:
                del self._computing[content]

    @property
    def num_computing(self) -> int:
        """Blocks that others wait for; 0 when no request is seated."""
        return len(self._computing)

    def _hash_known(self, request: Request) -> None:
        hashes, ids, size = request.block_hashes, request.known_ids, self.block_size
        for index in range(len(hashes), len(ids) // size):
            parent = hashes[-1] if hashes else ROOT
            hashes.append(block_hash(parent, ids[index * size : (index + 1) * size], request.salt))

    # ---- holding ----------------------------------------------------------------------------------------------------

    def num_unheld(self, blocks: list[int]) -> int:
        """How many of these findable blocks count as available as long as nobody holds them."""
        return sum(1 for block in blocks if self.pool.num_references(block) == 0)

    def seat(self, row: int, hits: list[int]) -> None:
        """Give an empty row its cached blocks."""
        for block in hits:
            self.pool.hold(block)
        self._seated.add(row)
        self.num_hit[row] = self.num_published[row] = len(hits)
        self._append(row, hits)

    def grow(self, row: int, num_tokens: int) -> bool:
        """Make room for the row's first `num_tokens` tokens; False (and nothing changed) if blocks are lacking."""
        missing = self.blocks_for(num_tokens) - int(self.num_blocks[row])
        if missing <= 0:
            return True
        blocks = self.pool.take(missing)
        if blocks is None:
            return False
        self._append(row, blocks)
        return True

    def grow_each(self, rows: NDArray[np.int64]) -> bool:
        """Give each of `rows` one further block; False (and nothing changed) if there are not enough for all."""
        blocks = self.pool.take(len(rows))
        if blocks is None:
            return False
        index = self.num_blocks[rows]
        added = np.array(blocks, np.int32)
        self.table[rows, index] = added
        self.num_blocks[rows] = index + 1
        self.capacity[rows] += self.block_size
        self._changes.append((rows.astype(np.int32), index, added))
        return True

    def _append(self, row: int, blocks: list[int]) -> None:
        if not blocks:
            return
        start, end = int(self.num_blocks[row]), int(self.num_blocks[row]) + len(blocks)
        added = np.array(blocks, np.int32)
        self.table[row, start:end] = added
        self.num_blocks[row] = end
        self.capacity[row] = end * self.block_size
        self._changes.append((np.full(len(blocks), row, np.int32), np.arange(start, end, dtype=np.int32), added))

    def release(self, row: int) -> None:
        """Give all blocks of a row back; no step that reads them may be in flight."""
        self.pool.release(self.blocks_of(row))
        self._seated.discard(row)
        self.num_blocks[row] = self.capacity[row] = self.num_hit[row] = self.num_published[row] = 0
        if self._changes:
            self._forget_changes(row)

    def _forget_changes(self, row: int) -> None:
        """A plan must not name an entry twice: once for the row's old request and once for its next."""
        kept = []
        for rows, index, blocks in self._changes:
            others = rows != row
            kept.append((rows[others], index[others], blocks[others]))
        self._changes = kept

    def take_changes(self) -> tuple[I32, I32, I32]:
        """Return (row, index, block) of the table entries set since the last call, for the plan's block-table delta."""
        changes, self._changes = self._changes, []
        if not changes:
            return _EMPTY, _EMPTY, _EMPTY
        if len(changes) == 1:
            return changes[0]
        rows, index, blocks = zip(*changes, strict=True)
        return np.concatenate(rows), np.concatenate(index), np.concatenate(blocks)

    def blocks_of(self, row: int) -> list[int]:
        """Blocks of a row, in token order."""
        blocks: list[int] = self.table[row, : self.num_blocks[row]].tolist()
        return blocks

    def audit(self) -> Audit:
        """Count every block of the pool against what the rows hold."""
        return self.pool.audit(block for row in self._seated for block in self.blocks_of(row))

    # ---- publishing -------------------------------------------------------------------------------------------------

    def publish(self, row: int, request: Request, ids: I32) -> None:
        """Make the row's full blocks findable.

        Args:
            ids: i32[n]; the row's tokens whose K and V are in the cache and whose ids are applied.
        """
        size, hashes = self.block_size, request.block_hashes
        for index in range(int(self.num_published[row]), len(ids) // size):
            parent = hashes[index - 1] if index else ROOT
            if len(hashes) == index:
                hashes.append(block_hash(parent, ids[index * size : (index + 1) * size], request.salt))
            if self.pool.publish(int(self.table[row, index]), hashes[index], parent):
                request.published.append(hashes[index])
            if self._computing.get(hashes[index]) == request.key:
                del self._computing[hashes[index]]
            self.num_published[row] = index + 1

    def stop_publishing(self, row: int) -> None:
        """Keep what a row computes to itself, until it is seated anew."""
        self.num_published[row] = self.table.shape[1]

    def withdraw(self, request: Request) -> set[int]:
        """Make every block that a request ever computed unfindable, with all that was computed on top of them."""
        contents, request.published = request.published, []
        return self.pool.withdraw(contents)

    def has_hit(self, row: int, blocks: set[int]) -> bool:
        """Whether a row found one of `blocks` in the cache when it was seated."""
        return not blocks.isdisjoint(self.table[row, : self.num_hit[row]].tolist())
