"""The native runner on small programs: attention against a plain reference, the sampler against its recipe.

Trick of these tests: an embedding table whose rows are what a test wants to feed, and an identity head, so that logits
(and, through full-vocabulary logprobs, any buffer) can be read from outside.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from proa.ops.cpu import library
from proa.ops.cpu.runner import CacheType, CpuRunner, Op, RunnerConfig, Weights
from proa.sched.plan import HOST, LOGPROBS_VOCABULARY, RowExtras, RowUpdates, StepPlan, StepResult

EMPTY = np.zeros(0, np.int32)
ISAS = library.available_isas()


def updates(rows: list[int], **changes: object) -> RowUpdates:
    count = len(rows)
    values: dict[str, object] = {
        "row": np.array(rows, np.int32),
        "temperature": np.zeros(count, np.float32),
        "top_p": np.ones(count, np.float32),
        "min_p": np.zeros(count, np.float32),
        "top_k": np.zeros(count, np.int32),
        "presence_penalty": np.zeros(count, np.float32),
        "frequency_penalty": np.zeros(count, np.float32),
        "repetition_penalty": np.ones(count, np.float32),
        "min_tokens": np.zeros(count, np.int32),
        "stream_key": np.arange(count, dtype=np.uint64),
        "num_logprobs": np.full(count, -1, np.int32),
        "history_start": np.zeros(count + 1, np.int32),
        "history_ids": EMPTY,
        "history_prompt_len": np.zeros(count, np.int32),
        "extras": [None] * count,
    }
    values.update(changes)
    return RowUpdates(**values)  # type: ignore[arg-type]


class Driver:
    """Feeds token ids of rows to a runner, 4 blocks of 16 a row laid out backwards."""

    def __init__(self, runner: CpuRunner, blocks_per_row: int) -> None:
        self.runner = runner
        self.blocks_per_row = blocks_per_row
        self.computed: dict[int, int] = {}
        self.steps = 0

    def block(self, row: int, index: int) -> int:
        return self.runner.config.num_blocks - 1 - (row * self.blocks_per_row + index)

    def plan(self, work: dict[int, list[int]], filled: RowUpdates | None, position: int = 0) -> StepPlan:
        self.steps += 1
        rows = list(work)
        start = {row: self.computed.get(row, 0) for row in rows}
        counts = [len(work[row]) for row in rows]
        positions = np.concatenate([np.arange(start[r], start[r] + len(work[r])) for r in rows]).astype(np.int32)
        token_row = np.repeat(rows, counts)
        slots = [
            self.block(r, p // 16) * 16 + p % 16 for r, p in zip(token_row.tolist(), positions.tolist(), strict=True)
        ]
        table = [(r, i, self.block(r, i)) for r in rows if start[r] == 0 for i in range(self.blocks_per_row)]
        query_start = np.cumsum([0, *counts]).astype(np.int32)
        for row in rows:
            self.computed[row] = start[row] + len(work[row])
        t = np.array(table, np.int32).reshape(-1, 3)
        return StepPlan(
            step=self.steps,
            row=np.array(rows, np.int32),
            query_start=query_start,
            context_len=np.array([self.computed[r] for r in rows], np.int32),
            token_ids=np.array(list(itertools.chain(*work.values())), np.int32),
            token_source=np.full(len(positions), HOST, np.int32),
            positions=positions,
            slot_mapping=np.array(slots, np.int64)[None],
            table_group=np.zeros(len(t), np.int32),
            table_row=np.ascontiguousarray(t[:, 0]),
            table_index=np.ascontiguousarray(t[:, 1]),
            table_block=np.ascontiguousarray(t[:, 2]),
            logit_token=(query_start[1:] - 1).astype(np.int32),
            sample_row=np.array(rows, np.int32),
            sample_position=np.full(len(rows), position, np.int32),
            prompt_target=EMPTY,
            prompt_k=EMPTY,
            updates=filled,
            want_logprobs=True,
        )

    def step(self, work: dict[int, list[int]], filled: RowUpdates | None = None, position: int = 0) -> StepResult:
        self.runner.submit(self.plan(work, filled, position))
        return self.runner.collect()


# ---- attention -------------------------------------------------------------------------------------------------------

HEADS, KV_HEADS, DIM = 6, 2, 32
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
OUT = HEADS * DIM


def attention_runner(
    isa: str, threads: int, table: np.ndarray, window: int, softcap: float, cache: CacheType
) -> CpuRunner:
    config = RunnerConfig(8, 256, 128, 64, 16, cache, OUT, OUT, threads, False, isa)
    runner = CpuRunner(config)
    layer = runner.add_layer(library.Layer(HEADS, KV_HEADS, DIM, DIM, 0, window, -1, DIM**-0.5, softcap))
    qkv, out, picked = (runner.add_buffer(width) for width in (WIDTH, OUT, OUT))
    embedding = runner.add_table(Weights(0, len(table), WIDTH, table))
    head = runner.add_matrix([Weights(0, OUT, OUT, np.eye(OUT, dtype=np.float32))])
    runner.add_instruction(Op.EMBED, dst=qkv, matrix=embedding, scalar=1.0)
    runner.add_instruction(Op.ROPE_INSERT, src=qkv, layer=layer)
    runner.add_instruction(Op.ATTENTION, dst=out, src=qkv, layer=layer)
    runner.add_instruction(Op.SELECT, dst=picked, src=out)
    runner.add_instruction(Op.LOGITS, src=picked, matrix=head)
    return runner


def values_of(result: StepResult, row: int) -> np.ndarray:
    """A row's logits up to a constant, from its full-vocabulary logprobs."""
    assert result.logprobs is not None
    values = np.zeros(OUT, np.float32)
    values[result.logprobs.top_ids[row]] = result.logprobs.top_values[row]
    return values


def reference_attention(table: np.ndarray, ids: list[int], window: int, softcap: float) -> np.ndarray:
    """Attention output of the last token, f64."""
    x = table[ids].astype(np.float64)
    q = x[-1, :OUT].reshape(HEADS, DIM)
    k = x[:, OUT : OUT + KV_HEADS * DIM].reshape(-1, KV_HEADS, DIM)
    v = x[:, OUT + KV_HEADS * DIM :].reshape(-1, KV_HEADS, DIM)
    low = max(len(ids) - window, 0) if window else 0
    out = []
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        score = k[low:, kv] @ q[head] * DIM**-0.5
        if softcap:
            score = softcap * np.tanh(score / softcap)
        weight = np.exp(score - score.max())
        out.append(weight / weight.sum() @ v[low:, kv])
    return np.concatenate(out)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [0, 7, 20])
@pytest.mark.parametrize("isa", ISAS)
def test_attention_is_the_reference_for_every_length_and_cut(isa: str, window: int, softcap: float) -> None:
    rng = np.random.default_rng(window)
    table = rng.standard_normal((40, WIDTH)).astype(np.float32)
    prompts = {row: rng.integers(0, 40, length).tolist() for row, length in enumerate([1, 15, 16, 17, 33, 63])}
    wanted = updates(list(prompts), num_logprobs=np.full(len(prompts), LOGPROBS_VOCABULARY, np.int32))
    whole = None
    for threads, chunk in [(1, 64), (2, 64), (2, 5), (1, 1)]:
        runner = attention_runner(isa, threads, table, window, softcap, CacheType.FLOAT32)
        driver = Driver(runner, 4)
        got: dict[int, np.ndarray] = {}
        filled: RowUpdates | None = wanted
        left = dict(prompts)
        while left:
            work = {row: ids[:chunk] for row, ids in left.items()}
            result = driver.step(work, filled)
            filled = None
            for i, row in enumerate(work):
                got[row] = values_of(result, i)
            left = {row: ids[chunk:] for row, ids in left.items() if len(ids) > chunk}
        runner.close()
        for row, ids in prompts.items():
            reference = reference_attention(table, ids, window, softcap)
            reference -= reference.max() + math.log(np.exp(reference - reference.max()).sum())
            np.testing.assert_allclose(got[row], reference, atol=3e-5)
        if whole is None:
            whole = got
        for row in prompts:
            assert np.array_equal(whole[row], got[row]), (threads, chunk, row)


@pytest.mark.parametrize("cache", [CacheType.BFLOAT16, CacheType.FLOAT16])
@pytest.mark.parametrize("isa", ISAS)
def test_a_narrow_cache_rounds_keys_and_values_only(isa: str, cache: CacheType) -> None:
    rng = np.random.default_rng(5)
    table = rng.standard_normal((40, WIDTH)).astype(np.float32)
    rounded = table.copy()
    if cache is CacheType.FLOAT16:
        rounded[:, OUT:] = table[:, OUT:].astype(np.float16)
    else:
        bits = np.ascontiguousarray(table[:, OUT:]).view(np.uint32)
        rounded[:, OUT:] = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    ids = rng.integers(0, 40, 50).tolist()
    runner = attention_runner(isa, 2, table, 0, 0.0, cache)
    result = Driver(runner, 4).step({0: ids}, updates([0], num_logprobs=np.array([LOGPROBS_VOCABULARY], np.int32)))
    reference = reference_attention(rounded, ids, 0, 0.0)
    reference -= reference.max() + math.log(np.exp(reference - reference.max()).sum())
    np.testing.assert_allclose(values_of(result, 0), reference, atol=3e-5)
    runner.close()


# ---- the sampler -----------------------------------------------------------------------------------------------------

VOCAB = 300
REACHABLE = 290


def sampler(table: np.ndarray, isa: str) -> tuple[CpuRunner, Driver]:
    runner = CpuRunner(RunnerConfig(8, 64, 64, 32, 16, CacheType.FLOAT32, VOCAB, REACHABLE, 2, False, isa))
    logits, picked = runner.add_buffer(VOCAB), runner.add_buffer(VOCAB)
    embedding = runner.add_table(Weights(0, len(table), VOCAB, table))
    head = runner.add_matrix([Weights(0, VOCAB, VOCAB, np.eye(VOCAB, dtype=np.float32))])
    runner.add_instruction(Op.EMBED, dst=logits, matrix=embedding, scalar=1.0)
    runner.add_instruction(Op.SELECT, dst=picked, src=logits)
    runner.add_instruction(Op.LOGITS, src=picked, matrix=head)
    return runner, Driver(runner, 4)


def philox(key: int, c0: int, c1: int) -> int:
    """Word 0 of Philox4x32-10 with counter (c0, c1, 0, 0)."""
    k0, k1, c2, c3 = key & 0xFFFFFFFF, key >> 32, 0, 0
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0


def test_the_reference_generator_gives_the_published_words() -> None:
    assert philox(0, 0, 0) == 0x6627E8D5  # Random123's known answers for zero key and counter


def gumbel(key: int, position: int, ids: np.ndarray) -> np.ndarray:
    u = np.array([((philox(key, int(i), position) >> 9) + 0.5) * 2.0**-23 for i in ids])
    return -np.log(-np.log(u))


def draw(z: np.ndarray, key: int, position: int, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """The recipe of http-surface.md 2.2 in f64."""
    z = z[:REACHABLE].astype(np.float64)
    if temperature == 0:
        return int(np.argmax(z))
    z = z / temperature
    alive = np.isfinite(z)
    if min_p > 0:
        alive &= z >= z.max() + math.log(min_p)
    order = sorted(np.flatnonzero(alive).tolist(), key=lambda i: (-z[i], i))
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        mass = np.exp(z[order] - z.max())
        order = order[: int(np.searchsorted(np.cumsum(mass), top_p * mass.sum() * (1 - 1e-12))) + 1]
    ids = np.array(order)
    return int(ids[np.argmax(z[ids] + gumbel(key, position, ids))])


@pytest.mark.parametrize("isa", ISAS)
def test_draws_follow_the_recipe(isa: str) -> None:
    rng = np.random.default_rng(11)
    table = (rng.standard_normal((16, VOCAB)) * 3).astype(np.float32)
    runner, driver = sampler(table, isa)
    cases = [
        (temperature, top_k, top_p, min_p)
        for temperature in (0.0, 0.3, 1.0, 2.0)
        for top_k in (0, 1, 7)
        for top_p in (0.0, 0.5, 0.95, 1.0)
        for min_p in (0.0, 0.2, 1.0)
    ]
    for number, (temperature, top_k, top_p, min_p) in enumerate(cases):
        row, token, position = number % 8, number % 16, number % 13
        key = 0x0123456789ABCDEF * (number + 1) & 0xFFFFFFFFFFFFFFFF
        filled = updates(
            [row],
            temperature=np.array([temperature], np.float32),
            top_k=np.array([top_k], np.int32),
            top_p=np.array([top_p], np.float32),
            min_p=np.array([min_p], np.float32),
            stream_key=np.array([key], np.uint64),
        )
        driver.computed.pop(row, None)
        result = driver.step({row: [token]}, filled, position)
        assert result.sampled_ids[0] == draw(table[token], key, position, temperature, top_k, top_p, min_p), number
    runner.close()


@pytest.mark.parametrize("isa", ISAS)
def test_logprobs_are_of_the_raw_logits_with_ranks_and_ties_by_lower_id(isa: str) -> None:
    rng = np.random.default_rng(3)
    table = rng.standard_normal((2, VOCAB)).astype(np.float32)
    table[1, 40] = table[1, 20] = table[1, 60] = 9.0
    runner, driver = sampler(table, isa)
    bias = RowExtras(EMPTY, np.array([7], np.int32), np.array([100.0], np.float32), None, ())
    filled = updates([0, 1], num_logprobs=np.array([3, 5], np.int32), extras=[bias, None])
    result = driver.step({0: [0], 1: [1]}, filled)
    assert result.logprobs is not None
    for i in range(2):
        z = table[i, :REACHABLE].astype(np.float64)
        logprob = z - z.max() - math.log(np.exp(z - z.max()).sum())
        drawn = int(result.sampled_ids[i])
        assert drawn == (7 if i == 0 else 20)
        assert abs(result.logprobs.value[i] - logprob[drawn]) < 1e-5
        assert result.logprobs.rank[i] == (z >= z[drawn]).sum()
        k = (3, 5)[i]
        order = sorted(range(REACHABLE), key=lambda v: (-z[v], v))[:k]
        assert result.logprobs.top_ids[i, :k].tolist() == order
        np.testing.assert_allclose(result.logprobs.top_values[i, :k], logprob[order], atol=1e-5)
        assert (result.logprobs.top_ids[i, k:] == -1).all()
    runner.close()


@pytest.mark.parametrize("isa", ISAS)
def test_masks_penalties_and_bad_rows(isa: str) -> None:
    table = np.zeros((4, VOCAB), np.float32)
    table[0, [5, 6, 7]] = [3.0, 2.0, 1.0]
    table[1] = np.nan
    table[2, :REACHABLE] = -np.inf
    table[3, REACHABLE + 1] = 50.0  # beyond the tokenizer's ids: never drawn
    table[3, 4] = 1.0
    runner, driver = sampler(table, isa)

    def one(token: int, extras: RowExtras | None = None, **changes: object) -> StepResult:
        driver.computed.pop(0, None)
        return driver.step({0: [token]}, updates([0], extras=[extras], **changes))

    def extra(**changes: object) -> RowExtras:
        values: dict[str, object] = {
            "stop_ids": EMPTY,
            "bias_ids": EMPTY,
            "bias_values": np.zeros(0, np.float32),
            "allowed_ids": None,
            "bad_words": (),
        }
        return RowExtras(**(values | changes))  # type: ignore[arg-type]

    ids = lambda *values: np.array(values, np.int32)  # noqa: E731
    assert one(0).sampled_ids[0] == 5
    assert one(0, extra(stop_ids=ids(5)), min_tokens=ids(1)).sampled_ids[0] == 6
    assert one(0, extra(allowed_ids=ids(7, 100))).sampled_ids[0] == 7
    assert one(0, extra(bad_words=(ids(5),))).sampled_ids[0] == 6
    history = {"history_start": ids(0, 3), "history_ids": ids(9, 8, 5), "history_prompt_len": ids(2)}
    assert one(0, extra(bad_words=(ids(8, 5, 5),)), **history).sampled_ids[0] == 6
    assert one(0, extra(bad_words=(ids(9, 5, 5),)), **history).sampled_ids[0] == 5
    assert one(0, presence_penalty=np.array([1.5], np.float32), **history).sampled_ids[0] == 6
    assert one(0, frequency_penalty=np.array([1.5], np.float32), **history).sampled_ids[0] == 6
    assert one(0, repetition_penalty=np.array([2.0], np.float32), **history).sampled_ids[0] == 6
    assert one(3).sampled_ids[0] == 4
    assert one(1).nonfinite[0] == 1
    assert one(2).nonfinite[0] == 1
    assert one(0).nonfinite[0] == 0
    # A bad row leaves its neighbours alone.
    for row in range(4):
        driver.computed.pop(row, None)
    together = driver.step({0: [0], 1: [1], 2: [0], 3: [2]}, updates([0, 1, 2, 3]))
    assert together.nonfinite.tolist() == [0, 1, 0, 1]
    assert together.sampled_ids[[0, 2]].tolist() == [5, 5]
    runner.close()
