"""Puts a fused program into the native CPU runner: buffers by lifetime, matrices, instructions.

Owns which buffer a value lives in and how ops map to instructions. Holds no weights: it is given them by parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proa.ops.cpu.library import Layer
from proa.ops.cpu.runner import CpuRunner, Op, Weights
from proa.ops.interface import AttentionLayer, Parameter, Rope
from proa.program.fuse import Unfusable, fuse
from proa.program.record import Node, Recorder, Value

#: Numbers that every vector instruction set handles at once: widths must be multiples.
WIDTH_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class Source:
    """Where the numbers of a model come from.

    Attributes:
        matrix: a parameter's matrix as the file has it.
        vector: a parameter in f32.
        interleaved: whether rows of q and k stand in the order of an interleaved rope.
        max_model_len: positions of the rope tables.
    """

    matrix: Callable[[Parameter], Weights]
    vector: Callable[[Parameter], NDArray[np.float32]]
    interleaved: bool
    max_model_len: int


def build(runner: CpuRunner, program: Recorder, layers: list[AttentionLayer], source: Source) -> None:
    """Fill `runner` with a program. Raises `Unfusable` naming what has no instruction."""
    for width in program.width.values():
        if width % WIDTH_MULTIPLE:
            raise Unfusable(f"a value of {width} numbers; the CPU's kernels need multiples of {WIDTH_MULTIPLE}")
    for layer in layers:
        if layer.head_dim % WIDTH_MULTIPLE:
            raise Unfusable(f"heads of {layer.head_dim} numbers; the CPU's kernels need multiples of {WIDTH_MULTIPLE}")
    _Builder(runner, program, source).build(fuse(program), layers)


def rope_table(rope: Rope, num_positions: int) -> NDArray[np.float32]:
    """Return cos, then sin, of every position: f32[num_positions, 2, dim / 2]."""
    angle = np.arange(num_positions, dtype=np.float32)[:, None] * rope.inverse_frequency[None, :]
    return (np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.float32(rope.scale)).astype(np.float32)


class _Builder:
    def __init__(self, runner: CpuRunner, program: Recorder, source: Source) -> None:
        self.runner, self.program, self.source = runner, program, source
        self.buffer_of: dict[Value, int] = {}
        self.free: dict[int, list[int]] = {}
        self.width_of: dict[int, int] = {}
        self.ropes: dict[int, int] = {}

    def build(self, nodes: list[Node], layers: list[AttentionLayer]) -> None:
        ropes = {node.layer: node.rope for node in nodes if node.op == "rope_insert"}
        self.layers = [self._add_layer(layer, ropes[index]) for index, layer in enumerate(layers)]
        last_read = {value: i for i, node in enumerate(nodes) for value in node.inputs}
        for i, node in enumerate(nodes):
            self._emit(node)
            for value in set(node.inputs):
                # A value that is changed in place lives on under its new name.
                if last_read[value] == i and self.buffer_of[value] != self.buffer_of.get(node.output or Value(-1)):
                    buffer = self.buffer_of[value]
                    self.free.setdefault(self.width_of[buffer], []).append(buffer)

    def _add_layer(self, layer: AttentionLayer, rope: Rope | None) -> int:
        table = -1
        if rope is not None:
            if id(rope) not in self.ropes:
                self.ropes[id(rope)] = self.runner.add_vector(rope_table(rope, self.source.max_model_len))
            table = self.ropes[id(rope)]
        return self.runner.add_layer(
            Layer(
                heads=layer.num_heads,
                kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                rotary_dim=0 if rope is None else rope.dim,
                interleaved=int(self.source.interleaved),
                rope_table=table,
                scale=layer.scale,
            )
        )

    def _buffer(self, value: Value) -> int:
        """A buffer for a new value: one that is free, or a fresh one."""
        width = self.program.width[value]
        spare = self.free.get(width)
        buffer = spare.pop() if spare else self.runner.add_buffer(width)
        self.width_of[buffer] = width
        self.buffer_of[value] = buffer
        return buffer

    def _matrix(self, node: Node) -> int:
        return self.runner.add_matrix([self.source.matrix(weight) for weight in node.weights])

    def _bias(self, node: Node) -> int:
        if all(bias is None for bias in node.biases):
            return -1
        parts = [
            np.zeros(weight.shape[0], np.float32) if bias is None else self.source.vector(bias)
            for weight, bias in zip(node.weights, node.biases)
        ]
        return self.runner.add_vector(np.concatenate(parts))

    def _emit(self, node: Node) -> None:
        add = self.runner.add_instruction
        src = self.buffer_of[node.inputs[0]] if node.inputs else 0
        match node.op:
            case "embedding":
                table = self.runner.add_table(self.source.matrix(node.weights[0]))
                add(Op.EMBED, dst=self._buffer(_out(node)), matrix=table, scalar=1.0)
            case "rms_norm":
                weight = self.runner.add_vector(self.source.vector(node.weights[0]))
                add(Op.RMS_NORM, dst=self._buffer(_out(node)), src=src, vector=weight, scalar=node.eps)
            case "linear":
                matrix, bias = self._matrix(node), self._bias(node)
                add(Op.LINEAR, dst=self._buffer(_out(node)), src=src, matrix=matrix, vector=bias)
            case "linear_add":
                target = self.buffer_of[_out(node)] = self.buffer_of[node.inputs[1]]
                matrix, bias = self._matrix(node), self._bias(node)
                add(Op.LINEAR, dst=target, src=src, matrix=matrix, vector=bias, accumulate=True)
            case "add":
                self.buffer_of[_out(node)] = src
                add(Op.ADD, dst=src, src=self.buffer_of[node.inputs[1]])
            case "rope_insert":
                add(Op.ROPE_INSERT, src=src, layer=self.layers[node.layer])
            case "attention":
                add(Op.ATTENTION, dst=self._buffer(_out(node)), src=src, layer=self.layers[node.layer])
            case "silu_mul":
                size = self.program.width[_out(node)]
                add(Op.SILU_MUL, dst=self._buffer(_out(node)), src=src, size=size)
            case "select_logit_rows":
                add(Op.SELECT, dst=self._buffer(_out(node)), src=src)
            case "sample":
                add(Op.LOGITS, src=src, matrix=self._matrix(node))
            case _:
                raise Unfusable(f"the native runner has no instruction for {node.op!r}")


def _out(node: Node) -> Value:
    assert node.output is not None, "ops that make no value are told apart by name"
    return node.output
