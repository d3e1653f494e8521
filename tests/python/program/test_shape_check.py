"""Every family's forward pass is whole on shapes alone, in a process without torch; a broken one is refused."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from proa.config.model_config import ModelConfig
from proa.models.llama import Llama
from proa.models.select import FAMILIES, make_model
from proa.ops.interface import Ops, V
from proa.program.shape_check import ShapeError, ShapeOps, check_shapes

CONFIG = ModelConfig(
    architecture="llama",
    hidden_size=48,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    ffn_size=80,
    rope_theta=10000.0,
    rope_dim=16,
    rms_norm_eps=1e-5,
    vocab_size=100,
    context_length=64,
    tie_word_embeddings=False,
)
BIASED = frozenset(f"model.layers.{i}.self_attn.{p}_proj" for i in range(3) for p in "qkvo")


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"rope_dim": 8}, {"num_kv_heads": 6}])
@pytest.mark.parametrize("has_bias", [frozenset(), BIASED])
def test_families(architecture: str, changes: dict[str, object], has_bias: frozenset[str]) -> None:
    config = dataclasses.replace(CONFIG, architecture=architecture, **changes)  # type: ignore[arg-type]
    said = check_shapes(make_model(config, has_bias))
    assert said[0] == "embedding" and said[-1] == "sample"
    assert said.count("attention") == said.count("kv_insert") == config.num_layers


def test_models_are_written_without_torch() -> None:
    program = "import sys, proa.models.select, proa.program.shape_check, proa.weights.files, proa.sample.reference\n"
    program += "print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


class _Broken(Llama):
    """A model whose pass is changed by a test."""

    def __init__(self, change: str) -> None:
        super().__init__(CONFIG)
        self._change = change

    def forward(self, ops: Ops[V]) -> None:
        x = self.embedding(ops)
        if self._change == "branches":
            assert x
        if self._change == "operator":
            x = x + x  # type: ignore[operator]
        if self._change == "shape":
            x = self.blocks[0].mlp.gate(ops, x)
        for block in self.blocks[: 2 if self._change == "skips" else 3]:
            x = block(ops, x, self.rope)
        if self._change == "twice":
            x = self.blocks[0](ops, x, self.rope)
        if self._change != "unselected":
            x = ops.select_logit_rows(x)
        if self._change != "undrawn":
            ops.sample(self.norm(ops, x), self.head)


@pytest.mark.parametrize("change", ["branches", "operator", "shape", "skips", "twice", "unselected", "undrawn"])
def test_a_broken_pass_is_refused(change: str) -> None:
    with pytest.raises((ShapeError, TypeError)):
        check_shapes(_Broken(change))


def test_reading_a_cache_before_it_is_written() -> None:
    model = Llama(CONFIG)
    ops = ShapeOps(model.attention_layers)
    with pytest.raises(ShapeError, match="attention"):
        ops.attention(0, model.blocks[0].attention.q(ops, model.embedding(ops)))
