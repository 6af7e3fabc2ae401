"""Operators that work element by element, with at most a few coefficients."""

from __future__ import annotations

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes, OnnxOp, Operator
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
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
from qdqbridge.ops.elementwise import OPERATORS as ELEMENTWISE
from qdqbridge.ops.unary import OPERATORS as UNARY


def codec(row: Operator, written: OnnxOp) -> Codec:
    """Returns the codec of an operator whose attributes are ONNX's own."""

    def read(node: NodeView) -> Decoded:
        values = {name: _attribute(node, written, name) for name in row.fields}
        return decoded(row.name, row.attributes(**values), node.operands)

    def write(attributes: Attributes, operands: Operands, opset: int) -> Encoded:
        del opset
        return encoded(written.name, operands, **row.values(attributes))

    return Codec(
        onnx_name=written.name,
        domain=written.domain,
        row=row.name,
        read=read,
        introduced=max(written.since, OLDEST),
        write=None if written.domain else write,
        known=row.fields if written.domain else (),
    )


def _attribute(node: NodeView, written: OnnxOp, name: str) -> float | str:
    default = written.defaults[name]
    if not isinstance(default, str):
        return node.float_(name, default)
    value, choices = node.string(name, default), written.choices.get(name)
    if choices is not None and value not in choices:
        raise NoRow(f"{name} is '{value}'")
    return value


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
    *(codec(row, written) for row in (*UNARY, *ELEMENTWISE) for written in row.onnx),
    plain("Identity"),
    Codec(onnx_name="Clip", row="Clip", read=_read_clip, write=_write_clip),
    Codec(onnx_name="Dropout", row="Identity", read=_read_dropout),
)
