"""Codecs that follow from rows: each field of an attribute record is held as its codec says."""

from __future__ import annotations

from typing import Any

from qdqbridge.core.graph.attribute_codecs import AttributeCodec, Holds, Ints, attribute_codecs_of
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, OnnxOp, Operator
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
    int64,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of


def codec(row: Operator, written: OnnxOp) -> Codec:
    """Returns the codec of an operator whose attributes are ONNX's own."""
    shown = attribute_codecs_of(row.attributes)
    axes = next((name for name, codec in shown.items() if codec.holds is Holds.AXES), None)
    windowed = any(codec.holds is Holds.SPATIAL for codec in shown.values())

    def read(node: NodeView) -> Decoded:
        values: dict[str, Any] = _pool_window_fields(node) if windowed else {}
        operands = node.operands
        if axes is not None and written.axes_operand:
            given = _attr_or_operand_axes(node, shown[axes], written.axes_operand)
            if not given and node.flag("noop_with_empty_axes"):
                return decoded("Identity", NO_ATTRIBUTES, operands[:1])
            values[axes], operands = _resolved(node, given), operands[:1]
            if row.flow is Flow.MOVE and any(node.extent(a) == 0 for a in values[axes]):
                raise NoRow("it reduces nothing")
        for name, codec in shown.items():
            if name not in values:
                values[name] = _attribute(node, written, name, codec)
        known = {name: value for name, value in values.items() if name in shown}
        return decoded(row.name, row.attributes(**known), operands)

    def write(attributes: Attributes, operands: Operands, opset: int) -> Encoded:
        given = {
            codec.onnx: _as_onnx_attribute(getattr(attributes, name))
            for name, codec in shown.items()
        }
        inputs = list(operands)
        if axes is not None and written.axes_operand:
            numbers = given.pop(shown[axes].onnx)
            if numbers and opset >= written.axes_operand:
                inputs = [operands[0], int64(numbers)]
            elif numbers:  # none: a scalar, of which all axes are none
                given = {shown[axes].onnx: numbers, **given}
        return encoded(written.name, inputs, **given)

    return Codec(
        onnx_name=written.name,
        domain=written.domain,
        row=row.name,
        read=read,
        introduced=max(written.since, OLDEST),
        write=None if written.domain else write,
        known=tuple(codec.onnx for codec in shown.values()) if written.domain else (),
    )


def _as_onnx_attribute(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return int(value) if isinstance(value, bool) else value


def _attribute(node: NodeView, written: OnnxOp, name: str, codec: AttributeCodec) -> Any:
    default = written.defaults.get(name)
    if codec.holds is Holds.AXES:
        return _resolved(node, node.ints(codec.onnx, ()))
    if default is None and not node.has(codec.onnx):
        raise node.fault(f"attribute '{codec.onnx}' is missing")
    if codec.holds in (Holds.AXIS, Holds.LAST_AXES):
        return node.wrap(node.int_(codec.onnx, int(default or 0)))
    if codec.kind is bool:
        return node.flag(codec.onnx, default=bool(default))
    if codec.kind is int:
        return node.int_(codec.onnx, int(default or 0))
    if codec.kind is float:
        return node.float_(codec.onnx, float(default or 0.0))
    value, choices = node.string(codec.onnx, str(default)), written.choices.get(name)
    if choices is not None and value not in choices:
        raise NoRow(f"{name} is '{value}'")
    return value


def _attr_or_operand_axes(node: NodeView, codec: AttributeCodec, as_operand: int) -> Ints:
    if node.opset >= as_operand:
        return node.constant_ints(1) or ()
    return node.ints(codec.onnx, ())


def _resolved(node: NodeView, axes: Ints) -> Ints:
    return tuple(sorted(node.wrap_all(axes))) if axes else tuple(range(node.rank()))


def _pool_window_fields(node: NodeView) -> dict[str, Any]:
    """Returns the fields of a window, and whether a last one may reach beyond the padding."""
    window = window_of(node, kernel_of(node, None))
    return {
        "kernel_shape": window.kernel, "strides": window.strides, "dilations": window.dilations,
        "pads": window.pads, "ceil_mode": node.flag("ceil_mode") and not window.same,
    }  # fmt: skip


CODECS = tuple(codec(row, written) for row in OPERATORS for written in row.onnx)
