"""CUDA gives what the CPU gives, on generated weights; runs only where a device is."""

from __future__ import annotations

import select
from pathlib import Path

import numpy as np
import pytest
import torch
from generated_model import start, write_config
from plan_driver import Ask, Driver

from proa.sched.plan import PlanLimits
from proa.worker.warm_up import prompt_plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NUM_TOKENS = 24


def asks() -> list[Ask]:
    rng = np.random.default_rng(3)
    return [
        Ask(
            rng.integers(3, 512, n).tolist(),
            NUM_TOKENS,
            temperature=float(i % 3),
            top_p=0.9 if i % 2 else 1.0,
            top_k=40 if i % 5 == 1 else 0,
            presence_penalty=0.5 * (i % 4 == 3),
            stream_key=i * 7919,
            num_logprobs=5,
            prompt_k=3,
        )
        for i, n in enumerate((1, 5, 16, 17, 40, 100, 300, 33))
    ]


@pytest.mark.parametrize("attention", ["gathered", "reference"])
def test_fp32_agrees_with_the_cpu(attention: str, tmp_path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    found = {}
    for device in ("cpu", "cuda"):
        executor, facts = start(write_config(tmp_path), device=device, kernel={"attention": attention})
        found[device] = Driver(executor, facts.limits, chunk=64).generate(asks(), np.random.default_rng(1))
        executor.close()
    for cpu, cuda in zip(found["cpu"], found["cuda"], strict=True):
        np.testing.assert_allclose(cuda.prompt_values, cpu.prompt_values, atol=1e-4)
        assert cuda.ids == cpu.ids
        np.testing.assert_allclose(cuda.values, cpu.values, atol=1e-4)
        np.testing.assert_allclose(cuda.top_values, cpu.top_values, atol=1e-4)
        assert cuda.ranks == cpu.ranks


def test_bf16_in_a_batch(tmp_path: Path) -> None:
    executor, facts = start(write_config(tmp_path), device="cuda", dtype="auto", kv_cache_memory_bytes=None)
    assert facts.dtype == "bfloat16" and facts.memory_bytes["kv"] > 1 << 30
    got = Driver(executor, facts.limits).generate(asks())
    assert all(len(one.ids) == NUM_TOKENS and not any(one.nonfinite) for one in got)
    executor.close()


def test_the_descriptor_tells_when_a_step_is_done(tmp_path: Path) -> None:
    executor, _facts = start(write_config(tmp_path), device="cuda")
    plan = prompt_plan(64, PlanLimits(8, 64, 8, 64, 16, 512))
    tickets = [executor.submit(plan), executor.submit(plan)]
    for ticket in tickets:
        assert select.select([executor.completion_fd], [], [], 60)[0]
        result = executor.collect(ticket)
        assert result.device_ns > 0 and len(result.sampled_ids) == 8
    assert not select.select([executor.completion_fd], [], [], 0)[0]
    executor.close()
