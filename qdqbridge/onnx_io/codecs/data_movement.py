"""Operators that pick, join, repeat or rearrange elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.dtypes import DTypeKind
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    ExpandAttrs,
    PadAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TransposeAttrs,
)
from qdqbridge.onnx_io.codecs.codec import (
    Codec,
    Decode,
    Decoded,
    decoded,
    real_dtype,
)
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow


def _read_slice(node: NodeView) -> Decoded:
    if node.opset < 10:
        starts, ends = node.ints("starts", ()), node.ints("ends", ())
        axes, steps = node.ints("axes", None), None
    else:
        starts, ends = node.constant_ints(1) or (), node.constant_ints(2) or ()
        axes, steps = node.constant_ints(3), node.constant_ints(4)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise node.fault(
            "Slice has unequal lists or a step of 0",
            why=f"starts {starts}, ends {ends}, axes {axes}, steps {steps}",
        )
    # By axis, whatever order a file has them in: one meaning, one digest.
    rows = sorted(zip(node.wrap_all(axes), starts, ends, steps, strict=True))
    axes, starts, ends, steps = (tuple(row[i] for row in rows) for i in range(4))
    return decoded("Slice", SliceAttrs(starts, ends, axes, steps), node.operands[:1])


def _read_split(node: NodeView) -> Decoded:
    axis = node.wrap(node.int_("axis", 0))
    sizes = node.ints("split", None) if node.opset < 13 else node.constant_ints(1)
    parts = len(node.proto.output)
    extent = node.extent(axis)
    if sizes is None:
        sizes = _equal_parts(node, axis, node.int_("num_outputs", parts))
    if len(sizes) != parts or min(sizes, default=0) < 0 or extent not in (None, sum(sizes)):
        raise node.fault(
            "the parts of Split do not add up",
            why=f"parts {list(sizes)}, {parts} results, extent {extent} along axis {axis}",
        )
    return decoded("Split", SplitAttrs(axis, sizes), node.operands[:1])


def _equal_parts(node: NodeView, axis: int, parts: int) -> Ints:
    extent = node.known_extent(axis)
    size = -(-extent // parts) if parts > 0 else 0
    if parts < 1 or (node.opset < 18 and extent % parts) or extent - size * (parts - 1) < 0:
        raise node.fault(
            "Split cannot make equal parts",
            why=f"extent {extent}, {parts} parts",
            fix="give the sizes of the parts",
        )
    return (*(size,) * (parts - 1), extent - size * (parts - 1))


def _read_pad(node: NodeView) -> Decoded:
    mode = node.string("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise node.fault(f"Pad has the unknown mode '{mode}'")
    kind = real_dtype(node.operand(0)).kind
    if kind in (DTypeKind.STRING, DTypeKind.BOOL):
        raise NoRow(f"it pads {kind.value} elements")
    if node.opset < 11:
        pads, value = node.ints("pads", ()), node.float_("value", 0.0)
    else:
        pads = node.constant_ints(1) or ()
        value = _pad_value(node) if mode == "constant" else 0.0
    pads = _all_axes(node, pads, node.constant_ints(3) if node.opset >= 18 else None)
    value = value if mode == "constant" else 0.0
    return decoded("Pad", PadAttrs(pads, mode, value), node.operands[:1])


def _pad_value(node: NodeView) -> float:
    """Returns the real number that a Pad writes, also where it works on stored integers."""
    found = node.constant_number(2)
    number = 0.0 if found is None else found  # -0.0 is another value
    data, given = node.operand(0), node.optional(2)
    if not isinstance(data.type, QuantType) or (given is not None and given.quant):
        return number
    if not data.type.params.per_tensor:
        raise NoRow("it pads stored integers of several scales")
    return float(dequantize(np.array(number).astype(data.type.dtype.numpy), data.type.params))


def _all_axes(node: NodeView, pads: Ints, axes: Ints | None) -> Ints:
    """Returns pads of every axis from those of some axes."""
    shape = node.shape(0)
    count = len(pads) // 2
    if axes is None:
        if len(pads) % 2 or (shape is not None and len(shape) != count):
            raise node.fault("pads do not fit the input", why=f"pads {pads}, input shape {shape}")
        return pads
    if len(axes) * 2 != len(pads):
        raise node.fault("pads and axes do not agree", why=f"pads {pads}, axes {axes}")
    rank = node.rank()
    full = [0] * (2 * rank)
    for i, axis in enumerate(node.wrap_all(axes)):
        full[axis], full[axis + rank] = pads[i], pads[i + count]
    return tuple(full)


# ---- SequenceAt of SplitToSequence is a slice (PyTorch's exporter writes ``torch.split`` so)


def _read_sequence_at(node: NodeView) -> Decoded:
    source, index = node.operands[0], node.constant(1)
    maker = None if source is None else source.producer
    if maker is None or maker.op.name != "SplitToSequence" or index is None:
        raise NoRow("only SequenceAt of SplitToSequence at a constant place is a slice")
    position, axis, sizes = int(index.reshape(-1)[0]), *_split_to_sequence_sizes(maker)
    if not -len(sizes) <= position < len(sizes):
        raise node.fault(
            f"position {position} is outside of a sequence of {len(sizes)}",
            why=f"the tensor is split into parts of {sizes}",
        )
    start = sum(sizes[: position % len(sizes)])
    end = start + sizes[position]
    return decoded("Slice", SliceAttrs((start,), (end,), (axis,), (1,)), [maker.operand(0)])


def _split_to_sequence_sizes(maker: Node) -> tuple[int, list[int]]:
    """Returns the axis and the extents of the parts."""
    numbers = maker.attributes.node.integers()  # type: ignore[attr-defined] # a foreign record
    x = maker.operand(0)
    if x.type.shape is None or not numbers.get("keepdims", 1):
        raise NoRow("the rank of the split tensor is unknown, or the axis is dropped")
    axis = int(numbers.get("axis", 0)) % len(x.type.shape)
    extent = x.type.shape[axis]
    if not isinstance(extent, int):
        raise NoRow("the split extent is symbolic")
    split = maker.optional(1)
    if split is None:
        return axis, [1] * extent
    if split.constant is None:
        raise NoRow("the parts are computed at run time")
    sizes = np.asarray(split.constant.numpy())
    if sizes.ndim:
        return axis, [int(size) for size in sizes]
    size = int(sizes)
    if size < 1:
        raise NoRow(f"parts of {size} elements")
    return axis, [min(size, extent - start) for start in range(0, extent, size)]


SEQUENCE_CODECS = (Codec(onnx_name="SequenceAt", row="Slice", read=_read_sequence_at),)


# ---- Operators that only change a tensor's shape or the order of its axes


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
    # Without a 0 the flag says nothing, and files differ in it.
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
        # Squeeze without axes drops all of extent 1: which these are has to be known now.
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


READ: Mapping[str, Decode] = {
    "Expand": _read_expand,
    "Flatten": _read_flatten,
    "Pad": _read_pad,
    "Reshape": _read_reshape,
    "Shape": _read_shape,
    "Slice": _read_slice,
    "Split": _read_split,
    "Squeeze": _read_squeeze,
    "Transpose": _read_transpose,
    "Unsqueeze": _read_unsqueeze,
}
