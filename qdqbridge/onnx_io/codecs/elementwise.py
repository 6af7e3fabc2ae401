"""Clip and Dropout, which ONNX writes otherwise than their rows; others follow from their rows."""

from __future__ import annotations

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.operator import NO_ATTRIBUTES
from qdqbridge.onnx_io.codecs.codec import (
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    plain,
    real_dtype,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.ops.attributes import ClipAttrs


def _read_clip(node: NodeView) -> Decoded:
    if node.opset < 11:
        low = node.float_("min", -np.inf) if node.has("min") else None
        high = node.float_("max", np.inf) if node.has("max") else None
        if np.isnan([low or 0.0, high or 0.0]).any():
            raise node.fault(
                "a bound of Clip is NaN", why=f"min is {low}, max is {high}; no runtime takes them"
            )
    else:
        low, high = node.constant_number(1), node.constant_number(2)
    least, most = _range(node.operand(0))
    low = None if low is None or low <= least else low
    high = None if high is None or high >= most else high
    return decoded("Clip", ClipAttrs(low, high), node.operands[:1])


def _range(value: object) -> tuple[float, float]:
    """Returns the bounds that ONNX stands in for a Clip's left-out ones."""
    dtype = real_dtype(value)  # type: ignore[arg-type]
    if dtype.is_integer:
        return float(dtype.qmin), float(dtype.qmax)
    if dtype.bits not in (32, 64):
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
    dtype = real_dtype(operands[0])
    bounds = [
        None if bound is None else np.array(_bound(bound, dtype), dtype.numpy)
        for bound in (attributes.low, attributes.high)
    ]
    return encoded("Clip", [operands[0], *bounds])


def _read_dropout(node: NodeView) -> Decoded:
    training = node.constant(2) if node.opset >= 12 else None
    if training is not None and training.any():
        raise NoRow("it is in training mode")
    if node.results() > 1:
        raise NoRow("its mask is a result")
    return decoded("Identity", NO_ATTRIBUTES, node.operands[:1])


CODECS = (
    plain("Identity"),
    Codec(onnx_name="Clip", row="Clip", read=_read_clip, write=_write_clip),
    Codec(onnx_name="Dropout", row="Identity", read=_read_dropout),
)
