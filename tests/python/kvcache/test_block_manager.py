"""Finding, publishing and withdrawing blocks by their tokens."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.kvcache.block_hash import block_hash, chain
from proa.kvcache.block_manager import BlockManager
from proa.kvcache.block_pool import BlockPool
from proa.request import Request

SIZE = 4


def request(key: int, ids: list[int], salt: bytes = b"") -> Request:
    return Request(
        key=key, known_ids=np.array(ids, np.int32), num_emitted=0, max_tokens=1, min_tokens=0, temperature=0.0,
        top_p=1.0, min_p=0.0, top_k=0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0,
        stream_key=key, num_logprobs=-1, num_prompt_logprobs=-1, stop_ids=np.zeros(0, np.int32), priority=0,
        deadline_ns=None, flags=0, salt=salt, extras=None, arrival=key, queued_ns=0,
    )  # fmt: skip


def manager(num_blocks: int = 32) -> BlockManager:
    return BlockManager(BlockPool(num_blocks), SIZE, max_rows=4, max_model_len=64)


def compute(m: BlockManager, row: int, r: Request) -> None:
    """Seat a request, compute all of it and publish what is full."""
    found = m.look_up(r)
    assert not found.is_loading
    m.seat(row, found.blocks)
    m.announce(r, len(found.blocks))
    assert m.grow(row, len(r.known_ids))
    m.publish(row, r, r.known_ids)


def test_the_hash_is_the_one_of_the_specification() -> None:
    ids = np.array([1, 2, 300, 2**31 - 1], np.int32)
    parent = bytes(range(16))
    plain = parent + b"".join(int(i).to_bytes(4, "little") for i in ids) + b"salt" + b"adapter"
    assert block_hash(parent, ids, b"salt", b"adapter") == hashlib.sha256(plain).digest()[:16]
    first, second = chain(np.arange(9, dtype=np.int32), SIZE, b"")
    assert first == block_hash(bytes(16), np.arange(4, dtype=np.int32), b"")
    assert second == block_hash(first, np.arange(4, 8, dtype=np.int32), b"")


@settings(max_examples=max(200, settings.default.max_examples), deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.lists(st.integers(0, 1), min_size=1, max_size=30))
def test_a_look_up_finds_exactly_the_common_full_blocks(first: list[int], second: list[int]) -> None:
    m = manager()
    compute(m, 0, request(1, first))
    found = m.look_up(request(2, second))
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    full = min(common // SIZE, len(first) // SIZE, (len(second) - 1) // SIZE)
    assert found.blocks == m.blocks_of(0)[:full]


def test_salts_part_equal_prompts() -> None:
    m = manager()
    compute(m, 0, request(1, [5] * 12, b"a"))
    assert m.look_up(request(2, [5] * 12, b"b")).blocks == []
    assert len(m.look_up(request(3, [5] * 12, b"a")).blocks) == 2


def test_others_wait_for_a_block_being_computed_until_it_is_there_or_given_up() -> None:
    m = manager()
    one, two = request(1, [5] * 12), request(2, [5] * 10)
    m.seat(0, m.look_up(one).blocks)
    m.announce(one, 0)
    assert m.look_up(two).is_loading
    m.grow(0, 4)
    m.publish(0, one, one.known_ids[:4])
    assert m.look_up(two).is_loading, "the second block is still being computed"
    m.renounce(one)
    found = m.look_up(two)
    assert not found.is_loading and found.blocks == m.blocks_of(0)[:1]
    assert m.num_computing == 0


def test_withdrawal_takes_descendants_and_tells_who_read_them() -> None:
    m = manager()
    one, two = request(1, [5] * 8), request(2, [5] * 8 + [6] * 8)
    compute(m, 0, one)
    compute(m, 1, two)
    compute(m, 2, request(3, [7] * 8))
    withdrawn = m.withdraw(one)
    assert withdrawn == set(m.blocks_of(1)), "what stands on a bad block is bad"
    assert m.has_hit(1, withdrawn) and not m.has_hit(2, withdrawn)
    assert m.look_up(request(4, [5] * 9)).blocks == []
    assert len(m.look_up(request(5, [7] * 9)).blocks) == 2
    for row in (0, 1, 2):
        m.release(row)
    assert m.audit().leaked == 0 and m.audit().cached == 2


def test_changes_of_a_released_row_are_not_told() -> None:
    m = manager()
    compute(m, 0, request(1, [5] * 8))
    compute(m, 1, request(2, [6] * 8))
    m.release(0)
    compute(m, 0, request(3, [7] * 4))
    rows, index, blocks = m.take_changes()
    told = set(zip(rows.tolist(), index.tolist(), strict=True))
    assert len(told) == len(rows) == 3, "each entry once"
    assert (m.table[rows, index] == blocks).all()
    assert len(m.take_changes()[0]) == 0


def test_growing_many_rows_is_all_or_nothing() -> None:
    m = manager(3)
    for row in (0, 1):
        m.seat(row, [])
        assert m.grow(row, 1)
    assert not m.grow_each(np.array([0, 1]))
    assert m.num_blocks.tolist()[:2] == [1, 1] and m.pool.num_available == 1
    assert m.grow_each(np.array([1]))
    assert m.capacity.tolist()[:2] == [4, 8]
