"""The recorder and the fusions: a Llama block becomes the native runner's few instructions, and torch stays out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from test_shape_check import CONFIG

from proa.models.llama import Llama
from proa.program.fuse import Unfusable, fuse
from proa.program.record import record

BLOCK = ["rms_norm", "linear", "rope_insert", "attention", "linear_add", "rms_norm", "linear", "silu_mul", "linear_add"]


def test_a_llama_is_fused_to_nine_instructions_a_block() -> None:
    program = record(Llama(CONFIG))
    nodes = fuse(program)
    assert [node.op for node in nodes] == [
        "embedding",
        *BLOCK * CONFIG.num_layers,
        "select_logit_rows",
        "rms_norm",
        "sample",
    ]
    projections = [node for node in nodes if node.op == "linear"]
    assert [len(node.weights) for node in projections] == [3, 2] * CONFIG.num_layers
    for node in projections:
        assert node.output is not None
        assert program.width[node.output] == sum(weight.shape[0] for weight in node.weights)


def test_every_value_is_made_before_it_is_read_and_every_parameter_stays() -> None:
    model = Llama(CONFIG)
    nodes = fuse(record(model))
    made = set()
    for node in nodes:
        assert made.issuperset(node.inputs), node.op
        if node.output is not None:
            made.add(node.output)
    used = {weight.name for node in nodes for weight in node.weights}
    assert used == set(model.parameters)


def test_projections_of_different_inputs_are_refused() -> None:
    program = record(Llama(CONFIG))
    index = next(i for i, node in enumerate(program.nodes) if node.op == "linear")
    embedded = program.nodes[0].output
    assert embedded is not None
    program.nodes[index] = dataclasses.replace(program.nodes[index], inputs=(embedded,))
    with pytest.raises(Unfusable, match="different inputs"):
        fuse(program)


def test_the_cpu_executor_is_made_without_torch() -> None:
    program = "import sys, proa.executor.cpu; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
