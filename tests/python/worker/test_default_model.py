"""The default model on the torch executor gives transformers' tokens and logprobs for the same GGUF file.

A token equal to the reference's arg-max after the same tokens, at every position, is the reference's greedy text; so
the reference needs one pass over each finished text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from plan_driver import Ask, Driver, Got

from proa._rust import Tokenizer, open_model
from proa.config.engine_config import EngineConfig
from proa.executor.torch_executor import TorchExecutor

NUM_TOKENS = 64
LARGEST_BF16_MARGIN = 0.125
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first human",
    "To bake bread you need",
    "1, 1, 2, 3, 5, 8,",
    "Die Hauptstadt von Deutschland ist",
    "The mitochondria is the",
    "import numpy as np\n\nx = np.",
    "A proa is a boat with",
    "Q: What is photosynthesis?\nA:",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "List of planets in the solar system:\n1.",
    "She opened the door and saw",
    "The derivative of x squared is",
    "Shakespeare wrote",
    "I think, therefore",
]


class Reference:
    """transformers on the default model, in fp32."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Return f32[len(ids), vocab], computed once for each text."""
        if tuple(ids) not in self._known:
            with torch.inference_mode():
                self._known[tuple(ids)] = self._model(torch.tensor([ids])).logits[0].float()
        return self._known[tuple(ids)]


@pytest.fixture(scope="module")
def reference(default_model: Path) -> Reference:
    return Reference(default_model)


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer = Tokenizer(open_model(str(default_model)))
    return [tokenizer.encode(text) for text in PROMPTS]


def start(path: Path, dtype: str) -> tuple[TorchExecutor, Driver]:
    config = EngineConfig(connect="", model_path=str(path), dtype=dtype, kv_cache_memory_bytes=200_000_000)
    executor = TorchExecutor(config)
    facts = executor.start(lambda phase, progress: None)
    return executor, Driver(executor, facts.limits)


@pytest.fixture(scope="module")
def driver(default_model: Path) -> Iterator[Driver]:
    executor, driver = start(default_model, "float32")
    yield driver
    executor.close()


@pytest.fixture(scope="module")
def batch(driver: Driver, prompts: list[list[int]]) -> list[Got]:
    """All prompts at once, with logprobs of every position."""
    return driver.generate([Ask(p, NUM_TOKENS, num_logprobs=5, prompt_k=5) for p in prompts])


def test_greedy_text_in_a_batch(reference: Reference, prompts: list[list[int]], batch: list[Got]) -> None:
    for prompt, got in zip(prompts, batch, strict=True):
        logits = reference.logits(prompt + got.ids)
        assert got.ids == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_logprobs_at_all_positions(reference: Reference, prompts: list[list[int]], batch: list[Got]) -> None:
    for prompt, got in zip(prompts, batch, strict=True):
        expected = torch.log_softmax(reference.logits(prompt + got.ids), -1).numpy()
        of_prompt, of_output = expected[: len(prompt) - 1], expected[len(prompt) - 1 : -1]
        columns = [
            (of_prompt, prompt[1:], got.prompt_values, got.prompt_top_ids, got.prompt_top_values),
            (of_output, got.ids, got.values, got.top_ids, got.top_values),
        ]
        for rows, ids, values, top_ids, top_values in columns:
            np.testing.assert_allclose(values, rows[np.arange(len(ids)), ids], atol=1e-4)
            np.testing.assert_allclose(top_values, np.take_along_axis(rows, np.array(top_ids), -1), atol=1e-4)
            np.testing.assert_allclose(top_values, -np.sort(-rows)[:, :5], atol=1e-4)


def test_the_same_text_alone_and_in_chunks(driver: Driver, prompts: list[list[int]], batch: list[Got]) -> None:
    driver.chunk = 16
    some = (1, 5, 13, 14)
    chunked = driver.generate([Ask(prompts[i], NUM_TOKENS) for i in some], np.random.default_rng(2))
    driver.chunk = 1 << 20
    assert [got.ids for got in chunked] == [batch[i].ids for i in some]
    assert driver.generate([Ask(prompts[14], NUM_TOKENS)])[0].ids == batch[14].ids


def test_bf16_differs_only_where_the_reference_is_undecided(
    default_model: Path, reference: Reference, prompts: list[list[int]], batch: list[Got]
) -> None:
    executor, driver = start(default_model, "bfloat16")
    found = driver.generate([Ask(p, NUM_TOKENS) for p in prompts])
    executor.close()
    for prompt, exact, got in zip(prompts, batch, found, strict=True):
        different = [i for i in range(NUM_TOKENS) if got.ids[i] != exact.ids[i]]
        if different:
            logits = reference.logits(prompt + exact.ids)[len(prompt) - 1 + different[0]]
            best = logits.topk(2).values
            assert best[0] - best[1] <= LARGEST_BF16_MARGIN
