"""Data movement: reshapes, slices, concatenations, paddings, gathers, and shapes themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    PadAttrs,
    ShapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.data_movement import (
    SQUEEZE,
    STEPS,
    TILE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.selection import GATHER, PAD, SLICE, SPLIT
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.tflite_io.counterparts import Counterpart, Family, of_families
from qdqbridge.tflite_io.writer.emission import Emission, WriteRow, WriterRow, written
from qdqbridge.tflite_io.writer.rows import kernels
from qdqbridge.tflite_io.writer.tensors import NoCounterpart, extents

_FAR = (1 << 31) - 1
_INT8 = "INT8"


def reshape(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """RESHAPE to the result's extents."""
    e.add("RESHAPE", [x[0], e.shape_operand(node.output, x[0])], y, "ReshapeOptions")


def squeeze(
    e: Emission, node: Node, attributes: AxesAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """SQUEEZE."""
    del node
    axes = np.asarray(attributes.axes, np.int32)
    e.add("SQUEEZE", x[:1], y, "SqueezeOptions", SqueezeDims=axes)


def unsqueeze(
    e: Emission, node: Node, attributes: AxesAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """EXPAND_DIMS, an axis at a time."""
    del node
    made, axes = x[0], attributes.axes
    for place, axis in enumerate(axes):
        shape = list(e.type_of(made)[1])
        shape.insert(axis, 1)
        after = y[0] if place == len(axes) - 1 else e.like(made, shape)
        e.add("EXPAND_DIMS", [made, e.constant([axis], "axis")], [after], "ExpandDimsOptions")
        made = after


def transpose(
    e: Emission, node: Node, attributes: TransposeAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """TRANSPOSE."""
    del node
    perm = e.constant(list(attributes.perm), "perm")
    e.add("TRANSPOSE", [x[0], perm], y, "TransposeOptions", e.version(x[0]))


def concatenation(
    e: Emission, node: Node, attributes: AxisAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """CONCATENATION."""
    del node
    e.add(
        "CONCATENATION", x, y, "ConcatenationOptions", e.version(x[0]),
        Axis=attributes.axis, FusedActivationFunction=0,
    )  # fmt: skip


def split(
    e: Emission, node: Node, attributes: SplitAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """SPLIT into equal parts, or SPLIT_V."""
    del node
    sizes, axis = attributes.sizes, e.constant([attributes.axis], "axis")
    if len(set(sizes)) == 1:
        options = "SplitOptions"
        e.add("SPLIT", [axis, x[0]], y, options, e.version(x[0]), NumSplits=len(sizes))
        return
    listed = e.constant(list(sizes), "sizes")
    e.add(
        "SPLIT_V", [x[0], listed, axis], y, "SplitVOptions",
        2 if e.type_of(x[0])[0] == _INT8 else 1, NumSplits=len(sizes),
    )  # fmt: skip


def slices(
    e: Emission, node: Node, attributes: SliceAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """SLICE where steps are 1 and extents are known, else STRIDED_SLICE."""
    given, made = extents(node.operand(0)), extents(node.output)
    places = dict(
        zip(attributes.axes, zip(attributes.starts, attributes.ends, attributes.steps, strict=True),
            strict=True)
    )  # fmt: skip
    # SLICE knows no steps, and no bounds that count from the end of an open extent.
    if all(step == 1 and given[axis] >= 0 for axis, (_, _, step) in places.items()):
        begins = [
            _begin(places[axis][0], extent) if axis in places else 0
            for axis, extent in enumerate(given)
        ]
        sizes = [made[axis] if axis in places else -1 for axis in range(len(given))]
        sizes = [given[a] if s == -1 and given[a] >= 0 else s for a, s in enumerate(sizes)]
        operands = [x[0], e.constant(begins, "begin"), e.constant(sizes, "size")]
        e.add("SLICE", operands, y, "SliceOptions", e.version(x[0]))
        return
    begins, ends, steps, from_first, to_last = [], [], [], 0, 0
    for axis, _ in enumerate(given):
        if axis not in places:
            begins, ends, steps = [*begins, 0], [*ends, 0], [*steps, 1]
            from_first, to_last = from_first | 1 << axis, to_last | 1 << axis
            continue
        start, end, step = places[axis]
        begins, steps = [*begins, _narrow(start)], [*steps, step]
        ends = [*ends, _narrow(end)]
        # ONNX ends a backward slice in front of element 0 with a number below -extent. TFLite has
        # no such end: a negative one counts from the back, and only the mask says "to the last".
        if step < 0 and given[axis] >= 0 and end < -given[axis]:
            to_last |= 1 << axis
        if step < 0 and given[axis] >= 0 and start >= given[axis]:
            from_first |= 1 << axis
        if step > 0 and end >= _FAR:
            to_last |= 1 << axis
    operands = [x[0], *(e.constant(n, w) for n, w in
                        ((begins, "begin"), (ends, "end"), (steps, "steps")))]  # fmt: skip
    e.add(
        "STRIDED_SLICE", operands, y, "StridedSliceOptions",
        2 if e.type_of(x[0])[0] == _INT8 else 1, BeginMask=from_first, EndMask=to_last,
    )  # fmt: skip


def _begin(start: int, extent: int) -> int:
    return max(0, min(start + extent if start < 0 else start, extent))


def _narrow(number: int) -> int:
    return max(-_FAR, min(number, _FAR))


def pad(e: Emission, node: Node, attributes: PadAttrs, x: Sequence[int], y: Sequence[int]) -> None:
    """PAD by zero, PADV2 by another number, MIRROR_PAD."""
    rank = node.operand(0).rank or 0
    if min(attributes.pads) < 0:
        raise NoCounterpart("it cuts off", "write a Slice")
    pairs = np.asarray(attributes.pads, np.int32).reshape(2, rank).T
    sides = e.constant(np.ascontiguousarray(pairs), "paddings")
    if attributes.mode == "reflect":
        version = 2 if e.type_of(x[0])[0] == _INT8 else 1
        e.add("MIRROR_PAD", [x[0], sides], y, "MirrorPadOptions", version, Mode=0)
        return
    if attributes.mode != "constant":
        raise NoCounterpart(f"its mode is {attributes.mode}")
    if attributes.value == 0.0:
        e.add("PAD", [x[0], sides], y, "PadOptions", e.version(x[0]))
        return
    e.add("PADV2", [x[0], sides, _filling(e, node, attributes.value)], y, "PadV2Options",
          e.version(x[0]))  # fmt: skip


def _filling(e: Emission, node: Node, value: float) -> int:
    quant = node.output.quant
    if quant is None or not e.integers:
        dtype = node.output.type.dtype.numpy if quant is None else np.dtype(np.float32)
        return e.constant(np.asarray(value).astype(dtype), "value")
    # The whole range: what a narrower one would clamp may be asked for, such as what no maximum
    # takes.
    code = quantize(np.asarray(value, np.float32), quant.params.widened())
    return e.quantized_constant(Constant.of(np.asarray(code)), quant.params.widened(), "value")


def tile(
    e: Emission, node: Node, attributes: TileAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """TILE."""
    del node
    repeats = e.constant(list(attributes.repeats), "multiples")
    e.add("TILE", [x[0], repeats], y, "TileOptions", 2 if e.integers else 1)


def expand(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """BROADCAST_TO the result's extents."""
    shape = extents(node.output)
    if -1 in shape:
        raise NoCounterpart("its result's extents are open", "fix them with --extent")
    e.add("BROADCAST_TO", [x[0], e.constant(list(shape), "shape")], y, "BroadcastToOptions", 2)


def gather(
    e: Emission, node: Node, attributes: AxisAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """GATHER; constant indices count from the front."""
    axis, index = attributes.axis, node.operand(1)
    if index.constant is None:
        place = x[1] if x[1] >= 0 else e.tensor(index)
    else:
        numbers = index.constant.numpy().astype(np.int64)
        extent = extents(node.operand(0))[axis]
        # TFLite's GATHER takes no index that counts from the end.
        if numbers.min(initial=0) < 0:
            if extent < 0:
                raise NoCounterpart("it counts from the end of an open extent")
            numbers = np.where(numbers < 0, numbers + extent, numbers)
        place = e.constant(numbers.astype(np.int32), index.name or "indices")
    e.add("GATHER", [x[0], place], y, "GatherOptions", e.version(x[0]), Axis=axis)


def blocks(row: Counterpart) -> WriteRow:
    """Returns the row of DEPTH_TO_SPACE and SPACE_TO_DEPTH, which are channels-last."""

    def write(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
        name, options, attributes = row.tflite, row.options, node.record(DepthSpaceAttrs)
        if e.type_of(x[0])[0] == "INT16":
            _by_axes(e, node, attributes, x[0], y[0])
            return
        if attributes.mode != "DCR":
            raise NoCounterpart(f"its mode is {attributes.mode}", "permute the channels before it")
        if e.channels_last(node):
            e.add(name, x[:1], y, options, BlockSize=attributes.block_size)
            return
        # TFLite's blocks are channels-last, whatever the layout of what is around.
        permuted = e.transposed(x[0], [0, 2, 3, 1])
        shape = e.type_of(y[0])[1]
        made = e.like(y[0], [shape[0], shape[2], shape[3], shape[1]])
        e.add(name, [permuted], [made], options, BlockSize=attributes.block_size)
        back = e.constant([0, 3, 1, 2], "perm")
        e.add("TRANSPOSE", [made, back], y, "TransposeOptions", e.version(x[0]))

    return write


def _by_axes(e: Emission, node: Node, attributes: DepthSpaceAttrs, x: int, y: int) -> None:
    """Moves 16-bit blocks, of which TFLite has no operator, by the axes of six."""
    last = e.channels_last(node)
    if last:
        x = e.transposed(x, [0, 3, 1, 2])
    have, size = e.type_of(x)[1], attributes.block_size
    if -1 in (have[0], *have[2:]):
        raise NoCounterpart("it moves 16-bit blocks of open extents", "fix them with --extent")
    steps = STEPS[node.op.name, attributes.mode]
    wide, perm, made = steps.between(have, size), steps.perm, steps.result(have, size)
    spread = e.like(x, wide)
    e.add("RESHAPE", [x, e.constant(list(wide), "shape")], [spread], "ReshapeOptions")
    moved = e.transposed(spread, perm)
    flat = e.like(x, made) if last else y
    e.add("RESHAPE", [moved, e.constant(list(made), "shape")], [flat], "ReshapeOptions")
    if last:
        back = e.constant([0, 2, 3, 1], "perm")
        e.add("TRANSPOSE", [flat, back], [y], "TransposeOptions", 3)


def shape_of(
    e: Emission, node: Node, attributes: ShapeAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """SHAPE, cut to the extents that are asked for."""
    rank = len(extents(node.operand(0)))
    out_type = 4 if e.type_of(y[0])[0] == "INT64" else 2
    start, end = attributes.start, attributes.end
    if start == 0 and end in (None, rank):
        e.add("SHAPE", x[:1], y, "ShapeOptions", OutType=out_type)
        return
    whole = e.plain(e.type_of(y[0])[0], (rank,), "shape")
    e.add("SHAPE", x[:1], [whole], "ShapeOptions", OutType=out_type)
    operands = [whole, e.constant([start]), e.constant([rank if end is None else end]),
                e.constant([1])]  # fmt: skip
    e.add("STRIDED_SLICE", operands, y, "StridedSliceOptions")


def _joined(node: Node) -> bool:
    return kernels.moves(node)


def _shapes(node: Node) -> bool:
    del node
    return True


ROWS: Mapping[str, WriterRow] = {
    **{row.onnx: WriterRow(blocks(row), kernels.moves) for row in of_families(Family.BLOCKS)},
    "Expand": WriterRow(expand, kernels.moves, own=(1,)),
    "Flatten": WriterRow(reshape, kernels.moves),
    "Identity": WriterRow(reshape, kernels.moves),
    "Reshape": WriterRow(reshape, kernels.moves, own=(1,)),
    **dict(
        (
            written(CONCAT, concatenation, _joined),
            written(GATHER, gather, kernels.moves, own=(1,)),
            written(PAD, pad, kernels.moves, own=(1, 2, 3)),
            written(SHAPE, shape_of, _shapes),
            written(SLICE, slices, kernels.moves, own=(1, 2, 3, 4)),
            written(SPLIT, split, kernels.moves, own=(1,)),
            written(SQUEEZE, squeeze, kernels.moves, own=(1,)),
            written(TILE, tile, kernels.moves, own=(1,)),
            written(TRANSPOSE, transpose, kernels.moves),
            written(UNSQUEEZE, unsqueeze, kernels.moves, own=(1,)),
        )
    ),
}
