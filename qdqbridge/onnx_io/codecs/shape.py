"""Operators that only change a tensor's shape or the order of its axes."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    TransposeAttrs,
)
from qdqbridge.onnx_io.codecs.codec import (
    OLDEST,
    Codec,
    Decode,
    Decoded,
    Encoded,
    Operands,
    decoded,
    encoded,
)
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow


def _constant_shape_operand(node: NodeView) -> Ints | None:
    """Returns operand 1, a shape; None where it is known only at run time."""
    try:
        return node.constant_ints(1)
    except NoRow:
        return None


def _read_reshape(node: NodeView) -> Decoded:
    shape, allow_zero = _constant_shape_operand(node), node.flag("allowzero")
    if shape is None:
        return decoded("Reshape", ReshapeAttrs(None, allow_zero), node.operands)
    if (
        shape.count(-1) > 1
        or min(shape, default=0) < -1
        or (allow_zero and 0 in shape and -1 in shape)
    ):
        raise node.fault(
            "Reshape has an ambiguous target",
            why=f"the shape is {list(shape)}",
            fix="use at most one -1, and no 0 beside it with allowzero",
        )
    attributes = ReshapeAttrs(shape, allow_zero and 0 in shape)
    return decoded("Reshape", attributes, node.operands[:1])


def _read_expand(node: NodeView) -> Decoded:
    shape = _constant_shape_operand(node)
    return decoded("Expand", ExpandAttrs(shape), node.operands[: 2 if shape is None else 1])


def _read_transpose(node: NodeView) -> Decoded:
    perm = node.ints("perm", None)
    if perm is None:
        perm = tuple(reversed(range(node.rank())))
    shape = node.shape(0)
    if sorted(perm) != list(range(len(perm))) or (shape is not None and len(shape) != len(perm)):
        raise node.fault(
            "perm is not a permutation of the input's axes",
            why=f"perm is {list(perm)}, the input's shape is {shape}",
            fix="correct perm",
        )
    return decoded("Transpose", TransposeAttrs(perm), node.operands)


def _squeeze_axes(node: NodeView) -> Ints | None:
    return node.constant_ints(1) if node.opset >= 13 else node.ints("axes", None)


def _read_squeeze(node: NodeView) -> Decoded:
    axes = _squeeze_axes(node)
    if axes is None:
        axes = tuple(i for i in range(node.rank()) if node.known_extent(i) == 1)
    resolved = node.wrap_all(axes)
    long = [axis for axis in resolved if node.extent(axis) not in (None, 1)]
    if long:
        raise node.fault(
            f"axis {long[0]} cannot be squeezed",
            why=f"its extent is {node.extent(long[0])}",
            fix="squeeze axes of extent 1",
        )
    return decoded("Squeeze", AxesAttrs(tuple(sorted(resolved))), node.operands[:1])


def _read_unsqueeze(node: NodeView) -> Decoded:
    axes = _squeeze_axes(node)
    if axes is None:
        raise node.fault("axes are missing")
    resolved = node.wrap_all(axes, extra=len(axes))
    return decoded("Unsqueeze", AxesAttrs(tuple(sorted(resolved))), node.operands[:1])


def _read_flatten(node: NodeView) -> Decoded:
    axis = node.int_("axis", 1)
    if axis < 0:
        return decoded("Flatten", AxisAttrs(node.wrap(axis)), node.operands)
    return decoded("Flatten", AxisAttrs(node.wrap(axis, extra=1)), node.operands)


def _read_shape(node: NodeView) -> Decoded:
    end = node.int_("end", 0) if node.has("end") else None
    return decoded("Shape", ShapeAttrs(node.int_("start", 0), end), node.operands)


def _write_shape(attributes: ShapeAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    given = {"start": attributes.start or None, "end": attributes.end}
    return encoded("Shape", operands, **{k: v for k, v in given.items() if v is not None})


READ: Mapping[str, Decode] = {
    "Expand": _read_expand,
    "Flatten": _read_flatten,
    "Reshape": _read_reshape,
    "Squeeze": _read_squeeze,
    "Transpose": _read_transpose,
    "Unsqueeze": _read_unsqueeze,
}
CODECS = (
    Codec(
        onnx_name="Shape",
        row="Shape",
        read=_read_shape,
        write=_write_shape,
        needs=lambda attributes: OLDEST if attributes == ShapeAttrs() else 15,
    ),
)
