"""Clip and Dropout, which ONNX writes otherwise than their rows; others follow from their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import CastAttrs, ClipAttrs
from qdqbridge.core.ops.conversion import is_finite
from qdqbridge.onnx_io.codecs.codec import (
    Codec,
    Decode,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    real_dtype,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.tensors import dtype_of

Array: TypeAlias = "NDArray[Any]"


def _read_clip(node: NodeView) -> Decoded:
    least, most = _range(node.operand(0))
    if node.opset < 11:
        low, high = node.float_("min", -_FLOAT_MAX), node.float_("max", _FLOAT_MAX)
        if np.isnan([low, high]).any():
            raise node.fault(
                "a bound of Clip is NaN", why=f"min is {low}, max is {high}; no runtime takes them"
            )
    else:
        low, high = node.constant_number(1), node.constant_number(2)
    low, high = least if low is None else low, most if high is None else high
    if real_dtype(node.operand(0)).is_float:  # the lowest finite number is a bound of -infinity
        open_low, open_high = low < least or np.isinf(low), high > most or np.isinf(high)
    else:
        open_low, open_high = low <= least, high >= most
    attributes = ClipAttrs(None if open_low else low, None if open_high else high)
    return decoded("Clip", attributes, node.operands[:1])


_FLOAT_MAX = float(np.finfo(np.float32).max)


def _range(value: Value) -> tuple[float, float]:
    """Returns the bounds that ONNX stands in for a Clip's left-out ones."""
    dtype = real_dtype(value)
    if dtype.is_integer:
        return float(dtype.qmin), float(dtype.qmax)
    if dtype not in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64):
        return -np.inf, np.inf
    limits = np.finfo(dtype.numpy)
    return float(limits.min), float(limits.max)


def _bound(bound: float, dtype: DType) -> float:
    """Returns a bound that an integer type can hold and that means the same."""
    if not dtype.is_integer or dtype.qmin < bound < dtype.qmax:
        return bound
    return dtype.qmax if bound >= dtype.qmax else dtype.qmin


def _write_clip(attributes: ClipAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    x = operands[0]
    limits = (-np.inf, np.inf) if x is None else _range(x)
    pairs = zip((attributes.low, attributes.high), limits, (-np.inf, np.inf), strict=True)
    return encoded("Clip", [x, *(_end(x, *pair) for pair in pairs)])


def _end(x: Value | None, bound: float | None, limit: float, none: float) -> Array | None:
    """Returns a bound to write; one that is left out is ``limit``, and so none has to be said."""
    dtype = real_dtype(x)
    if bound is None:
        said = dtype.is_float and x is not None and not is_finite(x)
        return np.array(none, dtype.numpy) if said and np.isfinite(limit) else None
    if bound == limit and dtype in (DType.FLOAT32, DType.FLOAT64):
        return None  # of float16, onnxruntime knows that from opset 13 on
    return np.array(_bound(bound, dtype), dtype.numpy)


def _read_dropout(node: NodeView) -> Decoded:
    training = node.constant(2) if node.opset >= 12 else None
    if training is not None and training.any():
        raise NoRow("it is in training mode")
    if node.results() > 1:
        raise NoRow("its mask is a result")
    return decoded("Identity", NO_ATTRIBUTES, node.operands[:1])


CODECS = (
    Codec(onnx_name="Clip", row="Clip", read=_read_clip, write=_write_clip),
    Codec(onnx_name="Dropout", row="Identity", read=_read_dropout),
)


# ---- Cast, and CastLike --------------------------------------------------------------------------


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
