"""One pool of equal-size KV blocks with reference counts, content hashes and an eviction order.

A block is in exactly one of three states:

    held     somebody's reference count is above 0; it may be findable by hash too, and then be held more than once
    cached   nobody holds it, but its content is findable by hash; evicted in the order of release
    blank    nobody holds it and its content is nobody's

`take` prefers blank blocks, then evicts the longest-unused cached one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Audit:
    """An exact count of the pool: held + cached + free + leaked = all blocks.

    Attributes:
        held: blocks that requests hold, as the requests say.
        cached: unheld blocks that can be found by hash.
        free: blank blocks.
        leaked: the rest; 0 in a correct engine.
    """

    held: int
    cached: int
    free: int
    leaked: int


class BlockPool:
    """Hands out block numbers 0 .. num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that `take` could give: blank and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks with a reference."""
        return self.num_blocks - self.num_available

    def take(self, count: int) -> list[int] | None:
        """Return `count` blocks with one reference each, or None (and change nothing) if there are not enough."""
        if count > self.num_available:
            return None
        taken = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def find(self, content: bytes) -> int | None:
        """Return the block with this content, without holding it."""
        return self._block_of.get(content)

    def hold(self, block: int) -> None:
        """Add a reference to a findable block."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block.

        The last block of a request is the least likely to be found again, so it becomes the first to be evicted.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if self._hash_of[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def publish(self, block: int, content: bytes) -> None:
        """Make a held, full block findable; the first block with a content stays the findable one."""
        if content not in self._block_of:
            self._block_of[content] = block
            self._hash_of[block] = content

    def withdraw(self, blocks: Iterable[int]) -> None:
        """Make blocks unfindable: their content is not to be trusted."""
        for block in blocks:
            self._forget(block)
            if block in self._cached:
                del self._cached[block]
                self._blank.append(block)

    def reset_cache(self) -> None:
        """Forget all contents; held blocks stay held."""
        self.withdraw(list(self._block_of.values()))

    def num_references(self, block: int) -> int:
        """How often a block is held."""
        return self._references[block]

    def is_findable(self, block: int) -> bool:
        """Whether the block's content is published."""
        return self._hash_of[block] is not None

    def audit(self, held: Iterable[int]) -> Audit:
        """Compare the pool with what its users say they hold (each reference once)."""
        expected: dict[int, int] = {}
        for block in held:
            expected[block] = expected.get(block, 0) + 1
        right = sum(1 for block, count in expected.items() if self._references[block] == count)
        cached, free = len(self._cached), len(self._blank)
        return Audit(right, cached, free, self.num_blocks - right - cached - free)

    def _forget(self, block: int) -> None:
        content = self._hash_of[block]
        if content is not None:
            del self._block_of[content]
            self._hash_of[block] = None
