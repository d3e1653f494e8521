"""Attention over the paged cache: ragged rows against f64, with poison in every slot that is nobody's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proa.ops import attention
from proa.ops.interface import AttentionLayer
from proa.ops.kv_insert import reference as kv_insert
from proa.ops.sample_inputs import SampleInputs
from proa.ops.step import LayerCache, Step
from proa.sched.plan import PlanLimits
from proa.worker.batch import BatchBuilder
from proa.worker.device import Device
from proa.worker.warm_up import prompt_plan

BLOCK = 4
ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=6)
SHAPES = st.sampled_from([(4, 4, 8), (4, 2, 8), (6, 1, 16)])
IMPLEMENTATIONS = {choice.name: choice.function for choice in attention.IMPLEMENTATIONS}
CPU = Device(torch.device("cpu"))


def build(rows: list[tuple[int, int]], rng: np.random.Generator) -> tuple[Step, np.ndarray, list[np.ndarray]]:
    """A step of rows (cached, new tokens) on blocks in random order; returns it, its slots and each row's slots."""
    lengths = [cached + new for cached, new in rows]
    num_blocks = sum(-(-n // BLOCK) for n in lengths) + 3
    limits = PlanLimits(len(rows), 1 << 10, 64, num_blocks, BLOCK, 10)
    order = iter(rng.permutation(num_blocks).tolist())
    tables = [[next(order) for _ in range(-(-n // BLOCK))] for n in lengths]
    row_slots = [
        np.array([t[i // BLOCK] * BLOCK + i % BLOCK for i in range(n)]) for t, n in zip(tables, lengths, strict=True)
    ]
    plan = prompt_plan(1, limits)
    plan.row = np.arange(len(rows), dtype=np.int32)
    plan.query_start = np.concatenate([[0], np.cumsum([new for _, new in rows])]).astype(np.int32)
    plan.context_len = np.array(lengths, np.int32)
    entries = [(r, i, block) for r, table in enumerate(tables) for i, block in enumerate(table)]
    plan.table_row, plan.table_index, plan.table_block = np.array(entries, np.int32).T.copy()
    builder = BatchBuilder(limits, CPU)
    builder.update_table(plan)
    prefill, decode = builder.rows(plan)
    slots = np.concatenate([s[cached:] for s, (cached, _) in zip(row_slots, rows, strict=True)])
    positions = np.concatenate([np.arange(cached, cached + new) for cached, new in rows])
    sample = SampleInputs(0, 10, torch.zeros(0, dtype=torch.int64), np.zeros(0, np.int32))
    empty = torch.zeros(len(slots), dtype=torch.int64)
    step = Step(empty, torch.from_numpy(positions), torch.from_numpy(slots), empty[:0], prefill, decode, sample)
    return step, slots, row_slots


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: AttentionLayer) -> np.ndarray:
    """f64 attention of the last len(q) positions over k, v [context, Hkv, D]."""
    out = np.zeros(q.shape)
    group = layer.num_heads // layer.num_kv_heads
    for i in range(len(q)):
        seen = len(k) - len(q) + i + 1
        for h in range(layer.num_heads):
            scores = k[:seen, h // group].astype(np.float64) @ q[i, h] * layer.scale
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ v[:seen, h // group] / weights.sum()
    return out


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=30)
@given(rows=ROWS, shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_ragged_rows(
    name: str, dtype: torch.dtype, rows: list[tuple[int, int]], shape: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layer = AttentionLayer(*shape, shape[2] ** -0.5)
    step, slots, row_slots = build(rows, rng)
    num_slots, width = int(max(s.max() for s in row_slots)) + 1 + BLOCK, layer.num_kv_heads * layer.head_dim
    # Poison everywhere, then the contexts.
    cache = LayerCache(*(torch.full((num_slots, width), torch.nan, dtype=dtype) for _ in range(2)))
    for filled, (cached, _) in zip(row_slots, rows, strict=True):
        for side in (cache.k, cache.v):
            side[filled[:cached]] = torch.from_numpy(rng.standard_normal((cached, width))).to(dtype)
    new = [torch.from_numpy(rng.standard_normal((len(slots), width))).to(dtype) for _ in range(2)]
    kv_insert(cache, *new, torch.from_numpy(slots))
    q = torch.from_numpy(rng.standard_normal((len(slots), layer.num_heads * layer.head_dim))).to(dtype)
    found = IMPLEMENTATIONS[name](q, cache, layer, step).double().numpy()
    start = 0
    for filled, (_, count) in zip(row_slots, rows, strict=True):
        k, v = (
            side[filled].double().numpy().reshape(len(filled), layer.num_kv_heads, -1) for side in (cache.k, cache.v)
        )
        queries = q[start : start + count].double().numpy().reshape(count, layer.num_heads, -1)
        expected = exact(queries, k, v, layer).reshape(count, -1)
        np.testing.assert_allclose(
            found[start : start + count], expected, atol=1e-5 if dtype == torch.float32 else 0.05
        )
        start += count


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_row_of_nan_stays_alone(name: str) -> None:
    rng = np.random.default_rng(0)
    rows = [(5, 1), (9, 1), (0, 7), (6, 1), (3, 4)]
    layer = AttentionLayer(4, 2, 8, 0.3)
    step, slots, row_slots = build(rows, rng)
    num_slots = int(max(s.max() for s in row_slots)) + 1
    cache = LayerCache(*(torch.randn(num_slots, 16) for _ in range(2)))
    q = torch.randn(len(slots), 32)
    clean = IMPLEMENTATIONS[name](q, cache, layer, step)
    for bad in (1, 2):
        cache.k[row_slots[bad]] = torch.nan
        cache.v[row_slots[bad]] = torch.nan
    found = IMPLEMENTATIONS[name](q, cache, layer, step)
    token_row = np.repeat(np.arange(len(rows)), [new for _, new in rows])
    for row in range(len(rows)):
        mine = token_row == row
        if row in (1, 2):
            assert found[mine].isnan().all()
        else:
            assert torch.equal(found[mine], clean[mine])


def test_a_chunk_longer_than_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = AttentionLayer(4, 2, 8, 0.3)
    step, slots, row_slots = build([(7, 41), (0, 1)], np.random.default_rng(1))
    cache = LayerCache(*(torch.randn(int(max(s.max() for s in row_slots)) + 1, 16) for _ in range(2)))
    q = torch.randn(len(slots), 32)
    monkeypatch.setattr(attention, "QUERY_TILE", 8)
    found = attention.gathered(q, cache, layer, step)
    torch.testing.assert_close(found, attention.reference(q, cache, layer, step), atol=1e-5, rtol=1e-5)
