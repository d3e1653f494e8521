"""Every variant of the family gives transformers' tokens and logprobs, alone and in batches, chunked or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from plan_driver import Ask, Driver
from tiny_models import VARIANTS, make_model, save
from transformers import LlamaForCausalLM

from proa.config.engine_config import EngineConfig
from proa.executor.torch_executor import TorchExecutor
from proa.sched.plan import LOGPROBS_VOCABULARY

NUM_TOKENS = 12
LENGTHS = (1, 2, 15, 16, 17, 40, 90)


def engine(folder: Path, **changes: object) -> tuple[TorchExecutor, Driver]:
    values: dict[str, object] = {"device": "cpu", "threads": 1, "dtype": "float32", "kv_cache_memory_bytes": 1 << 22}
    executor = TorchExecutor(EngineConfig(connect="", model_path=str(folder), **(values | changes)))  # type: ignore[arg-type]
    facts = executor.start(lambda phase, progress: None)
    return executor, Driver(executor, facts.limits)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, 320, n).tolist() for n in LENGTHS]


def logprobs_of(model: LlamaForCausalLM, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1).numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_and_every_logprob(variant: str, tmp_path: Path) -> None:
    model = make_model(variant)
    executor, driver = engine(save(model, tmp_path))
    asks = [Ask(p, NUM_TOKENS, num_logprobs=5, prompt_k=LOGPROBS_VOCABULARY) for p in prompts()]
    got = driver.generate(asks, np.random.default_rng(1))
    for ask, one in zip(asks, got, strict=True):
        expected = logprobs_of(model, ask.prompt + one.ids)
        drawn = expected[len(ask.prompt) - 1 : -1]
        # Equal at every step to the arg-max after the same tokens, hence the greedy text.
        assert one.ids == drawn.argmax(-1).tolist()
        np.testing.assert_allclose(one.values, drawn.max(-1), atol=1e-4)
        np.testing.assert_allclose(one.top_values, -np.sort(-drawn)[:, :5], atol=1e-4)
        for position, (ids, values) in enumerate(zip(one.prompt_top_ids, one.prompt_top_values, strict=True)):
            np.testing.assert_allclose(values, expected[position][ids], atol=1e-4)
            assert one.prompt_values[position] == pytest.approx(expected[position][ask.prompt[position + 1]], abs=1e-4)
        assert one.ranks == [1] * NUM_TOKENS and not any(one.nonfinite)
    executor.close()


@pytest.mark.parametrize("kernel", ["gathered", "reference"])
def test_alone_and_in_chunks(kernel: str, tmp_path: Path) -> None:
    executor, driver = engine(save(make_model("grouped"), tmp_path), kernel={"attention": kernel})
    asks = [Ask(p, NUM_TOKENS) for p in prompts()]
    together = [one.ids for one in driver.generate(asks)]
    for chunk in (1, 7, 16):
        driver.chunk = chunk
        assert [one.ids for one in driver.generate(asks, np.random.default_rng(chunk))] == together
    driver.chunk = 1 << 20
    assert [driver.generate([ask])[0].ids for ask in asks] == together
    # Resumed after a preemption: the first tokens are known, the rest follow.
    resumed = [
        Ask(ask.prompt + ids[:5], NUM_TOKENS - 5, known_output=5) for ask, ids in zip(asks, together, strict=True)
    ]
    assert [one.ids for one in driver.generate(resumed)] == [ids[5:] for ids in together]
    executor.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_stay_near(dtype: str, tmp_path: Path) -> None:
    model = make_model("tied")
    folder = save(model, tmp_path, getattr(torch, dtype))
    executor, driver = engine(folder, dtype=dtype)
    (got,) = driver.generate([Ask(prompts()[-1], NUM_TOKENS, prompt_k=0)])
    expected = logprobs_of(model, prompts()[-1])
    true = expected[np.arange(len(expected) - 1), prompts()[-1][1:]]
    assert np.abs(np.array(got.prompt_values) - true).max() < 0.3
    executor.close()


def test_draws_depend_on_the_request_alone(tmp_path: Path) -> None:
    executor, driver = engine(save(make_model("plain"), tmp_path))
    asks = [
        Ask(p, NUM_TOKENS, temperature=1.0, top_p=0.9, stream_key=17 * i, presence_penalty=0.5 * (i % 2))
        for i, p in enumerate(prompts())
    ]
    together = [one.ids for one in driver.generate(asks)]
    assert [driver.generate([ask])[0].ids for ask in asks] == together
    resumed = [
        Ask(ask.prompt + ids[:5], NUM_TOKENS - 5, ask.temperature, ask.top_p, known_output=5, stream_key=ask.stream_key,
            presence_penalty=ask.presence_penalty)
        for ask, ids in zip(asks, together, strict=True)
    ]  # fmt: skip
    assert [one.ids for one in driver.generate(resumed)] == [ids[5:] for ids in together]
    executor.close()
