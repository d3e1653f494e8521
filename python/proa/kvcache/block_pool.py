"""One pool of equal-size KV blocks with reference counts, content hashes and an eviction order.

A block is in exactly one of three states:

    held     somebody's reference count is above 0; it may be findable by hash too, and then be held more than once
    cached   nobody holds it, but its content is findable by hash; evicted in the order of release
    blank    nobody holds it and its content is nobody's

`take` prefers blank blocks, then evicts the cached one that was released longest ago. Knows no request, row or token.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Audit:
    """An exact count of the pool: held + cached + free + leaked = all blocks.

    Attributes:
        held: blocks whose references are exactly those that their users name.
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
        self._parent_of: list[bytes | None] = [None] * num_blocks
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

    @property
    def num_findable(self) -> int:
        """Blocks whose content is published, held or not."""
        return len(self._block_of)

    def take(self, count: int) -> list[int] | None:
        """Return `count` blocks with one reference each, or None (and change nothing) if there are not enough."""
        blank = self._blank
        if count > len(blank) + len(self._cached):
            return None
        from_blank = min(count, len(blank))
        taken = blank[len(blank) - from_blank :]
        taken.reverse()
        del blank[len(blank) - from_blank :]
        while len(taken) < count:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
            taken.append(block)
        references = self._references
        for block in taken:
            references[block] = 1
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
        """Drop one reference of each block; `blocks` are in the order of their tokens.

        The last block of a request is the least likely to be found again, so it becomes the first to be evicted.
        """
        references = self._references
        for block in reversed(blocks):
            references[block] -= 1
            if references[block] > 0:
                continue
            if self._hash_of[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def publish(self, block: int, content: bytes, parent: bytes) -> bool:
        """Make a held, full block findable; `parent` is the hash of the block before it.

        The first block with a content stays the findable one; False if there was one.
        """
        if content in self._block_of:
            return False
        self._block_of[content] = block
        self._hash_of[block] = content
        self._parent_of[block] = parent
        return True

    def withdraw(self, contents: Iterable[bytes]) -> set[int]:
        """Make contents and everything that was computed on top of them unfindable; return the blocks concerned.

        A block's content depends on all blocks before it, so what descends from a withdrawn hash goes with it.
        """
        children: dict[bytes, list[int]] = {}
        for block in self._block_of.values():
            parent = self._parent_of[block]
            if parent is not None:
                children.setdefault(parent, []).append(block)
        pending = [self._block_of[content] for content in contents if content in self._block_of]
        withdrawn: set[int] = set()
        while pending:
            block = pending.pop()
            if block in withdrawn:
                continue
            withdrawn.add(block)
            content = self._hash_of[block]
            assert content is not None, "only findable blocks are looked at"
            pending += children.get(content, [])
        self._make_unfindable(withdrawn)
        return withdrawn

    def reset_cache(self) -> None:
        """Forget all contents; held blocks stay held."""
        self._make_unfindable(list(self._block_of.values()))

    def num_references(self, block: int) -> int:
        """How often a block is held."""
        return self._references[block]

    def is_findable(self, block: int) -> bool:
        """Whether the block's content is published."""
        return self._hash_of[block] is not None

    def audit(self, held: Iterable[int]) -> Audit:
        """Compare the pool with what its users say they hold (a block once for each reference)."""
        expected = Counter(held)
        right = sum(1 for block, count in expected.items() if self._references[block] == count)
        cached, free = len(self._cached), len(self._blank)
        return Audit(right, cached, free, self.num_blocks - right - cached - free)

    def _make_unfindable(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._forget(block)
            if block in self._cached:
                del self._cached[block]
                self._blank.append(block)

    def _forget(self, block: int) -> None:
        content = self._hash_of[block]
        if content is not None:
            del self._block_of[content]
            self._hash_of[block] = self._parent_of[block] = None
