"""Operators that pick, join, repeat or rearrange elements."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.dtypes import DTypeKind
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    PadAttrs,
    SliceAttrs,
    SplitAttrs,
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
    int64,
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


def _write_pad(attributes: PadAttrs, operands: Operands, opset: int) -> Encoded:
    del opset
    value = None
    given = attributes.value != 0 or math.copysign(1, attributes.value) < 0
    if attributes.mode == "constant" and given:
        value = np.array(attributes.value, real_dtype(operands[0]).numpy)
    inputs = [operands[0], int64(attributes.pads), value]
    return encoded("Pad", inputs, mode=attributes.mode)


def _pad_needs(attributes: PadAttrs) -> int:
    return 19 if attributes.mode == "wrap" else OLDEST


READ: Mapping[str, Decode] = {"Slice": _read_slice, "Split": _read_split}
CODECS = (Codec(onnx_name="Pad", row="Pad", read=_read_pad, write=_write_pad, needs=_pad_needs),)
