"""Fusions: passes over a program that put ops together where one native call does the work of several.

Each pass takes a list of nodes and returns another that means the same. They are told apart by the fused names:

    linear          one or more matrices over the same input, outputs one after another
    linear_add      the same, added to its second input in place
    rope_insert     in place: q and k of a fused [q | k | v] turned, k and v written to the cache
    attention       of a fused [q | k | v]
    silu_mul        of a fused [gate | up]
"""

from __future__ import annotations

from collections import Counter

from proa.program.record import Node, Recorder, Value


class Unfusable(ValueError):
    """A program whose shape the native runner has no instructions for; the message names the op."""


def fuse(program: Recorder) -> list[Node]:
    """Return the program's nodes after all passes."""
    nodes = _fuse_attention(program.nodes, program)
    nodes = _fuse_gates(nodes, program)
    return _fuse_residuals(nodes)


def _makers(nodes: list[Node]) -> dict[Value, Node]:
    return {node.output: node for node in nodes if node.output is not None}


def _new_value(program: Recorder, width: int) -> Value:
    value = Value(len(program.width))
    program.width[value] = width
    return value


def _stack(program: Recorder, parts: list[Node]) -> Node:
    """One linear op for several over the same input."""
    inputs = {part.inputs for part in parts}
    if len(inputs) != 1 or any(part.op != "linear" for part in parts):
        raise Unfusable("the projections of one layer read different inputs")
    weights = tuple(weight for part in parts for weight in part.weights)
    biases = tuple(bias for part in parts for bias in part.biases)
    value = _new_value(program, sum(weight.shape[0] for weight in weights))
    return Node("linear", parts[0].inputs, value, weights, biases)


def _fuse_attention(nodes: list[Node], program: Recorder) -> list[Node]:
    """linear q, k, v; rope q, k; kv_insert; attention -> linear [q | k | v]; rope_insert; attention."""
    makers = _makers(nodes)
    gone: set[int] = set()
    instead: dict[int, list[Node]] = {}
    inserts = {node.layer: node for node in nodes if node.op == "kv_insert"}
    for node in nodes:
        if node.op != "attention":
            continue
        insert = inserts[node.layer]
        q_rope, k_rope = makers[node.inputs[0]], makers[insert.inputs[0]]
        if q_rope.op != "rope" or k_rope.op != "rope" or q_rope.rope is not k_rope.rope:
            raise Unfusable(f"layer {node.layer}: q and k are not turned by one rope")
        parts = [makers[q_rope.inputs[0]], makers[k_rope.inputs[0]], makers[insert.inputs[1]]]
        stack = _stack(program, parts)
        assert stack.output is not None
        turned = Node("rope_insert", (stack.output,), layer=node.layer, rope=q_rope.rope)
        attention = Node("attention", (stack.output,), node.output, layer=node.layer)
        gone.update(id(part) for part in (*parts, q_rope, k_rope, insert))
        instead[id(node)] = [stack, turned, attention]
    return [new for node in nodes if id(node) not in gone for new in instead.get(id(node), [node])]


def _fuse_gates(nodes: list[Node], program: Recorder) -> list[Node]:
    """linear gate, linear up, silu_mul -> linear [gate | up], silu_mul."""
    makers = _makers(nodes)
    gone: set[int] = set()
    instead: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op != "silu_mul":
            continue
        parts = [makers[value] for value in node.inputs]
        stack = _stack(program, parts)
        assert stack.output is not None
        gone.update(id(part) for part in parts)
        instead[id(node)] = [stack, Node("silu_mul", (stack.output,), node.output)]
    return [new for node in nodes if id(node) not in gone for new in instead.get(id(node), [node])]


def _fuse_residuals(nodes: list[Node]) -> list[Node]:
    """linear y; add(x, y) -> linear_add into x, where neither x nor y is read again."""
    reads = Counter(value for node in nodes for value in node.inputs)
    makers = _makers(nodes)
    last_read: dict[Value, int] = {value: i for i, node in enumerate(nodes) for value in node.inputs}
    gone: set[int] = set()
    fused: list[Node] = []
    for i, node in enumerate(nodes):
        maker = makers.get(node.inputs[1]) if node.op == "add" else None
        if maker is not None and maker.op == "linear" and reads[node.inputs[1]] == 1 and last_read[node.inputs[0]] == i:
            gone.add(id(maker))
            inputs = (*maker.inputs, node.inputs[0])
            fused.append(Node("linear_add", inputs, node.output, maker.weights, maker.biases))
        else:
            fused.append(node)
    return [node for node in fused if id(node) not in gone]
