"""Zero points of Q and DQ whose scale only the run knows: files write one in many ways."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.attributes import LinearAttrs
from qdqbridge.core.ops.build import constant, retyped
from qdqbridge.core.ops.run_time_parameters import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule


@rule("one-zero-point", QUANTIZE_LINEAR, DEQUANTIZE_LINEAR)
def one_zero_point(node: Node, context: RuleContext) -> Proposal:
    """``Q(x, s, 0) -> Q(x, s)``; a zero point of one element has the rank of its scale."""
    del context
    zero_point, scale = node.optional(2), node.operand(1)
    if zero_point is None or zero_point.constant is None or zero_point.quant is not None:
        return None
    operands = [node.operand(0), scale]
    if _may_be_left_out(node, scale) and not _numbers(zero_point).any():
        return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})
    shape = static_shape(scale.type.shape)
    if zero_point.constant.size != 1 or shape not in ((), (1,)):
        return None
    if zero_point.constant.shape == shape:
        return None
    data = zero_point.constant.map(lambda array: array.reshape(shape), shape=shape)
    operands.append(constant(data, None, zero_point.name))
    return Replace({node.output: retyped(node, operands, node.output.type, node.output.name)})


def _may_be_left_out(node: Node, scale: Value) -> bool:
    """True where a file can be written without a zero point, or with zeros of a known shape."""
    attributes = node.record(LinearAttrs)
    known = static_shape(scale.type.shape) is not None
    return known or node.op is DEQUANTIZE_LINEAR or attributes.to is DType.UINT8


def _numbers(value: Value) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    assert value.constant is not None
    return value.constant.numpy().astype(np.float64)
