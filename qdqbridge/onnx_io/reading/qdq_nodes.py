"""What a QuantizeLinear or DequantizeLinear node says, with its parameters looked up."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.errors import InvalidModelError, UnsupportedQuantization
from qdqbridge.onnx_io.codecs.view import NodeView
from qdqbridge.onnx_io.domains import ONNX_DOMAINS
from qdqbridge.onnx_io.reading.qdq import SINCE, Encoding
from qdqbridge.onnx_io.tensors import dtype_of

HALVES = (DType.FLOAT16, DType.BFLOAT16)
PRECISION = 23
"""The opset whose QuantizeLinear says in which type it divides."""


def encoding_of(view: NodeView, data: Value, storage: DType | None) -> Encoding | None:
    """Returns what the node says about its parameters; None where they are run-time values.

    Args:
        view: The node.
        data: What it reads.
        storage: The stored element type of a DequantizeLinear; None where the node decides.

    Raises:
        InvalidModelError: The node contradicts itself or its opset.
    """
    where = f"{view.file}, {view.describe()}"
    scale = _parameter(view, 1)
    if scale is None:
        return None
    zero_point = None
    if view.optional(2) is not None:
        zero_point = _parameter(view, 2)
        if zero_point is None:
            return None
    if storage is None:
        storage = _storage(view, zero_point, where)
    _check_since(view, storage, where)
    _check_since(view, scale.dtype, where)
    return Encoding(
        where,
        storage,
        scale.numpy(),
        None if zero_point is None else zero_point.numpy(),
        view.int_("axis", 1),
        view.int_("block_size", 0),
        data.type.shape,
        _expressed(view, data, where),
        bool(view.int_("saturate", 1)),
        division_of(view, scale.dtype) if view.proto.op_type == "QuantizeLinear" else None,
    )


def _check_since(view: NodeView, dtype: DType, where: str) -> None:
    since = SINCE.get(dtype, 0)
    if view.proto.domain in ONNX_DOMAINS and view.opset < since:
        raise InvalidModelError(
            f"{dtype} does not exist in opset {view.opset}",
            where=where,
            why=f"ONNX has it since opset {since}",
            fix=f"declare opset {since} or newer, or use the domain com.microsoft",
        )


def division_of(view: NodeView, scale: DType) -> DType | None:
    """Returns the type in which a QuantizeLinear divides; None for float32.

    Before opset 23 no sentence says it of halves: it is float32 here, as in onnxruntime. Since then
    it is ``precision``, or else the type of the scale.

    Raises:
        InvalidModelError: ``precision`` names another type than those of scales.
    """
    declared, dtype = view.int_("precision", 0), scale
    if declared:
        dtype = dtype_of(declared, f"{view.file}, {view.describe()}")
        if dtype not in (DType.FLOAT32, *HALVES):
            raise view.fault(
                f"precision is {dtype}", why="a division is in float32, float16 or bfloat16"
            )
    elif view.opset < PRECISION or view.proto.domain not in ONNX_DOMAINS:
        return None
    return dtype if dtype in HALVES else None


def _expressed(view: NodeView, data: Value, where: str) -> DType | None:
    """Returns the real side's element type where the node itself says it."""
    if view.proto.op_type == "QuantizeLinear":
        return data.type.dtype if data.type.dtype.is_float else None
    declared = view.int_("output_dtype", 0)
    return dtype_of(declared, where) if declared else None


def _storage(view: NodeView, zero_point: Constant | None, where: str) -> DType:
    declared = view.int_("output_dtype", 0)
    dtype = dtype_of(declared, where) if declared else None
    if zero_point is None:
        return dtype or DType.UINT8
    if dtype is not None and dtype is not zero_point.dtype:
        raise InvalidModelError(
            "output_dtype and the zero point disagree",
            where=where,
            why=f"output_dtype is {dtype}, the zero point is {zero_point.dtype}",
            fix="drop output_dtype, or give the zero point that element type",
        )
    return zero_point.dtype


def _parameter(view: NodeView, index: int) -> Constant | None:
    return view.folding.constant(view.operand(index))


def params_of(
    encoding: Encoding, data: Value, known: dict[tuple[object, ...], QuantParams]
) -> QuantParams:
    """Returns the checked parameters of ``data``.

    Args:
        encoding: What the node says.
        data: What it quantizes or dequantizes.
        known: Parameters that were checked before, by :meth:`Encoding.key`; grows.

    Raises:
        InvalidModelError: As :meth:`Encoding.params`.
        UnsupportedQuantization: As :meth:`Encoding.params`, or a negative scale on an activation.
    """
    key = encoding.key()
    if key not in known:
        known[key] = encoding.params()
    params = known[key]
    if data.constant is None and (params.scale.astype(np.float32) < 0).any():
        raise UnsupportedQuantization(
            "a negative scale on an activation",
            where=encoding.where,
            why=f"the scale is {float(params.scale.min()):.6g}",
            fix="negate the scale and mirror the zero point in the exporter",
        )
    return params
