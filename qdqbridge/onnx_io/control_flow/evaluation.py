"""If, Loop and Scan whose bodies quantize, computed as the graphs that their bodies are.

onnxruntime computes such a body in floats where its optimizations are off, and by kernels of which
some round otherwise where they are on. What a body means is what its canonical graph means.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.graph.types import ValueType
from qdqbridge.onnx_io.control_flow.bodies import Body, bodies_of, quantizes_inside
from qdqbridge.onnx_io.control_flow.steps import Array, ControlSteps
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs

_Operand: TypeAlias = "tuple[ValueType, str, Constant | None] | None"
_COUNTED = 2
"""A Loop's body is given the step and the condition first, as numbers or vectors of one."""


def computed_by_bodies(node: Node, operands: Sequence[Array | None]) -> list[Array] | None:
    """Returns the results of a node whose bodies quantize; None of others, and of no steps.

    Args:
        node: An opaque If, Loop or Scan.
        operands: What it is given.
    """
    record = node.record(OpaqueAttrs)
    known = tuple(None if v is None else (v.type, v.name, v.constant) for v in node.inputs)
    steps, bodies = _graphs(node.op, record, node.name, known)
    if not bodies:
        return None

    def call(attribute: str, own: Sequence[Array]) -> Sequence[Array]:
        body = bodies[attribute]
        inputs, given = body.graph.inputs, [*own, *(operands[index] for index in body.captured)]
        for index in range(_COUNTED if steps.op_type == "Loop" else 0):
            given[index] = np.reshape(own[index], (1,) * (inputs[index].rank or 0))
        feeds = {v.name: x for v, x in zip(inputs, given, strict=True) if x is not None}
        _, found = evaluate(body.graph, feeds, wanted=body.graph.outputs)
        return [found[value] for value in body.graph.outputs]

    results = steps.run(operands, call)
    if results is None:
        return None
    named = record.node.proto().output
    return [each for each, name in zip(results, named, strict=False) if name]


@lru_cache(maxsize=32)
def _graphs(
    op: Operator, record: OpaqueAttrs, name: str, known: tuple[_Operand, ...]
) -> tuple[ControlSteps, dict[str, Body]]:
    """Returns how a node goes through its bodies, and these where all of them are graphs."""
    operands = [None if x is None else Value(x[0], x[1], constant=x[2]) for x in known]
    node = Node(op, record, operands, [])
    proto, steps = record.node.proto(), ControlSteps.of(node)
    if not quantizes_inside(proto):
        return steps, {}
    bodies = {body.attribute: body for body in bodies_of(node, name, canonicalize)}
    whole = len(bodies) == (2 if steps.op_type == "If" else 1)
    return steps, bodies if whole else {}
