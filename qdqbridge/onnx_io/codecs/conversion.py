"""Cast, and CastLike."""

from __future__ import annotations

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.attributes import CastAttrs
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    real_dtype,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.tensors import dtype_of, dtype_to_onnx

_SINCE = {
    DType.INT4: 21,
    DType.UINT4: 21,
    DType.INT2: 25,
    DType.UINT2: 25,
}


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


def _write(attributes: CastAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    return encoded("Cast", operands, to=dtype_to_onnx(attributes.to))


def _needs(attributes: CastAttrs) -> int:
    return _SINCE.get(attributes.to, OLDEST)


CODECS = (
    Codec(onnx_name="Cast", row="Cast", read=_decode_cast, write=_write, needs=_needs),
    Codec(onnx_name="CastLike", row="Cast", read=_read_like),
)
