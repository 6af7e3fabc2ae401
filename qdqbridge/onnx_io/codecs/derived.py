"""Codecs that follow from rows: each field of an attribute record is held as its codec says.

What a node means may have to be computed: older opsets said it otherwise, an operand may be known
only at run time. Modules of this folder have functions for such operators, by ONNX's name in
:data:`READ`. Writing is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import AttributeCodec, Holds, Ints, attribute_codecs_of
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, Flow, OnnxOp, Operator
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.codecs import data_movement, elementwise, windows
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decode,
    Decoded,
    Encode,
    Encoded,
    Operands,
    decoded,
    encoded,
    int64,
    real_dtype,
)
from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.onnx_io.codecs.windows import kernel_of, window_of
from qdqbridge.onnx_io.tensors import dtype_to_onnx

READ: Mapping[str, Decode] = {
    **elementwise.READ,
    **windows.READ,
    **data_movement.READ,
    **windows.RESIZE_READ,
}
"""What reads operators whose nodes do not say the fields of their records."""


def codec(row: Operator, written: OnnxOp) -> Codec:
    """Returns the codec of an operator whose attributes are ONNX's own."""
    shown = attribute_codecs_of(row.attributes)
    return Codec(
        onnx_name=written.name,
        domain=written.domain,
        row=row.name,
        read=READ.get(written.name) or _reader(row, written),
        introduced=max(written.since, OLDEST),
        needs=lambda attributes: _needed_opset(written, attributes),
        write=None if written.domain or written.read_only else _writer(row, written),
        known=(*(codec.onnx for codec in shown.values()), *written.fixed),
    )


# ---- reading -----------------------------------------------------------------------------------


def _reader(row: Operator, written: OnnxOp) -> Decode:
    shown = attribute_codecs_of(row.attributes)
    windowed = any(codec.holds is Holds.SPATIAL for codec in shown.values())
    older = _OLDER.get(written.name)

    def read(node: NodeView) -> Decoded:
        if node.results() > 1:
            raise NoRow("it has more results than one")
        for name, (wanted, reason) in written.fixed.items():
            if node.int_(name, wanted) != wanted:
                raise NoRow(reason)
        values: dict[str, Any] = _pool_window_fields(node) if windowed else {}
        values |= older(node) if older is not None else {}
        operands = node.operands[:1] if written.operands else node.operands
        for name, codec in shown.items():
            if name not in values:
                values[name] = _field(node, written, name, codec)
        for name in written.left_out:
            if not values[name] and node.flag("noop_with_empty_axes"):
                return decoded("Identity", NO_ATTRIBUTES, operands)
            values[name] = values[name] or tuple(range(node.rank()))
            if row.flow is Flow.MOVE and any(node.extent(axis) == 0 for axis in values[name]):
                raise NoRow("it reduces nothing")
        attributes = row.attributes(**{name: values[name] for name in shown})
        if row.known is not None:
            attributes = row.known(attributes, node.shape(0))
        return decoded(row.name, attributes, operands)

    return read


def _field(node: NodeView, written: OnnxOp, name: str, codec: AttributeCodec) -> Any:
    if written.later.get(name) == 0:
        return written.defaults[name]
    if name in written.operands:
        place = 1 + list(written.operands).index(name)
        as_operand = node.opset >= written.operands[name]
        given = node.constant_ints(place) if as_operand else node.ints(codec.onnx, ())
        return tuple(sorted(node.wrap_all(given or ()))) if codec.holds is Holds.AXES else given
    return _attribute(node, written, name, codec)


def _attribute(node: NodeView, written: OnnxOp, name: str, codec: AttributeCodec) -> Any:
    default = written.defaults.get(name)
    if default is None and not node.has(codec.onnx):
        raise node.fault(f"attribute '{codec.onnx}' is missing")
    if codec.holds is Holds.AXES and codec.alone:
        return (node.wrap(node.int_(codec.onnx, int(default or 0))),)
    if codec.holds in (Holds.AXIS, Holds.LAST_AXES):
        return node.wrap(node.int_(codec.onnx, int(default or 0)))
    if codec.kind == Ints:
        given: Ints = node.ints(codec.onnx, default or ())
        return tuple(sorted(node.wrap_all(given))) if codec.holds is Holds.AXES else given
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


def _pool_window_fields(node: NodeView) -> dict[str, Any]:
    """Returns the fields of a window, and whether a last one may reach beyond the padding."""
    window = window_of(node, kernel_of(node, None))
    return {
        "kernel_shape": window.kernel, "strides": window.strides, "dilations": window.dilations,
        # SAME gives as many windows as fit exactly, so rounding up changes nothing.
        "pads": window.pads, "ceil_mode": node.flag("ceil_mode") and not window.same,
    }  # fmt: skip


def _softmax_before_13(node: NodeView) -> dict[str, Ints]:
    """Returns the axes of a Softmax: older ones flatten the operand to two axes at ``axis``."""
    if node.opset >= 13:
        return {}
    first = node.wrap(node.int_("axis", 1), extra=0 if node.int_("axis", 1) < 0 else 1)
    axes = range(first, node.rank())
    longer = tuple(axis for axis in axes if node.extent(axis) != 1)
    opened = sum(node.extent(axis) is None for axis in range(node.rank()))
    if len(longer) > 1 and opened > 1:
        raise NoRow("it runs over several axes of open extents")
    return {"axes": longer or tuple(axes)[-1:]}


def _group_norm_before_21(node: NodeView) -> dict[str, int]:
    """Returns the groups of a norm: older ones have a scale for each group, not each channel."""
    groups, channels = node.int_("num_groups", 0), node.extent(1)
    if groups < 1 or (channels is not None and channels % groups):
        raise node.fault(
            "num_groups does not divide the channels",
            why=f"{groups} groups, {channels} channels",
        )
    if node.opset < 21 and groups != channels:
        raise NoRow("its scale is per group (before opset 21)")
    return {"num_groups": groups}


_OLDER: Mapping[str, Callable[[NodeView], Mapping[str, Any]]] = {
    "GroupNormalization": _group_norm_before_21,
    "LogSoftmax": _softmax_before_13,
    "Softmax": _softmax_before_13,
}
"""Fields that older opsets said otherwise."""

# ---- writing -----------------------------------------------------------------------------------


def _needed_opset(written: OnnxOp, attributes: Attributes) -> int:
    """Returns the opset that has every field whose value is not the one that older ones imply."""
    fields = (
        opset
        for name, opset in written.later.items()
        if opset and not _is_default(getattr(attributes, name), written.defaults[name])
    )
    values = (since.get(getattr(attributes, name), OLDEST) for name, since in written.newer.items())
    return max((*fields, *values, OLDEST))


def _is_default(value: Any, default: Any) -> bool:
    return set(value) <= {default} if isinstance(value, tuple) else value == default  # pyright: ignore[reportUnknownArgumentType]


def _writer(row: Operator, written: OnnxOp) -> Encode:
    shown = attribute_codecs_of(row.attributes)
    names = dict.fromkeys((*written.first, *written.operands, *shown))

    def write(attributes: Attributes, operands: Operands, opset: int) -> Encoded:
        given: dict[str, Any] = {}
        inputs: list[Value | NDArray[Any] | None] = [
            *(operands[:1] if written.operands else operands)
        ]
        for name in names:
            codec, value = shown[name], getattr(attributes, name)
            as_operand = opset >= written.operands.get(name, opset + 1)
            if _is_unsaid(written, name, value):
                inputs += [None] if as_operand else []
            elif as_operand:
                inputs.append(_as_onnx_operand(value, operands))
            elif opset >= (written.later.get(name, OLDEST) or opset + 1):
                given[codec.onnx] = _as_onnx_attribute(written, name, codec, value)
        if "strides" in shown and "kernel_shape" not in shown:
            given |= _kernel_of_weight(operands)
        return encoded(written.name, inputs, **given)

    return write


def _is_unsaid(written: OnnxOp, name: str, value: Any) -> bool:
    if name in written.unsaid:  # -0.0 is another number than 0.0
        return _is_default(value, written.defaults[name]) and str(value) != "-0.0"
    return name in written.left_out and not value


def _as_onnx_operand(value: Any, operands: Operands) -> Value | NDArray[Any] | None:
    """Returns a field as an operand; one that is None is an operand that only the run knows."""
    if value is None:
        return operands[1]
    if isinstance(value, float):
        return np.array(value, real_dtype(operands[0]).numpy)
    floats = any(isinstance(entry, float) for entry in value)
    return np.array(value, np.float32) if floats else int64(value)


def _as_onnx_attribute(written: OnnxOp, name: str, codec: AttributeCodec, value: Any) -> Any:
    choices = written.choices.get(name)
    if choices is not None and value not in choices:
        raise UnsupportedTargetError(
            f"{written.name} with {codec.onnx} '{value}' cannot be written",
            why=f"ONNX has {', '.join(choices)}",
            fix="use one of these in the original model",
        )
    if isinstance(value, DType):
        return dtype_to_onnx(value)
    if not isinstance(value, tuple):
        return int(value) if isinstance(value, bool) else value
    entries: Sequence[Any] = value  # pyright: ignore[reportUnknownVariableType]
    if not codec.alone:
        return list(entries)
    if len(entries) != 1:
        raise UnsupportedTargetError(
            f"ONNX's {written.name} normalizes one axis from opset 13 on",
            why=f"it runs over the axes {list(entries)} here",
            fix="write Flatten or Reshape around it",
        )
    return entries[0]


def _kernel_of_weight(operands: Operands) -> dict[str, list[int]]:
    """Returns ``kernel_shape`` where the weight says it (optional in ONNX, but customary)."""
    weight = operands[1]
    data_movement = None if weight is None else weight.type.shape
    spatial = [] if data_movement is None else [d for d in data_movement[2:] if isinstance(d, int)]
    return (
        {"kernel_shape": spatial}
        if data_movement and len(spatial) == len(data_movement) - 2
        else {}
    )


CODECS = tuple(codec(row, written) for row in OPERATORS for written in row.onnx)
