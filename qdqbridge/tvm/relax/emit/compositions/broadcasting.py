"""Comparisons, logic and sums of operands of which only the run knows which extents are 1.

TVM's own operators give such results no shape, and nothing can be built of them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext


def repeated(context: CompositionContext) -> list[Expr]:
    """Returns the operands, repeated where that is not settled.

    Raises:
        NoRow: All of it is: TVM's own operators repeat them.
    """
    given = [context.arg(index) for index in range(len(context.node.inputs))]
    fitting = context.emitter.aligned(given)
    if all(map(operator.is_, given, fitting)):
        raise NoRow("TVM knows how its operands broadcast")
    return fitting


def _by(name: str) -> Composition:
    """Returns one of Relax's operators of two operands."""
    return lambda context: [context(name, *repeated(context))]


def _sum(context: CompositionContext) -> Sequence[Expr]:
    total, *others = repeated(context)
    for other in others:
        total = context("add", total, other)
    return [total]


def _mean(context: CompositionContext) -> Sequence[Expr]:
    (total,) = _sum(context)
    return [context("divide", total, context.number(len(context.node.inputs), total))]


BROADCASTING: Mapping[str, Composition] = {
    "And": _by("logical_and"),
    "BitwiseAnd": _by("bitwise_and"),
    "BitwiseOr": _by("bitwise_or"),
    "BitwiseXor": _by("bitwise_xor"),
    "Equal": _by("equal"),
    "Greater": _by("greater"),
    "GreaterOrEqual": _by("greater_equal"),
    "Less": _by("less"),
    "LessOrEqual": _by("less_equal"),
    "Mean": _mean,
    "Or": _by("logical_or"),
    "Sum": _sum,
    "Xor": _by("logical_xor"),
}
"""By the operator's name in ONNX's own domain."""
