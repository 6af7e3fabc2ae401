"""8 bits in 16 where Hexagon computes right with 16 only: the same real numbers.

What the backend reads of a result of 8 bits in floats, or beside 16 bits, it takes from before or
behind the rounding, with up to 9 steps of difference behind a Tanh, and one step of the 8 bits in
front of an Add; of 16 bits it does not. A product with weights is one of integers where operand and
result have one type (onnxruntime-qnn 2.7.0, host build).
"""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.build import requantized, retyped
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.elementwise import WHERE
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.hexagon.clamps import kept

_BYTE = 8
_FINER = 1 << _BYTE
"""How many steps of 16 bits are one of 8: a power of 2, so that scales stay exact."""
_MOVED = (Flow.MOVE, Flow.CONVERT, Flow.REINTERPRET)
_ELEMENTS = (Flow.ELEMENTWISE, Flow.FLOAT)


@rule("wide-before-floats")
def wide_operands(node: Node, context: RuleContext) -> Proposal:
    """``Tanh(dequantize(x)) -> Tanh(dequantize(requantize(x)))``, 16 bits between: the same."""
    if not (computes_in_floats(node) or _of_two_widths(node)):
        return None
    operands: dict[tuple[Node, int], Value] = {}
    for index, value in enumerate(node.inputs):
        made = None if value is None else value.producer
        if value is None or made is None or value.constant is not None:
            continue
        if value.quant is None:  # behind a dequantize, which others may read as well
            if made.op.flow is Flow.CONVERT and _narrow(made.operand(0)):
                operands[made, 0] = context.once(_in_16_bits, made.operand(0))
        elif _narrow(value):
            stored = value if computes_in_floats(node) else kept(value)
            operands[node, index] = context.once(_in_16_bits, stored)
    return Replace(operands=operands) if operands else None


@rule("one-width")
def one_width(node: Node, context: RuleContext) -> Proposal:
    """``Conv(x, w)`` of 8 bits whose result has 16, and the other way round: 16 bits on both sides.

    Otherwise parameters that the backend takes only as part of a product are left to the CPU.
    """
    del context
    x, end = (node.operand(0), node.output) if node.inputs else (None, None)
    if node.op.flow is not Flow.ACCUMULATE or x is None or end is None:
        return None
    if not (x.quant and end.quant and x.quant.params.per_tensor and _of_parameters(node)):
        return None
    narrow = [value for value in (x, end) if _bits(value) == _BYTE]
    if len(narrow) != 1 or _bits(x) == _bits(end):
        return None
    if narrow[0] is x:
        return Replace(operands={(node, 0): _in_16_bits(x)})
    type_ = QuantType(_finer(end.quant.params), end.type.shape)
    inside = retyped(node, node.inputs, type_, f"{end.name}_wide")
    value = requantized(inside, end.quant.params, node.origin, end.name)
    cost = Note("one-width", node.name, "it is rounded to 1/256 of a step first")
    return Replace({end: value}, (cost,))


def _of_parameters(node: Node) -> bool:
    """True for a product with a bias, or with weights per channel."""
    weight = node.operand(1).quant
    return weight is not None and (len(node.inputs) > _PAIR or not weight.params.per_tensor)


_PAIR = 2


def _bits(value: Value) -> int:
    return 0 if value.quant is None else value.quant.params.storage_dtype.bits


def _of_two_widths(node: Node) -> bool:
    """True for elements of 8 bits that are computed with together with some of 16."""
    if node.op.flow not in _ELEMENTS:
        return False
    return {_BYTE, 2 * _BYTE} <= {_bits(value) for value in node.inputs if value is not None}


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


def _in_16_bits(value: Value) -> Value:
    assert value.quant is not None
    return requantized(value, _finer(value.quant.params), name=f"{value.name}_wide")


def _finer(params: QuantParams) -> QuantParams:
    """Returns uint16 parameters in which every number of the 8-bit ones is exact."""
    zero = int(params.zero_point.reshape(-1)[0]) - int(params.storage_dtype.qmin)
    scale = np.float32(params.scale.reshape(-1)[0]) / np.float32(_FINER)
    return per_tensor(DType.UINT16, scale, zero * _FINER)
