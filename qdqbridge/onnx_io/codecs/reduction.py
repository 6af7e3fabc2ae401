"""Reductions, Softmax and LogSoftmax."""

from __future__ import annotations

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.operator import NO_ATTRIBUTES
from qdqbridge.onnx_io.codecs.codec import (
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    int64,
)
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow
from qdqbridge.ops.attributes import ReduceAttrs, SoftmaxAttrs


def _axes(node: NodeView, as_input: int) -> Ints:
    if node.opset >= as_input:
        return node.constant_ints(1) or ()
    return node.ints("axes", ())


def _reduction(name: str, as_input: int) -> Codec:
    """Returns the codec of a reduction whose axes are an input from opset ``as_input`` on."""

    def read(node: NodeView) -> Decoded:
        axes = _axes(node, as_input)
        if not axes and node.flag("noop_with_empty_axes"):
            return decoded("Identity", NO_ATTRIBUTES, node.operands[:1])
        resolved = node.wrap_all(axes) if axes else tuple(range(node.rank()))
        if name in ("ReduceMax", "ReduceMin") and any(node.extent(a) == 0 for a in resolved):
            raise NoRow("it reduces nothing")
        attributes = ReduceAttrs(tuple(sorted(resolved)), node.flag("keepdims", default=True))
        return decoded(name, attributes, node.operands[:1])

    def write(attributes: ReduceAttrs, operands: Operands, opset: int) -> Encoded:
        keepdims = int(attributes.keepdims)
        if not attributes.axes:  # a rank-0 operand: no axes means all of them
            return encoded(name, operands[:1], keepdims=keepdims)
        if opset >= as_input:
            return encoded(name, [operands[0], int64(attributes.axes)], keepdims=keepdims)
        return encoded(name, operands[:1], axes=list(attributes.axes), keepdims=keepdims)

    return Codec(onnx_name=name, row=name, read=read, write=write)


def _softmax(name: str) -> Codec:
    def read(node: NodeView) -> Decoded:
        if node.opset >= 13:
            return decoded(name, SoftmaxAttrs((node.wrap(node.int_("axis", -1)),)), node.operands)
        # Before opset 13 the input is flattened to two axes at `axis`.
        first = node.wrap(node.int_("axis", 1), extra=0 if node.int_("axis", 1) < 0 else 1)
        axes = range(first, node.rank())
        longer = tuple(axis for axis in axes if node.extent(axis) != 1)
        opened = sum(node.extent(axis) is None for axis in range(node.rank()))
        if len(longer) > 1 and opened > 1:
            raise NoRow("it runs over several axes of open extents")
        return decoded(name, SoftmaxAttrs(longer or tuple(axes)[-1:]), node.operands)

    def write(attributes: SoftmaxAttrs, operands: Operands, opset: int) -> Encoded:
        del opset
        if len(attributes.axes) != 1:
            raise UnsupportedTargetError(
                f"ONNX's {name} normalizes one axis from opset 13 on",
                why=f"it runs over the axes {list(attributes.axes)} here",
                fix="write Flatten or Reshape around it",
            )
        return encoded(name, operands, axis=attributes.axes[0])

    return Codec(onnx_name=name, row=name, read=read, write=write)


CODECS = (
    _reduction("ReduceSum", 13),
    _reduction("ReduceMean", 18),
    _reduction("ReduceMax", 18),
    _reduction("ReduceMin", 18),
    _softmax("Softmax"),
    _softmax("LogSoftmax"),
)
