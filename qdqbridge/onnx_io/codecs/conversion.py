"""Cast, and CastLike."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.attributes import CastAttrs
from qdqbridge.onnx_io.codecs.codec import Decode, Decoded, decoded, real_dtype
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.tensors import dtype_of


def _decode_cast(node: NodeView) -> Decoded:
    to = dtype_of(node.int_("to", 0), node.describe())
    if DType.STRING in (to, real_dtype(node.operand(0))):
        raise NoRow("it converts strings")
    if to.is_small_float:
        raise NoRow(f"it rounds to {to} by rules of its own")
    return decoded("Cast", CastAttrs(to), node.operands)


def _read_like(node: NodeView) -> Decoded:
    """A Cast to the element type of another tensor, which is always known."""
    to = real_dtype(node.operand(1))
    if DType.STRING in (to, real_dtype(node.operand(0))) or to.is_small_float:
        raise NoRow(f"it converts to {to} by rules of its own")
    return decoded("Cast", CastAttrs(to), node.operands[:1])


READ: Mapping[str, Decode] = {"Cast": _decode_cast, "CastLike": _read_like}
