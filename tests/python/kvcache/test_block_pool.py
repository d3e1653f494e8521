"""The block pool under random operations, against a plain model of who holds what."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from proa.kvcache.block_pool import BlockPool

operations = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 6)),
        st.tuples(st.just("release"), st.integers(0, 20)),
        st.tuples(st.just("publish"), st.integers(0, 20), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("hold"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 9)),
        st.tuples(
            st.just("reset"),
        ),
    ),
    max_size=80,
)


def content(number: int) -> bytes:
    return bytes([number]) * 16


class Model:
    """Blocks by hand: references, contents with their parents, and the order in which unheld contents go."""

    def __init__(self, num_blocks: int) -> None:
        self.references = [0] * num_blocks
        self.content: dict[int, tuple[bytes, bytes]] = {}
        self.order: list[int] = []

    def available(self) -> int:
        return self.references.count(0)

    def find(self, wanted: bytes) -> int | None:
        return next((block for block, (own, _) in self.content.items() if own == wanted), None)

    def taken(self, blocks: list[int]) -> None:
        blanks = [b for b, n in enumerate(self.references) if n == 0 and b not in self.content]
        for index, block in enumerate(blocks):
            assert self.references[block] == 0
            if index < len(blanks):
                assert block in blanks, "blank blocks go first"
            else:
                assert block == self.order[0], "the one released longest ago is evicted"
                self.order.pop(0)
                del self.content[block]
            self.references[block] = 1

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0 and block in self.content:
                self.order.append(block)

    def forget(self, blocks: set[int]) -> None:
        for block in blocks:
            del self.content[block]
        self.order = [block for block in self.order if block not in blocks]

    def descendants(self, wanted: bytes) -> set[int]:
        first = self.find(wanted)
        if first is None:
            return set()
        found = {first}
        while True:
            hashes = {self.content[block][0] for block in found}
            more = {block for block, (_, parent) in self.content.items() if parent in hashes} - found
            if not more:
                return found
            found |= more


@settings(max_examples=max(300, settings.default.max_examples), deadline=None)
@given(st.integers(1, 12), operations)
def test_the_pool_agrees_with_the_model(num_blocks: int, ops: list) -> None:
    pool, model = BlockPool(num_blocks), Model(num_blocks)
    holdings: list[list[int]] = []
    for name, *arguments in ops:
        if name == "take":
            blocks = pool.take(arguments[0])
            assert (blocks is None) == (arguments[0] > model.available())
            if blocks:
                model.taken(blocks)
                holdings.append(blocks)
        elif name == "release" and holdings:
            blocks = holdings.pop(arguments[0] % len(holdings))
            pool.release(blocks)
            model.release(blocks)
        elif name == "publish" and holdings:
            block = holdings[arguments[0] % len(holdings)][0]
            own, parent = content(arguments[1]), content(arguments[2])
            if not pool.is_findable(block):
                assert pool.publish(block, own, parent) == (model.find(own) is None)
                if model.find(own) is None:
                    model.content[block] = (own, parent)
        elif name == "hold":
            block = pool.find(content(arguments[0]))
            assert block == model.find(content(arguments[0]))
            if block is not None:
                pool.hold(block)
                if model.references[block] == 0:
                    model.order.remove(block)
                model.references[block] += 1
                holdings.append([block])
        elif name == "withdraw":
            expected = model.descendants(content(arguments[0]))
            assert pool.withdraw([content(arguments[0])]) == expected
            model.forget(expected)
        elif name == "reset":
            pool.reset_cache()
            model.forget(set(model.content))
        assert pool.num_available == model.available() and pool.num_held == num_blocks - model.available()
        assert pool.num_findable == len(model.content)
        audit = pool.audit(block for blocks in holdings for block in blocks)
        assert (audit.held, audit.cached) == (num_blocks - model.available(), len(model.order))
        assert audit.leaked == 0 and audit.held + audit.cached + audit.free == num_blocks


def test_an_audit_shows_a_leak_and_a_block_held_twice() -> None:
    pool = BlockPool(4)
    first = pool.take(2)
    assert first is not None
    assert pool.audit([]).leaked == 2
    assert pool.audit([first[0], first[0], first[1]]).leaked == 1
    assert pool.audit(first).leaked == 0
