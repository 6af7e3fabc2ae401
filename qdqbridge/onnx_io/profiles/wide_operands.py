"""8 bits in 16 before they are computed with in floats: Hexagon keeps their rounding then.

What the backend reads in floats of a result of 8 bits, it takes from before or behind the rounding,
with up to 9 steps of difference behind a Tanh; of 16 bits it does not (onnxruntime-qnn 2.7.0, host
build).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.quantization import QuantParams, per_tensor
from qdqbridge.onnx_io.profiles.legalization import Cost, replace_operand
from qdqbridge.ops.build import requantized
from qdqbridge.ops.composition import CompositionAttrs
from qdqbridge.ops.elementwise import WHERE

_BYTE = 8
_FINER = 1 << _BYTE
"""How many steps of 16 bits are one of 8: a power of 2, so that scales stay exact."""
_MOVED = (Flow.MOVE, Flow.CONVERT, Flow.REINTERPRET)
_ELEMENTS = (Flow.ELEMENTWISE, Flow.FLOAT)


def wide_operands(graph: Graph) -> Iterator[Cost]:
    """``Tanh(dequantize(x)) -> Tanh(dequantize(requantize(x)))``, 16 bits between: the same."""
    known: dict[Value, Value] = {}
    for node in graph.nodes:
        if not computes_in_floats(node):
            continue
        for index, value in enumerate(list(node.inputs)):
            made = None if value is None else value.producer
            if value is None or made is None or value.constant is not None:
                continue
            if value.quant is None:  # behind a dequantize, which others may read as well
                if made.op.flow is Flow.CONVERT and _narrow(made.operand(0)):
                    replace_operand(made, 0, _wide(made.operand(0), known))
            elif _narrow(value):
                replace_operand(node, index, _wide(value, known))
    yield from ()


def computes_in_floats(node: Node) -> bool:
    """True for what has no integers on both sides, or several steps between them."""
    if node.op.flow in _MOVED or not node.inputs:
        return False
    if node.op.flow is Flow.ACCUMULATE:
        return node.output.quant is None
    if isinstance(node.attributes, CompositionAttrs) or any(v.quant is None for v in node.outputs):
        return True
    if node.op is WHERE:
        return False  # one whose result is quantized is whole, also with a float number
    operands = node.inputs if node.op.flow in _ELEMENTS else node.inputs[:1]
    return any(value is not None and value.quant is None for value in operands)


def _narrow(value: Value) -> bool:
    """True for a result of 8 bits with one scale; inputs have no rounding that could be lost."""
    made, quant = value.producer, value.quant
    while made is not None and made.op.flow is Flow.MOVE:
        made = made.operand(0).producer
    if made is None or quant is None:
        return False
    params = quant.params
    single = params.per_tensor and params.expressed_dtype is DType.FLOAT32
    return single and params.storage_dtype in (DType.UINT8, DType.INT8)


def _wide(value: Value, known: dict[Value, Value]) -> Value:
    if value not in known:
        assert value.quant is not None
        known[value] = requantized(value, _finer(value.quant.params), name=f"{value.name}_wide")
    return known[value]


def _finer(params: QuantParams) -> QuantParams:
    """Returns uint16 parameters in which every number of the 8-bit ones is exact."""
    zero = int(params.zero_point.reshape(-1)[0]) - int(params.storage_dtype.qmin)
    scale = np.float32(params.scale.reshape(-1)[0]) / np.float32(_FINER)
    return per_tensor(DType.UINT16, scale, zero * _FINER)
