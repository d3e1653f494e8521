"""The default model on the native CPU executor: transformers' greedy tokens and logprobs with f32 activations, and the
same bits whatever shares a step.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from plan_driver import Ask, Driver, Got
from test_default_model import NUM_TOKENS, PROMPTS, Reference

from proa._rust import Tokenizer, open_model
from proa.config.engine_config import EngineConfig
from proa.executor.cpu import CpuExecutor
from proa.executor.interface import StartFailed
from proa.ops.cpu import library


@pytest.fixture(scope="module")
def reference(default_model: Path) -> Reference:
    return Reference(default_model)


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer = Tokenizer(open_model(str(default_model)))
    return [tokenizer.encode(text) for text in PROMPTS]


def config(path: Path, **changes: object) -> EngineConfig:
    plain = EngineConfig(connect="", model_path=str(path), kv_cache_memory_bytes=200_000_000, cpu_activations="f32")
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def generate(path: Path, asks: list[Ask], **changes: object) -> list[Got]:
    executor = CpuExecutor(config(path, **changes))
    try:
        facts = executor.start(lambda phase, progress: None)
        return Driver(executor, facts.limits).generate(asks)
    finally:
        executor.close()


@pytest.fixture(scope="module")
def batch(default_model: Path, prompts: list[list[int]]) -> list[Got]:
    """All prompts at once, with logprobs of every position."""
    return generate(default_model, [Ask(p, NUM_TOKENS, num_logprobs=5, prompt_k=5) for p in prompts])


def test_greedy_text_and_logprobs_are_the_references(
    reference: Reference, prompts: list[list[int]], batch: list[Got]
) -> None:
    for prompt, got in zip(prompts, batch, strict=True):
        logits = reference.logits(prompt + got.ids)
        assert got.ids == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        expected = torch.log_softmax(logits, -1).numpy()[len(prompt) - 1 : -1]
        np.testing.assert_allclose(got.values, expected[np.arange(len(got.ids)), got.ids], atol=1e-4)


@pytest.mark.parametrize("activations", ["f32", "int8"])
@pytest.mark.parametrize("isa", [isa for isa in library.available_isas() if isa != "portable"])
def test_bits_do_not_depend_on_company_or_threads(
    default_model: Path, prompts: list[list[int]], isa: str, activations: str
) -> None:
    asks = [Ask(p, 12, num_logprobs=2) for p in prompts[:6]]
    choice = {"cpu_isa": isa, "cpu_activations": activations}
    together = generate(default_model, asks, threads=2, **choice)
    alone = [generate(default_model, [ask], threads=1, **choice)[0] for ask in asks[::3]]
    for one, other in zip(alone, together[::3], strict=True):
        assert one.ids == other.ids
        assert np.array_equal(one.values, other.values)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"load_format": "dummy"}, "dummy"),
        ({"kernel": {"linear": "torch"}}, "linear"),
        ({"block_size": 24}, "24"),
        ({"cpu_isa": "sse9"}, "sse9"),
        ({"kv_cache_dtype": "fp8"}, "fp8"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(default_model: Path, changes: dict[str, object], word: str) -> None:
    with pytest.raises(StartFailed, match=word) as failure:
        CpuExecutor(config(default_model, **changes)).start(lambda phase, progress: None)
    assert failure.value.kind == "start_config"
