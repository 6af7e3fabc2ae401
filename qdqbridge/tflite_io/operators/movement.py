"""TFLite's data movement: reshapes, transposes, joins, parts and paddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op

_LISTED = 1 << 20
"""Up to so many numbers are written out."""
_FAR = (1 << 31) - 1
"""An end behind every extent."""


def reshape(c: SubgraphConversion, op: Op) -> None:
    """RESHAPE: to the second operand, or to the option where there is none."""
    x = c.real(op.inputs[0])
    if c.has(op, 1):
        shape = c.long(op, 1)
    elif not op.option("NewShapeIsNone", True):
        shape = c.longs([int(i) for i in op.option("NewShapeAsNumpy")])
    else:
        shape = c.longs(c.shape(op.outputs[0]))
    c.put(op, c.to.node("Reshape", [x, shape], label=c.label(op), allowzero=_zero(c, op)))


def _zero(c: SubgraphConversion, op: Op) -> int:
    """An extent of 0 means 0 in TFLite, never a copy; ONNX allows no -1 beside it."""
    array = c.array(op.inputs[1]) if c.has(op, 1) else None
    return int(array is not None and 0 in array.reshape(-1) and -1 not in array.reshape(-1))


def squeeze(c: SubgraphConversion, op: Op) -> None:
    """SQUEEZE: of the listed axes, or of all of extent 1."""
    listed: list[int] = []
    if not op.option("SqueezeDimsIsNone", True):
        rank = max(c.rank(op.inputs[0]), 1)
        listed = [int(i) % rank for i in op.option("SqueezeDimsAsNumpy")]
    operands = [c.real(op.inputs[0])]
    if listed:
        operands.append(c.longs(listed))
    else:
        ones = [i for i, extent in enumerate(c.shape(op.inputs[0])) if extent == 1]
        operands.append(c.longs(ones))
    c.put(op, c.to.node("Squeeze", operands, label=c.label(op)))


def expand_dims(c: SubgraphConversion, op: Op) -> None:
    """EXPAND_DIMS at one axis."""
    axes = c.longs([c.numbers(op, 1)[0] % (c.rank(op.inputs[0]) + 1)])
    c.put(op, c.to.node("Unsqueeze", [c.real(op.inputs[0]), axes], label=c.label(op)))


def transpose(c: SubgraphConversion, op: Op) -> None:
    """TRANSPOSE."""
    x = c.real(op.inputs[0])
    c.put(op, c.to.node("Transpose", [x], label=c.label(op), perm=c.numbers(op, 1)))


def concatenation(c: SubgraphConversion, op: Op) -> None:
    """CONCATENATION."""
    axis = int(op.option("Axis"))
    result = c.to.node("Concat", c.operands(op), label=c.label(op), axis=axis)
    c.put(op, c.activated(result, op, int(op.option("FusedActivationFunction"))))


def pack(c: SubgraphConversion, op: Op) -> None:
    """PACK: operands side by side along a new axis."""
    axis = int(op.option("Axis"))
    place = c.longs([axis])
    rows = [c.to.node("Unsqueeze", [x, place]) for x in c.operands(op)]
    c.put(op, c.to.node("Concat", rows, label=c.label(op), axis=axis))


def unpack(c: SubgraphConversion, op: Op) -> None:
    """UNPACK: each index along an axis by itself."""
    axis, count = int(op.option("Axis")), len(op.outputs)
    x = c.real(op.inputs[0])
    parts = c.to.nodes("Split", [x, c.longs([1] * count)], count, label=c.label(op), axis=axis)
    for place, part in enumerate(parts):
        c.put(op, c.to.node("Squeeze", [part, c.longs([axis])]), place)


def split(c: SubgraphConversion, op: Op) -> None:
    """SPLIT (axis, tensor) into equal parts."""
    axis, x, count = c.numbers(op, 0)[0], c.real(op.inputs[1]), len(op.outputs)
    extent = c.shape(op.inputs[1])[axis]
    if extent < 0 or extent % count:
        raise UnknownForm(f"its axis of extent {extent} has no {count} equal parts")
    _convert_split(c, op, x, axis, [extent // count] * count)


def split_by_sizes(c: SubgraphConversion, op: Op) -> None:
    """SPLIT_V (tensor, sizes, axis); one size may be -1."""
    axis, sizes = c.numbers(op, 2)[0], c.numbers(op, 1)
    if -1 in sizes:
        extent = c.shape(op.inputs[0])[axis]
        if extent < 0:
            raise UnknownForm("a part takes what is left of an open extent")
        sizes[sizes.index(-1)] = extent - sum(sizes) - 1
    _convert_split(c, op, c.real(op.inputs[0]), axis, sizes)


def _convert_split(c: SubgraphConversion, op: Op, x: str, axis: int, sizes: Sequence[int]) -> None:
    if len(sizes) != len(op.outputs):
        raise UnknownForm(f"it has {len(sizes)} sizes for {len(op.outputs)} parts")
    parts = c.to.nodes("Split", [x, c.longs(sizes)], len(sizes), label=c.label(op), axis=axis)
    for place, part in enumerate(parts):
        c.put(op, part, place)


def pad(c: SubgraphConversion, op: Op) -> None:
    """PAD and PADV2: begins and ends per axis; a quantized tensor is padded with real zeros."""
    pads = c.array(op.inputs[1])
    if pads is not None:
        amounts = c.longs(pads.T.reshape(-1))
    else:
        permuted = c.to.node("Transpose", [c.long(op, 1)], perm=[1, 0])
        amounts = c.to.node("Reshape", [permuted, c.longs([-1])])
    operands = [c.real(op.inputs[0]), amounts]
    if op.name == "PADV2":
        operands.append(c.to.node("Reshape", [c.real(op.inputs[2]), c.longs([])]))
    c.put(op, c.to.node("Pad", operands, label=c.label(op), mode="constant"))


def mirror_pad(c: SubgraphConversion, op: Op) -> None:
    """MIRROR_PAD: without the edge (REFLECT) or with it (SYMMETRIC)."""
    pads = np.asarray(c.numbers(op, 1)).reshape(-1, 2)
    x, reflected = c.real(op.inputs[0]), int(op.option("Mode")) == 0
    for extent, both in zip(c.shape(op.inputs[0]), pads, strict=True):
        if both.min() < 0 or (extent >= 0 and both.max() > max(extent - reflected, 0)):
            raise ValueError(f"it pads {extent} elements with {both.max()} mirrored ones")
    if reflected:
        amounts = c.longs(pads.T.reshape(-1))
        c.put(op, c.to.node("Pad", [x, amounts], label=c.label(op), mode="reflect"))
        return
    for axis, (begin, end) in enumerate(pads):  # ONNX has no mode that repeats the edge
        extent = c.shape(op.inputs[0])[axis]
        if begin == end == 0:
            continue
        if not 0 <= extent <= _LISTED:
            raise UnknownForm("it mirrors an open extent, or a very long one")
        around = np.pad(np.arange(extent), (int(begin), int(end)), mode="symmetric")
        x = c.to.node("Gather", [x, c.longs(around)], label=c.label(op), axis=axis)
    c.put(op, x)


def tile(c: SubgraphConversion, op: Op) -> None:
    """TILE."""
    c.put(op, c.to.node("Tile", [c.real(op.inputs[0]), c.long(op, 1)], label=c.label(op)))


def broadcast(c: SubgraphConversion, op: Op) -> None:
    """BROADCAST_TO."""
    c.put(op, c.to.node("Expand", [c.real(op.inputs[0]), c.long(op, 1)], label=c.label(op)))


def fill(c: SubgraphConversion, op: Op) -> None:
    """FILL (shape, value)."""
    c.put(op, c.to.node("Expand", [c.real(op.inputs[1]), c.long(op, 0)], label=c.label(op)))


def reverse(c: SubgraphConversion, op: Op) -> None:
    """REVERSE_V2 along the listed axes."""
    x, axes = c.real(op.inputs[0]), c.numbers(op, 1)
    ends = [-_FAR] * len(axes)
    steps = c.longs([-1] * len(axes))
    operands = [x, c.longs([-1] * len(axes)), c.longs(ends), c.longs(axes), steps]
    c.put(op, c.to.node("Slice", operands, label=c.label(op)))


def reverse_sequence(c: SubgraphConversion, op: Op) -> None:
    """REVERSE_SEQUENCE by lengths per batch."""
    operands = [c.real(op.inputs[0]), c.long(op, 1)]
    time, batch = int(op.option("SeqDim")), int(op.option("BatchDim"))
    if {time, batch} != {0, 1}:
        raise UnknownForm("its batch and time are not the first two axes")
    result = c.to.node(
        "ReverseSequence", operands, label=c.label(op), time_axis=time, batch_axis=batch
    )
    c.put(op, result)


def dense_of_sparse(c: SubgraphConversion, op: Op) -> None:
    """DENSIFY: the constant is made dense where it is read."""
    c.put(op, c.real(op.inputs[0]))


ROWS: Mapping[str, Row] = {
    "BROADCAST_TO": broadcast,
    "CONCATENATION": concatenation,
    "DENSIFY": dense_of_sparse,
    "EXPAND_DIMS": expand_dims,
    "FILL": fill,
    "MIRROR_PAD": mirror_pad,
    "PACK": pack,
    "PAD": pad,
    "PADV2": pad,
    "RESHAPE": reshape,
    "REVERSE_SEQUENCE": reverse_sequence,
    "REVERSE_V2": reverse,
    "SPLIT": split,
    "SPLIT_V": split_by_sizes,
    "SQUEEZE": squeeze,
    "TILE": tile,
    "TRANSPOSE": transpose,
    "UNPACK": unpack,
}
