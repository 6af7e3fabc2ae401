"""What depends on whether something is there: an optional tensor, and what Dropout drops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

DROPPED = "dropped_elements"
"""What the extent is called that has to be 0; errors of a run name it."""
_OPERAND = 12
"""The opset since which the ratio and the mode of Dropout are operands."""


def _has_element(context: CompositionContext) -> Sequence[Expr]:
    return [context.number(context.has(0), "bool")]


def _dropout(context: CompositionContext) -> Sequence[Expr]:
    """All that it is given; where the run says that something is to be dropped, it ends.

    Which elements these are ONNX leaves to chance.
    """
    if context.onnx.opset < _OPERAND or not context.has(2):
        raise NoRow("TVM has it")
    known = [context.onnx.operand(index).is_constant for index in (1, 2) if context.has(index)]
    if all(known):
        raise NoRow("what it drops is known")
    ratio = (
        context("reshape", context.arg(1), ()) if context.has(1) else context.number(0.5, "float32")
    )
    training = context.cast(context("reshape", context.arg(2), ()), "bool")
    drops = context("logical_and", training, context("greater", ratio, context.number(0, ratio)))
    (count,) = context.bound(context.cast(context("reshape", drops, (1,)), "int64"), DROPPED)
    context.emitter.need_at_most(count, 0)
    x = context.arg(0)
    mask = context("broadcast_to", context.number(np.True_, "bool"), context.extents(x))
    return [x, mask][: len(context.node.outputs)]


PRESENCE: Mapping[str, Composition] = {"Dropout": _dropout, "OptionalHasElement": _has_element}
"""By the operator's name in ONNX's own domain."""
