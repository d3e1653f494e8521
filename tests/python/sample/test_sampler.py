"""The sampler against the numpy reference and the generator's published words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa.ops import draw, logprobs, sample
from proa.ops.gumbel import LARGEST_NOISE, gumbel_noise, philox_word
from proa.ops.sample_inputs import SampleOutputs
from proa.sample import philox, reference
from proa.sample.reference import Recipe
from proa.sched.plan import LOGPROBS_NONE, LOGPROBS_VOCABULARY, PlanLimits, RowExtras
from proa.worker.device import Device
from proa.worker.sampling_rows import SamplingRows
from proa.worker.warm_up import greedy_updates, prompt_plan

VOCAB = 1500
REACHABLE = 1490
ROWS = 6
LIMITS = PlanLimits(ROWS, 64, 64, 64, 16, VOCAB)
EMPTY = np.zeros(0, np.int32)
DRAWS = {choice.name: choice.function for choice in draw.IMPLEMENTATIONS}

#: Random123's known answers of Philox4x32-10: counter, key, words.
KNOWN = [
    ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_generator_gives_the_published_words(counter: list[int], key: tuple[int, int], words: list[int]) -> None:
    assert philox.philox(np.array([counter], np.uint32), key)[0].tolist() == words


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_torch_and_numpy_make_the_same_noise(key: int, position: int, ids: list[int]) -> None:
    words = [torch.tensor([[w]]) for w in (key & 0xFFFFFFFF, key >> 32)]
    counter = np.zeros((len(ids), 4), np.uint32)
    counter[:, 0], counter[:, 1] = ids, position
    expected = philox.philox(counter, (key & 0xFFFFFFFF, key >> 32))[:, 0]
    at = torch.tensor([[position]])
    assert philox_word(*words, torch.tensor([ids]), at)[0].tolist() == expected.tolist()
    noise = gumbel_noise(*words, torch.tensor([ids]), at)[0].numpy()
    np.testing.assert_allclose(noise, philox.gumbel_noise(key, position, np.array(ids)), rtol=1e-6, atol=1e-6)
    assert noise.max() < LARGEST_NOISE


def functions_with(draws: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The sampler's ops; the logits themselves stand in place of the head's product."""
    return {"logits": lambda x, head: x, "draw": draws, "logprobs": logprobs.reference}


def ids_of(values: tuple[int, ...]) -> np.ndarray:
    return np.array(values, np.int32)


def run(
    logits: np.ndarray, recipes: list[Recipe], implementation: str = "candidates", ks: list[int] | None = None
) -> tuple[SampleOutputs, SamplingRows]:
    """Draw from `logits` [rows, VOCAB] as a step would, with parameters by row."""
    n = len(recipes)
    plan = prompt_plan(n, PlanLimits(ROWS, 64, 1, 64, 16, VOCAB))
    updates = greedy_updates(np.arange(n, dtype=np.int32))
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        setattr(updates, name, np.array([getattr(r, name) for r in recipes], np.float32))
    updates.top_k = ids_of(tuple(r.top_k for r in recipes))
    updates.min_tokens = ids_of(tuple(r.min_tokens for r in recipes))
    updates.stream_key = np.array([r.stream_key for r in recipes], np.uint64)
    updates.history_ids = ids_of(sum((r.prompt + r.output for r in recipes), ()))
    updates.history_start = ids_of((0, *np.cumsum([len(r.prompt + r.output) for r in recipes]).tolist()))
    updates.history_prompt_len = ids_of(tuple(len(r.prompt) for r in recipes))
    updates.num_logprobs = ids_of(tuple(ks)) if ks is not None else updates.num_logprobs
    updates.extras = [
        RowExtras(
            ids_of(r.stop_ids),
            ids_of(tuple(token for token, _ in r.bias)),
            np.array([value for _, value in r.bias], np.float32),
            None if r.allowed_ids is None else ids_of(r.allowed_ids),
            tuple(ids_of(word) for word in r.bad_words),
        )
        for r in recipes
    ]
    plan.sample_position = ids_of(tuple(r.position for r in recipes))
    plan.want_logprobs = ks is not None
    rows = SamplingRows(LIMITS, REACHABLE, Device(torch.device("cpu")))
    rows.update(updates)
    functions = functions_with(DRAWS[implementation])
    return sample.sample(torch.from_numpy(logits.copy()), torch.eye(1), rows.inputs(plan), functions), rows


TOKENS = st.integers(0, 19)
RECIPES = st.builds(
    Recipe,
    position=st.integers(0, 40),
    stream_key=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 0.4, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 1200, 2**31 - 1]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    min_tokens=st.integers(0, 40),
    prompt=st.lists(TOKENS, max_size=6).map(tuple),
    output=st.lists(TOKENS, max_size=6).map(tuple),
    stop_ids=st.lists(TOKENS, max_size=3, unique=True).map(tuple),
    bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, 2.5, 8.0]), max_size=3).map(lambda d: tuple(d.items())),
    allowed_ids=st.none() | st.lists(st.integers(0, REACHABLE - 1), min_size=1, max_size=50, unique=True).map(tuple),
    bad_words=st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
)


def logits_of(seed: int, rows: int, step: float) -> np.ndarray:
    """Logits on a coarse grid, so that equal ones are common; ids beyond the reachable are the largest."""
    rng = np.random.default_rng(seed)
    z = (np.round(rng.standard_normal((rows, VOCAB)) * 3 / step) * step).astype(np.float32)
    z[:, :20] += 3
    z[:, REACHABLE:] = 50
    return z


@pytest.mark.parametrize("implementation", DRAWS)
@given(recipes=st.lists(RECIPES, min_size=1, max_size=ROWS), seed=st.integers(0, 2**32 - 1))
def test_draws_follow_the_recipe(implementation: str, recipes: list[Recipe], seed: int) -> None:
    z = logits_of(seed, len(recipes), 0.25)
    outputs, _ = run(z, recipes, implementation)
    for row, recipe in enumerate(recipes):
        reachable = z[row, :REACHABLE]
        if reference.processed(reachable, recipe).max() == -np.inf:
            assert outputs.nonfinite[row] == 1
            continue
        assert outputs.nonfinite[row] == 0
        drawn = int(outputs.sampled_ids[row])
        if drawn != reference.draw(reachable, recipe):
            assert is_near_tie(reachable, recipe, drawn)


def is_near_tie(z: np.ndarray, recipe: Recipe, drawn: int) -> bool:
    """Whether two roundings may differ: a mass at top_p's edge, or two sums within a few last bits."""
    if recipe.temperature == 0:
        return False
    scaled = reference.processed(z, recipe) / np.float32(recipe.temperature)
    ids = np.array([drawn, reference.draw(z, recipe)])
    noisy = scaled[ids] + philox.gumbel_noise(recipe.stream_key, recipe.position, ids)
    if abs(noisy[0] - noisy[1]) <= 1e-5:
        return True
    shifted = [reference.candidates(reference.processed(z, recipe), change(recipe, d))[0] for d in (-1e-6, 1e-6)]
    return len(shifted[0]) != len(shifted[1])


def change(recipe: Recipe, by: float) -> Recipe:
    return dataclasses.replace(recipe, top_p=recipe.top_p + by, min_p=recipe.min_p * (1 + by))


@pytest.mark.parametrize("implementation", DRAWS)
def test_the_noise_draws_from_the_distribution(implementation: str) -> None:
    z = np.full((ROWS, VOCAB), -np.inf, np.float32)
    z[:, :3] = np.log([0.5, 0.3, 0.2])
    counts = np.zeros(3)
    for position in range(150):
        recipes = [Recipe(stream_key=12345 + row, position=position) for row in range(ROWS)]
        counts += np.bincount(run(z, recipes, implementation)[0].sampled_ids.numpy(), minlength=3)
    # Three standard deviations of a binomial over 900 draws are below 0.05; the stream is fixed.
    np.testing.assert_allclose(counts / counts.sum(), [0.5, 0.3, 0.2], atol=0.05)


@pytest.mark.parametrize("implementation", DRAWS)
def test_a_bad_row_is_flagged_and_leaves_its_neighbours_alone(implementation: str) -> None:
    good = logits_of(3, ROWS, 0.01)
    recipes = [Recipe(stream_key=row, temperature=1.0, top_p=0.9, bias=((3, 1.0),)) for row in range(ROWS)]
    expected, _ = run(good.copy(), recipes, implementation)
    bad = good.copy()
    bad[1, 7] = np.nan
    bad[3] = -np.inf
    bad[4, REACHABLE + 1] = np.nan  # not reachable: harms nobody
    outputs, _ = run(bad, recipes, implementation, [5] * ROWS)
    assert outputs.nonfinite.tolist() == [0, 1, 0, 1, 0, 0]
    kept = [0, 2, 4, 5]
    assert outputs.sampled_ids[kept].tolist() == expected.sampled_ids[kept].tolist()
    assert ((outputs.sampled_ids >= 0) & (outputs.sampled_ids < REACHABLE)).all()
    assert outputs.logprobs is not None
    assert outputs.logprobs.value[kept].isfinite().all()


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from([-1, 0, 1, 5, 20, LOGPROBS_VOCABULARY]), min_size=1, max_size=ROWS),
)
def test_logprobs_are_of_the_raw_logits(seed: int, ks: list[int]) -> None:
    z = logits_of(seed, len(ks), 0.5)
    recipes = [Recipe(temperature=0.0, bias=((7, 100.0),)) for _ in ks]
    outputs, _ = run(z.copy(), recipes, ks=ks)
    found = outputs.logprobs
    assert found is not None
    for row, k in enumerate(ks):
        exact = z[row, :REACHABLE].astype(np.float64)
        exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
        assert outputs.sampled_ids[row] == 7
        assert found.value[row] == pytest.approx(exact[7], abs=1e-5)
        assert found.rank[row] == (z[row, :REACHABLE] >= z[row, 7]).sum()
        width = REACHABLE if k == LOGPROBS_VOCABULARY else max(k, 0)
        order = np.lexsort((np.arange(REACHABLE), -z[row, :REACHABLE]))[:width]
        assert found.top_ids[row, :width].tolist() == order.tolist()
        np.testing.assert_allclose(found.top_values[row, :width], exact[order], atol=1e-5)
        assert (found.top_ids[row, width:] == -1).all()


def test_a_row_without_a_finite_logprob_has_no_rank() -> None:
    z = logits_of(0, 1, 0.5)
    z[0, 0] = np.inf
    outputs, _ = run(z, [Recipe(temperature=0.0)], ks=[2])
    assert outputs.logprobs is not None
    assert outputs.logprobs.value[0].isnan() and outputs.logprobs.rank[0] == 0


def test_what_was_drawn_is_remembered_on_the_device() -> None:
    """Penalties and bad words of the next step see this step's token without the host."""
    z = np.zeros((1, VOCAB), np.float32)
    z[0, [5, 6, 7]] = [3.0, 2.9, 2.8]
    recipe = Recipe(temperature=0.0, presence_penalty=0.15, bad_words=((5, 7),))
    _, rows = run(z.copy(), [recipe])
    functions = functions_with(DRAWS["candidates"])
    plan = prompt_plan(1, PlanLimits(ROWS, 64, 1, 64, 16, VOCAB))
    drawn = []
    for _ in range(4):
        outputs = sample.sample(torch.from_numpy(z.copy()), torch.eye(1), rows.inputs(plan), functions)
        rows.remember(plan, outputs.sampled_ids)
        drawn.append(int(outputs.sampled_ids[0]))
    # 5; then 6, for 7 is masked behind 5; then 5 with 2.85 over 7 with 2.8; then 5 again, for 7 is masked behind it.
    assert drawn == [5, 6, 5, 5]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    z = np.zeros((2, VOCAB), np.float32)
    z[1, [900, 40, 1489]] = 4.0
    assert run(z, [Recipe(temperature=0.0)] * 2)[0].sampled_ids.tolist() == [0, 40]


def test_no_logprobs_are_made_when_no_row_asks() -> None:
    outputs, _ = run(logits_of(1, 1, 0.5), [Recipe(temperature=0.0)], ks=None)
    assert outputs.logprobs is None and outputs.prompt_logprobs is None
    assert LOGPROBS_NONE == -1
