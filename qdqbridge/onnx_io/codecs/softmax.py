"""Softmax and LogSoftmax, which run over several axes before opset 13."""

from __future__ import annotations

from qdqbridge.core.ops.attributes import SoftmaxAttrs
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs.codec import (
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow


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
    _softmax("Softmax"),
    _softmax("LogSoftmax"),
)
