"""The torch executor's protocol, its sizes and its refusals, on generated weights."""

from __future__ import annotations

import dataclasses
import select
from pathlib import Path

import numpy as np
import pytest
import torch
from generated_model import SHAPE, start, write_config
from plan_driver import Ask, Driver

from proa.config.engine_config import EngineConfig
from proa.executor.interface import StartFailed, StepFailed
from proa.executor.select import make_executor
from proa.executor.torch_executor import TorchExecutor
from proa.ops.interface import Parameter
from proa.weights.generated import TILE_SIZE, first_place, make_tile
from proa.worker.warm_up import prompt_plan

BLOCK_BYTES = 2 * 2 * 32 * 2 * 16 * 4  # K and V, two heads of 32, two layers, 16 tokens, f32


def test_what_was_asked_for_is_what_there_is(tmp_path: Path) -> None:
    phases: list[str] = []
    config = EngineConfig(
        connect="",
        model_path=str(write_config(tmp_path)),
        load_format="dummy",
        kv_cache_memory_bytes=1 << 19,
        threads=1,
    )
    executor = make_executor(config)
    facts = executor.start(lambda phase, progress: phases.append(phase))
    assert phases == ["device", "weights", "kv", "warm_up"]
    assert facts.device == "cpu" and facts.dtype == facts.cache_dtype == "float32"
    assert facts.block_bytes == BLOCK_BYTES
    assert facts.limits.num_blocks == (1 << 19) // BLOCK_BYTES
    assert facts.limits.max_model_len == facts.limits.num_blocks * 16  # less than the model's 1,024
    assert facts.memory_bytes["kv"] == facts.limits.num_blocks * BLOCK_BYTES
    assert facts.memory_bytes["weights"] > 512 * 128 * 4 and facts.memory_bytes["workspace"] > 0
    assert 64 <= facts.limits.max_num_batched_tokens <= 4096
    assert facts.capabilities["structured_outputs"][0] is False
    executor.close()
    executor.close()


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"kv_cache_memory_bytes": 100}, "start_memory", f"one takes {BLOCK_BYTES} bytes"),
        ({"max_model_len": 1024, "kv_cache_memory_bytes": 1 << 19}, "start_memory", "lower --max-model-len to 512"),
        ({"kv_cache_dtype": "fp8"}, "start_config", "kv_cache_dtype 'fp8'"),
        ({"kernel": {"draw": "magic"}}, "start_config", "candidates, reference"),
        ({"cpu_isa": "avx2"}, "start_config", "torch chooses"),
        ({"load_format": "auto"}, "start_weights", "safetensors"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], kind: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=words) as caught:
        start(write_config(tmp_path), **changes)
    assert caught.value.kind == kind


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no CUDA device") as caught:
        start(write_config(tmp_path), device="cuda")
    assert caught.value.kind == "start_device"


def test_the_descriptor_is_readable_exactly_while_a_step_is_done(tmp_path: Path) -> None:
    executor, facts = start(write_config(tmp_path))
    assert not select.select([executor.completion_fd], [], [], 0)[0]
    plan = prompt_plan(32, facts.limits)
    tickets = [executor.submit(plan), executor.submit(plan)]
    for ticket in tickets:
        assert select.select([executor.completion_fd], [], [], 60)[0]
        assert len(executor.collect(ticket).sampled_ids) == 1
    assert not select.select([executor.completion_fd], [], [], 0)[0]
    executor.close()


def test_a_step_that_fails_says_so_to_its_collector(tmp_path: Path) -> None:
    executor, facts = start(write_config(tmp_path))
    plan = prompt_plan(8, facts.limits)
    broken = dataclasses.replace(plan, token_ids=np.full(8, 1 << 20, np.int32))
    ticket = executor.submit(broken)
    after = executor.submit(plan)
    with pytest.raises(StepFailed, match="step 0: IndexError"):
        executor.collect(ticket)
    assert executor.collect(after).nonfinite.tolist() == [0]
    with pytest.raises(StepFailed, match="grammar"):
        executor.masks(after, np.zeros((1, 16), np.uint32))
    executor.close()


def test_a_row_of_nan_ends_alone(tmp_path: Path) -> None:
    """One token id's embedding is NaN: rows that hold it are flagged, the others' tokens do not change."""
    executor, facts = start(write_config(tmp_path, tie_word_embeddings=False))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 500, n).tolist() for n in (20, 33, 7, 18)]
    asks = [Ask(p, 8, num_logprobs=2, prompt_k=1) for p in prompts]
    clean = Driver(executor, facts.limits).generate(asks)
    loaded = executor._runner._ops.weights  # type: ignore[union-attr]
    loaded["model.embed_tokens.weight"][511] = torch.nan
    prompts[1][5] = prompts[2][-1] = 511
    found = Driver(executor, facts.limits).generate([Ask(p, 8, num_logprobs=2, prompt_k=1) for p in prompts])
    for i, (before, after) in enumerate(zip(clean, found, strict=True)):
        if i in (1, 2):
            assert all(after.nonfinite)
        else:
            assert after == before and not any(after.nonfinite)
    executor.close()


def test_ids_beyond_the_tokenizer_are_never_drawn(tmp_path: Path) -> None:
    executor, facts = start(write_config(tmp_path), tokenizer_vocab_size=300)
    assert facts.limits.vocab_size == SHAPE["vocab_size"]
    asks = [Ask([5, 6, 7], 20, temperature=2.0, stream_key=i, num_logprobs=-2) for i in range(8)]
    for one in Driver(executor, facts.limits).generate(asks):
        assert max(one.ids) < 300 and max(max(ids) for ids in one.top_ids) < 300
    executor.close()


def test_a_narrow_cache_stays_near(tmp_path: Path) -> None:
    found = []
    for cache in ("auto", "bfloat16"):
        executor, facts = start(write_config(tmp_path), kv_cache_dtype=cache)
        assert facts.block_bytes == (BLOCK_BYTES if cache == "auto" else BLOCK_BYTES // 2)
        (one,) = Driver(executor, facts.limits).generate([Ask(list(range(3, 60)), 1, prompt_k=0)])
        found.append(np.array(one.prompt_values))
        executor.close()
    assert 0 < np.abs(found[0] - found[1]).max() < 0.05


def test_generated_weights_are_cut_from_the_tile(tmp_path: Path) -> None:
    executor, _ = start(write_config(tmp_path, vocab_size=20_000))
    weights = executor._runner._ops.weights  # type: ignore[union-attr]
    name = "model.embed_tokens.weight"
    begin = first_place(Parameter(name, "", (20_000, 128)))
    expected = make_tile()[(np.arange(20_000 * 128) + begin) % TILE_SIZE]
    np.testing.assert_array_equal(weights[name].numpy().reshape(-1), expected)
    assert (weights["model.norm.weight"] == 1).all()
    executor.close()


def test_a_missing_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "proa.executor.torch_executor")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(StartFailed, match="proa\\[torch\\]"):
        make_executor(EngineConfig(connect="", model_path="/nowhere"))
    assert TorchExecutor is not None
