"""Small constants that a file computes: shapes, bounds and scalars (never weights)."""

from __future__ import annotations

import math

from qdqbridge.core.canonical.decomposed import is_stored
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.build import constant, evaluated
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.ops.elementwise import DIV, MUL, SUB
from qdqbridge.core.ops.folding import affordable
from qdqbridge.core.ops.unary import ROUND
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule

_SMALL = 4096
_GROWTH = 4
"""What a file computes may be this much larger than what it holds."""
# One IEEE operation each, so the constant has the bits that every runtime computes.
_EXACT = frozenset(
    (
        "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil", "Min",
        "Max", "Cast", "Concat", "Where", "Relu", "LeakyRelu", "PRelu", "Clip", "Sign",
        "ReduceMax", "ReduceMin",
    )
)  # fmt: skip
_EXACT_FOREIGN = frozenset(
    (
        "Size", "ConstantOfShape", "Range", "CastLike", "NonZero", "Equal", "Less", "Greater",
        "IsNaN", "IsInf", "Not", "And", "Or", "Xor", "LessOrEqual", "GreaterOrEqual", "EyeLike",
        "Trilu", "OneHot", "GatherElements", "GatherND", "ArgMax", "ArgMin", "Hardmax",
        "MatMulInteger",
    )
)  # fmt: skip


@rule("small-constant")
def small_constant(node: Node, context: RuleContext) -> Proposal:
    """``op(const…) -> const`` for small operands and operators that are exact everywhere.

    Of any size where only quantizes read the result (idiom B6 without constant folding: a training
    weight times the scale of its batch norm); it is computed when first looked at.
    """
    name = node.op.name.rpartition("::")[2]
    if len(node.outputs) != 1 or (name not in _EXACT and name not in _EXACT_FOREIGN):
        return None
    shape = static_shape(node.output.type.shape)
    operands = [value for value in node.inputs if value is not None]
    if shape is None or _is_part(node, context):
        return None
    sizes = [math.prod(shape)]
    for value in operands:
        if value.constant is None or value.quant:
            return None
        sizes.append(value.constant.size)
    is_small = max(sizes) <= _SMALL
    grows = sizes[0] > _GROWTH * max(sizes[1:], default=0)
    if not is_small and (grows or not _is_only_quantized(node, context)):
        return None
    if not affordable(node, [v and v.constant for v in node.inputs], context.budget):
        return None
    if is_small:
        data = Constant.of(evaluated(node))
    else:
        data = Constant(node.output.type.dtype, shape, lambda: evaluated(node))
    return Replace({node.output: constant(data, None, node.output.name)})


def _is_only_quantized(node: Node, context: RuleContext) -> bool:
    readers = context.readers(node.output)
    plain = all(reader.op is QUANTIZE for reader in readers)
    return plain and bool(readers) and not context.is_output(node.output)


def _is_part(node: Node, context: RuleContext) -> bool:
    """True for what may begin a quantization in float arithmetic: see :mod:`decomposed`."""
    readers = {reader.op for reader in context.readers(node.output)}
    if node.op is CAST:
        return is_stored(node.operand(0)) and not readers.isdisjoint((SUB, MUL))
    return node.op in (DIV, MUL) and ROUND in readers
