"""Choices say why; a forced one that does not fit ends the start."""

from __future__ import annotations

import pytest

from proa.executor.interface import StartFailed
from proa.ops.registry import Facts, choose
from proa.ops.torch_ops import TABLE

CPU = Facts("cpu", "float32", "float32", 64)


def test_every_op_is_chosen_with_a_reason() -> None:
    functions, lines = choose(TABLE, CPU, {})
    assert set(functions) == {line.op for line in lines} == set(TABLE)
    assert all(line.reason for line in lines)
    (norm,) = [line for line in lines if line.op == "rms_norm"]
    assert norm.implementation == "reference" and "not fused: device is cpu" in norm.reason


def test_a_forced_choice_is_taken_and_named() -> None:
    functions, lines = choose(TABLE, CPU, {"attention": "reference"})
    (line,) = [line for line in lines if line.op == "attention"]
    assert line.implementation == "reference" and "--kernel attention=reference" in line.reason
    assert functions["attention"].__name__ == "reference"


@pytest.mark.parametrize(
    ("forced", "words"),
    [
        ({"rms_norm": "fused"}, "device is cpu"),
        ({"rms_norm": "magic"}, "fused, reference"),
        ({"convolution": "torch"}, "no op 'convolution'"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_fact(forced: dict[str, str], words: str) -> None:
    with pytest.raises(StartFailed, match=words) as caught:
        choose(TABLE, CPU, forced)
    assert caught.value.kind == "start_config"
