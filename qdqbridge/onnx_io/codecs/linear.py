"""QuantizeLinear and DequantizeLinear whose parameters are known at run time only.

Those with constant parameters become types of values (:mod:`qdqbridge.onnx_io.reading.qdq`); no
codec sees them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.attributes import LinearAttrs
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
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.reading.qdq import (
    HALVES,
    PRECISION,
    SCALE_DTYPES,
    SINCE,
    STORAGE_DTYPES,
    division_of,
)
from qdqbridge.onnx_io.tensors import dtype_of, dtype_to_onnx

_KNOWN = ("axis", "block_size", "output_dtype", "saturate", "precision")
_BLOCKS, _FLOAT8 = 21, 19


def _read_quantize(node: NodeView) -> Decoded:
    zero_point, declared = node.optional(2), node.int_("output_dtype", 0)
    to = DType.UINT8 if zero_point is None else zero_point.type.dtype
    if declared:
        to = dtype_of(declared, node.describe())
    if zero_point is not None and zero_point.type.dtype is not to:
        raise node.fault(
            "output_dtype and the zero point disagree",
            why=f"output_dtype is {to}, the zero point is {zero_point.type.dtype}",
        )
    if to not in STORAGE_DTYPES or (to is DType.INT32 and not node.domain):
        raise node.fault(f"QuantizeLinear to {to} does not exist")
    scale = real_dtype(node.operand(1))
    attributes = LinearAttrs(
        to,
        _quantization_axis(node),
        node.int_("block_size", 0),
        node.flag("saturate", default=True) or to.is_integer,
        division_of(node, scale),
    )
    return decoded("QuantizeLinear", attributes, _operands(node))


def _read_dequantize(node: NodeView) -> Decoded:
    zero_point, stored = node.optional(2), node.operand(0).type.dtype
    if stored not in STORAGE_DTYPES:
        raise node.fault(f"DequantizeLinear of {stored} does not exist")
    if zero_point is not None and zero_point.type.dtype is not stored:
        raise node.fault(
            "the zero point has another element type than the data",
            why=f"the zero point is {zero_point.type.dtype}, the data {stored}",
        )
    declared, scale = node.int_("output_dtype", 0), real_dtype(node.operand(1))
    to = dtype_of(declared, node.describe()) if declared else scale
    to = DType.FLOAT32 if to is DType.FLOAT8_E8M0 else to
    attributes = LinearAttrs(to, _quantization_axis(node), node.int_("block_size", 0))
    return decoded("DequantizeLinear", attributes, _operands(node))


def _operands(node: NodeView) -> list[Value | None]:
    scale = real_dtype(node.operand(1))
    if scale not in SCALE_DTYPES:
        raise node.fault(f"the scale is {scale}", why="it is one of the float types")
    return list(node.operands)


def _quantization_axis(node: NodeView) -> int | None:
    """Returns the axis, non-negative where the rank is known; None for scalar parameters."""
    shape = node.shape(1)
    if shape is not None and shape in ((), (1,)):
        return None
    axis = node.int_("axis", 1)
    return axis if node.shape(0) is None else node.wrap(axis)


def _write(name: str, *, typed: bool) -> Codec:
    def write(attributes: LinearAttrs, operands: Operands, opset: int) -> Encoded:
        given: dict[str, int] = {}
        if attributes.axis is not None:
            given["axis"] = attributes.axis
        if attributes.block_size:
            given["block_size"] = attributes.block_size
        if not attributes.saturate:
            given["saturate"] = 0
        scale = real_dtype(operands[1])
        if not typed:
            given |= dividing(attributes.precision, scale, opset)
        if typed and attributes.to is not scale and scale is not DType.FLOAT8_E8M0:
            given["output_dtype"] = dtype_to_onnx(attributes.to)
        inputs: list[Value | NDArray[Any] | None] = list(operands)
        bare = len(operands) < 3 or operands[2] is None
        if not typed and bare and attributes.to is not DType.UINT8:
            shape = None if operands[1] is None else static_shape(operands[1].type.shape)
            if shape is None:
                given["output_dtype"] = dtype_to_onnx(attributes.to)
            else:  # as every opset and runtime knows it
                inputs = [*operands[:2], np.zeros(shape, attributes.to.numpy)]
        return encoded(name, inputs, **given)

    read = _read_dequantize if typed else _read_quantize
    return Codec(onnx_name=name, row=name, read=read, write=write, needs=_needs)


def dividing(precision: DType | None, scale: DType, opset: int) -> dict[str, int]:
    """Returns the attribute that says in which type a QuantizeLinear divides, where one has to."""
    own = scale if scale in HALVES else DType.FLOAT32
    wanted = precision or DType.FLOAT32
    return {} if opset < PRECISION or wanted is own else {"precision": dtype_to_onnx(wanted)}


def _needs(attributes: LinearAttrs) -> int:
    least = SINCE.get(attributes.to, OLDEST)
    least = max(least, _BLOCKS if attributes.block_size else OLDEST)
    least = max(least, OLDEST if attributes.saturate else _FLOAT8)
    return max(least, OLDEST if attributes.precision is None else PRECISION)


def _microsoft(codec: Codec) -> Codec:
    return Codec(
        onnx_name=codec.onnx_name, domain="com.microsoft", row=codec.row, read=codec.read,
        known=_KNOWN,
    )  # fmt: skip


_OWN = (_write("QuantizeLinear", typed=False), _write("DequantizeLinear", typed=True))

CODECS = (*_OWN, *map(_microsoft, _OWN))
