"""Operators that a span records and a sample proves: long chains of one operand.

A Resize of floats is one weighted sum of shifted values per axis; an average pool whose last
windows reach beyond counted padding is a quotient of two; a Pad that wraps is a Gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.ops.attributes import PadAttrs, PoolAttrs, ResizeAttrs
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.elementwise import MAX, MIN
from qdqbridge.core.ops.selection import GATHER
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.reading import Reading, as_written, tensor

_SAMPLE = 1 << 20
_CLAMPS = (RELU, CLIP, MAX, MIN)
_ONE = 3
"""Extent with which an unknown one is tried."""


def proven(reading: Reading, call: Call, value: Value) -> Value | None:
    """Returns the operator that a span records, if the calls compute the same on a sample."""
    provenance = call.provenance
    attributes = None if provenance is None else provenance.attributes
    if provenance is None or not isinstance(attributes, ResizeAttrs | PoolAttrs | PadAttrs):
        return None
    if provenance.op == "MaxPool" or (isinstance(attributes, PadAttrs) and call.op != "take"):
        return None
    if value.producer is None or value.producer.op.name == provenance.op:
        return None
    inside: list[Node] = []
    read = source = _source(reading, call, value, inside)
    if read is None or source is None or source.type.shape is None or call.result.shape is None:
        return None
    if any(node.op in _CLAMPS for node in inside):
        return None  # of its result, and so behind it: a sample need not reach the bounds
    shape = tuple(d if isinstance(d, int) else _ONE for d in source.type.shape)
    wanted = tuple(d if isinstance(d, int) else _ONE for d in call.result.shape)
    if np.prod(shape) + np.prod(wanted) > _SAMPLE:
        return None
    (source,) = as_written(BY_NAME[provenance.op], [source], provenance)
    assert source is not None
    kind = call.dtype if call.dtype.is_float else source.type.dtype  # integers are rounded later
    sample = np.random.default_rng(0).normal(size=shape).astype(kind.numpy)
    (expected,) = BY_NAME[provenance.op].compute(attributes, (sample,))
    if expected.shape != wanted or not np.allclose(
        _run(inside, read, sample.astype(read.type.dtype.numpy)), expected, rtol=1e-2, atol=1e-3
    ):
        return None
    # What the calls copy of a quantized value are its stored numbers.
    return reading.node(provenance.op, attributes, [reading.plain(source)], tensor(call), call)


def _source(reading: Reading, call: Call, value: Value, inside: list[Node]) -> Value | None:
    """Returns the one value that the recorded node's calls read; lists them in their order."""
    done: set[Node] = set()
    sources: dict[Value, None] = {}

    def visit(current: Value) -> None:
        node = current.producer
        if current.constant is not None or (node is not None and node in done):
            return
        own = None if node is None else reading.provenances.get(node)
        if node is None or own is None or own != call.provenance or node.op is DEQUANTIZE:
            sources[current] = None
            return
        done.add(node)
        for operand in node.inputs:
            if operand is not None:
                visit(operand)
        inside.append(node)

    visit(value)
    if not sources and inside and inside[0].op in (CAST, GATHER):  # it reads a constant
        return inside[0].operand(0)
    return next(iter(sources)) if len(sources) == 1 else None


def _run(nodes: list[Node], source: Value, sample: NDArray[Any]) -> NDArray[Any]:
    values: dict[Value, NDArray[Any]] = {source: sample}
    for node in nodes:
        operands = [
            values[v] if v in values else None if v is None or v.constant is None
            else v.constant.numpy()
            for v in node.inputs
        ]  # fmt: skip
        values[node.output] = np.asarray(evaluate_node(node, operands)[0])
    return np.asarray(values[nodes[-1].output])
