"""How a graph is put for onnxruntime before it is written."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Flow
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import CastAttrs, QuantizeAttrs
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.conversion import CAST, QUANTIZE
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.elementwise import ADD, MAX, MUL
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.core.rewrite import Proposal, Replace, Rule, RuleContext, rule


@rule("float-weight-kept", CONV, CONV_TRANSPOSE, DENSE, GEMM, MATMUL)
def float_weights(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Conv(x, w)) -> quantize(Max(Conv(x, w), -inf))`` with a float weight.

    onnxruntime rounds such a weight to 8 bits of the whole tensor (weight_bias_quantization.cc)
    where a Q reads the result. A Max with -inf changes nothing, is left as it is there, and is no
    part of the canonical form, so that the file has the graph's digest.
    """
    del context
    weight, output = node.optional(1), node.output
    if weight is None or weight.constant is None or output.type.dtype is not DType.FLOAT32:
        return None
    # A MatMul becomes a Gemm, which is what is rounded, only with a bias behind it.
    matmul = node.op is MATMUL or node.origin.variant.startswith("MatMul")
    alone = not matmul or node.optional(2) is not None
    if weight.quant is not None or not _is_rounded(output, alone=alone):
        return None
    users = list(output.users)
    lowest = constant(np.asarray(-np.inf, np.float32), None, "")
    kept = result(MAX, NO_ATTRIBUTES, [output, lowest], output.type, node.origin)
    return Replace(operands=dict.fromkeys(users, kept))


def _is_rounded(value: Value, *, alone: bool = True) -> bool:
    """True where a Q reads a value, or what onnxruntime makes part of the product or of the Q.

    Args:
        value: A float result.
        alone: Whether a Q behind it is enough; else an operator with a constant stands between.
    """
    return any(
        (alone and user.op.flow is Flow.CONVERT and user.output.quant is not None)
        or (alone and user.op in (RELU, CLIP) and _is_rounded(user.output))
        or (user.op in (ADD, MUL) and _has_constant(user) and _is_rounded(user.output))
        for user, _ in value.users
    )


def _has_constant(node: Node) -> bool:
    return any(operand is not None and operand.is_constant for operand in node.inputs)


@rule("known-types", QUANTIZE)
def integers_in_floats(node: Node, context: RuleContext) -> Proposal:
    """``quantize(x) -> quantize(Cast(x))`` of int32, which onnxruntime's kernel does not take.

    ONNX's text divides it in float32 too.
    """
    x, quant = node.operand(0), node.output.quant
    if x.type.dtype is not DType.INT32 or x.quant is not None or quant is None:
        return None
    if quant.params.expressed_dtype is not DType.FLOAT32 or node.attributes != QuantizeAttrs():
        return None
    return Replace(operands={(node, 0): context.once(_in_float32, x)})


def _in_float32(value: Value) -> Value:
    type_ = TensorType(DType.FLOAT32, value.type.shape)
    return result(CAST, CastAttrs(DType.FLOAT32), [value], type_, name=f"{value.name}_float")


LEGALIZATIONS: tuple[Rule, ...] = (float_weights, integers_in_floats)
