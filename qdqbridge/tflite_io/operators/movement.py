"""TFLite's data movement: reshapes, transposes, joins, parts, paddings; what goes by indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.counterparts import Family, of_families
from qdqbridge.tflite_io.operators.products import channels_first, channels_last
from qdqbridge.tflite_io.schema import Op

# ---- TFLite's data movement: reshapes, transposes, joins, parts and paddings ---------------------


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
        # The -1 is among the summands.
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
        # TFLite lists (begin, end) by axis, ONNX all begins and then all ends.
        amounts = c.longs(pads.T.reshape(-1))
    else:
        permuted = c.to.node("Transpose", [c.long(op, 1)], perm=[1, 0])
        amounts = c.to.node("Reshape", [permuted, c.longs([-1])])
    operands = [c.real(op.inputs[0]), amounts]
    if op.name == "PADV2":
        # ONNX wants a scalar; TFLite has a vector of one element.
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
    # Backwards to in front of element 0, which no number from -extent on says.
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


# ---- TFLite's slices: SLICE, and STRIDED_SLICE with its masks


def slices(c: SubgraphConversion, op: Op) -> None:
    """SLICE (tensor, begin, size); a size of -1 reaches to the end."""
    x = c.real(op.inputs[0])
    begin, size = c.array(op.inputs[1]), c.array(op.inputs[2])
    if begin is not None and size is not None:
        begin, size = begin.reshape(-1).astype(np.int64), size.reshape(-1).astype(np.int64)
        starts, ends = c.longs(begin), c.longs(np.where(size < 0, _FAR, begin + size))
    else:
        starts, sizes = c.long(op, 1), c.long(op, 2)
        open_ = c.to.node("Less", [sizes, c.to.constant(np.int64(0))])
        far = c.to.constant(np.int64(_FAR))
        ends = c.to.node("Where", [open_, far, c.to.node("Add", [starts, sizes])])
    c.put(op, c.to.node("Slice", [x, starts, ends], label=c.label(op)))


def strided_slice(c: SubgraphConversion, op: Op) -> None:
    """STRIDED_SLICE, Python's indexing: masks say what is left out, new, or a single index."""
    masks = {
        name: int(op.option(f"{name}Mask"))
        for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    }
    rank, entries = c.rank(op.inputs[0]), c.shape(op.inputs[1])[0]
    strides = c.numbers(op, 3)
    starts, ends = c.long(op, 1), c.long(op, 2)
    if bool(op.option("Offset", False)):
        ends = c.to.node("Add", [starts, ends])
    indexed = _indexed(rank, entries, masks)
    picked = [entry for entry, _, _ in indexed]
    starts, ends = (_picked(c, vector, picked, entries) for vector in (starts, ends))
    single = np.asarray([bool(masks["ShrinkAxis"] >> e & 1) for e in picked])
    steps = np.asarray([1 if one else strides[e] for e, one in zip(picked, single, strict=True)])
    if 0 in steps:
        raise UnknownForm("a stride is 0")
    if single.any():
        # A single index ends one behind itself; behind -1 that would be 0, the first element.
        last = c.to.node("Equal", [starts, c.to.constant(np.int64(-1))])
        after = c.to.node("Add", [starts, c.to.constant(np.int64(1))])
        far = c.to.constant(np.int64(_FAR))
        after = c.to.node("Where", [last, far, after])
        ends = c.to.node("Where", [c.to.constant(single), after, ends])
    starts = _masked(c, starts, [masks["Begin"] >> e & 1 for e in picked] & ~single, steps, 0)
    ends = _masked(c, ends, [masks["End"] >> e & 1 for e in picked] & ~single, steps, 1)
    x = c.real(op.inputs[0])
    if picked:
        axes = c.longs([axis for _, axis, _ in indexed])
        x = c.to.node("Slice", [x, starts, ends, axes, c.longs(steps)], label=c.label(op))
    dropped = [axis for (_, axis, _), one in zip(indexed, single, strict=True) if one]
    if dropped:
        x = c.to.node("Squeeze", [x, c.longs(dropped)], label=c.label(op))
    new = _new_axes(rank, entries, masks)
    if new:
        x = c.to.node("Unsqueeze", [x, c.longs(new)], label=c.label(op))
    c.put(op, x)


def _layout(rank: int, entries: int, masks: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Returns kind, entry and axis of what an index expression says, from left to right."""
    # An ellipsis counts where both bits are set, as in TensorFlow.
    new = [e for e in range(entries) if masks["NewAxis"] >> e & 1]
    ellipsis = next((e for e in range(entries) if masks["Ellipsis"] >> e & 1), None)
    own = entries - len([e for e in new if e != ellipsis]) - (ellipsis is not None)
    skipped = rank - own
    if skipped < 0:
        raise UnknownForm(f"it indexes {own} axes of a tensor of rank {rank}")
    found: list[tuple[str, int, int]] = []
    axis = 0
    for entry in range(entries):
        if entry == ellipsis:
            found += [("whole", entry, axis + i) for i in range(skipped)]
            axis += skipped
        elif entry in new:
            found.append(("new", entry, -1))
        else:
            found.append(("index", entry, axis))
            axis += 1
    found += [("whole", -1, rest) for rest in range(axis, rank)]
    return found


def _indexed(rank: int, entries: int, masks: Mapping[str, int]) -> list[tuple[int, int, str]]:
    layout = _layout(rank, entries, masks)
    return [(entry, axis, kind) for kind, entry, axis in layout if kind == "index"]


def _new_axes(rank: int, entries: int, masks: Mapping[str, int]) -> list[int]:
    """Returns the places of new axes in the result."""
    places: list[int] = []
    place = 0
    for kind, entry, _ in _layout(rank, entries, masks):
        if kind == "index" and masks["ShrinkAxis"] >> entry & 1:
            continue
        if kind == "new":
            places.append(place)
        place += 1
    return places


def _picked(c: SubgraphConversion, vector: str, entries: Sequence[int], count: int) -> str:
    if list(entries) == list(range(count)):
        return vector
    return c.to.node("Gather", [vector, c.longs(entries)], axis=0)


def _masked(
    c: SubgraphConversion, vector: str, masked: np.ndarray, steps: np.ndarray, end: int
) -> str:
    """Returns starts or ends that reach to where a mask says "from the first, to the last"."""
    if not masked.any():
        return vector
    far = np.where((steps > 0) == bool(end), _FAR, -_FAR if end else 0)
    return c.to.node("Where", [c.to.constant(masked), c.longs(far), vector])


SLICES_ROWS: Mapping[str, Row] = {
    "SLICE": slices,
    "STRIDED_SLICE": strided_slice,
}


# ---- Blocks of an image that become channels or batches, and back


def blocks(op_type: str) -> Row:
    """Returns the row of DEPTH_TO_SPACE and SPACE_TO_DEPTH: blocks lie row, column, channel."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        x = channels_first(c, c.real(op.inputs[0]), 4)
        size = int(op.option("BlockSize"))
        result = c.to.node(op_type, [x], label=c.label(op), blocksize=size)
        c.put(op, channels_last(c, result, 4))

    return convert


def batch_to_space(c: SubgraphConversion, op: Op) -> None:
    """BATCH_TO_SPACE_ND (tensor, block, crops): reshape, transpose, reshape, crop."""
    block = c.numbers(op, 1)
    crops = np.asarray(c.numbers(op, 2)).reshape(-1, 2)
    batch, *extents = c.shape(op.inputs[0])
    count, spatial = len(block), extents[: len(block)]
    rest = extents[count:]
    need_known((batch, *extents))
    outer = batch // int(np.prod(block))
    x = c.to.node("Reshape", [c.real(op.inputs[0]), c.longs([*block, outer, *spatial, *rest])])
    perm = [count]
    for axis in range(count):
        perm += [count + 1 + axis, axis]
    perm += range(2 * count + 1, 2 * count + 1 + len(rest))
    x = c.to.node("Transpose", [x], perm=perm)
    whole = [s * b for s, b in zip(spatial, block, strict=True)]
    x = c.to.node("Reshape", [x, c.longs([outer, *whole, *rest])], label=c.label(op))
    ends = [w - int(e) for w, e in zip(whole, crops[:, 1], strict=True)]
    operands = [x, c.longs(crops[:, 0]), c.longs(ends), c.longs(range(1, count + 1))]
    c.put(op, c.to.node("Slice", operands, label=c.label(op)))


def space_to_batch(c: SubgraphConversion, op: Op) -> None:
    """SPACE_TO_BATCH_ND (tensor, block, pads): pad, reshape, transpose, reshape."""
    block = c.numbers(op, 1)
    pads = np.asarray(c.numbers(op, 2)).reshape(-1, 2)
    batch, *extents = c.shape(op.inputs[0])
    count, rest = len(block), extents[len(block) :]
    need_known((batch, *extents))
    zeros = np.zeros(len(rest), np.int64)
    amounts = np.concatenate([[0], pads[:, 0], zeros, [0], pads[:, 1], zeros]).astype(np.int64)
    x = c.to.node("Pad", [c.real(op.inputs[0]), c.to.constant(amounts)], label=c.label(op))
    padded = [e + int(p.sum()) for e, p in zip(extents, pads, strict=False)]
    shape = [batch]
    for extent, size in zip(padded, block, strict=True):
        shape += [extent // size, size]
    x = c.to.node("Reshape", [x, c.longs([*shape, *rest])])
    perm = [2 * axis + 2 for axis in range(count)] + [0]
    perm += [2 * axis + 1 for axis in range(count)]
    perm += range(2 * count + 1, 2 * count + 1 + len(rest))
    x = c.to.node("Transpose", [x], perm=perm)
    inner = [extent // size for extent, size in zip(padded, block, strict=True)]
    target = [batch * int(np.prod(block)), *inner, *rest]
    c.put(op, c.to.node("Reshape", [x, c.longs(target)], label=c.label(op)))


def need_known(extents: Sequence[int]) -> None:
    """Refuses open extents.

    Raises:
        UnknownForm: One is open.
    """
    if -1 in extents:
        raise UnknownForm("its tensor's extents are open")


BLOCKS_ROWS: Mapping[str, Row] = {
    **{row.tflite: blocks(row.onnx) for row in of_families(Family.BLOCKS)},
    "BATCH_TO_SPACE_ND": batch_to_space,
    "SPACE_TO_BATCH_ND": space_to_batch,
}


# ---- What goes by indices: gathers, scatters, the largest, and shapes as numbers -----------------


def gather(c: SubgraphConversion, op: Op) -> None:
    """GATHER along one axis; per batch where the first axes of both operands are the same."""
    x, places = c.real(op.inputs[0]), c.long(op, 1)
    axis, batches = int(op.option("Axis")), int(op.option("BatchDims"))
    if batches == 0:
        c.put(op, c.to.node("Gather", [x, places], label=c.label(op), axis=axis))
        return
    rank, listed = c.rank(op.inputs[0]), c.rank(op.inputs[1])
    batches += listed if batches < 0 else 0
    axis += rank if axis < 0 else 0
    if not 0 < batches <= min(axis, listed) or axis >= rank:
        raise UnknownForm(f"it gathers along axis {axis}, {batches} axes of batches")
    if axis > batches:  # GatherND wants the gathered axis first, and leaves the places there
        between = list(range(batches, axis))
        perm = [*range(batches), axis, *between, *range(axis + 1, rank)]
        x = c.to.node("Transpose", [x], perm=perm)
    rows = c.to.node("Unsqueeze", [places, c.longs([listed])])
    found = c.to.node("GatherND", [x, rows], label=c.label(op), batch_dims=batches)
    if axis > batches:
        middle = list(range(listed, listed + axis - batches))
        rest = range(listed + axis - batches, listed + rank - batches - 1)
        perm = [*range(batches), *middle, *range(batches, listed), *rest]
        found = c.to.node("Transpose", [found], perm=perm)
    c.put(op, found)


def gather_nd(c: SubgraphConversion, op: Op) -> None:
    """GATHER_ND."""
    operands = [c.real(op.inputs[0]), c.long(op, 1)]
    c.put(op, c.to.node("GatherND", operands, label=c.label(op)))


def scatter_nd(c: SubgraphConversion, op: Op) -> None:
    """SCATTER_ND (indices, updates, shape): sums into zeros."""
    # TFLite adds updates of one place up, ONNX's default lets the last one win.
    zero = c.to.constant(np.zeros((), c.dtype(c.tensor(op.outputs[0])).numpy))
    base = c.to.node("Expand", [zero, c.long(op, 2)])
    operands = [base, c.long(op, 0), c.real(op.inputs[1])]
    c.put(op, c.to.node("ScatterND", operands, label=c.label(op), reduction="add"))


def top_k(c: SubgraphConversion, op: Op) -> None:
    """TOPK_V2 along the last axis."""
    count = c.to.node("Reshape", [c.long(op, 1), c.longs([1])])
    values, index = c.to.nodes("TopK", [c.real(op.inputs[0]), count], 2, label=c.label(op), axis=-1)
    c.put(op, values)
    c.put_stored(op, c.cast(index, c.dtype(c.tensor(op.outputs[1]))), 1)
    # Readers that want 64 bits take these, and not a Cast to 32 and back.
    c.wide_names[op.outputs[1]] = index


def one_hot(c: SubgraphConversion, op: Op) -> None:
    """ONE_HOT (indices, depth, on, off); a negative index is none: ONNX counts from the end."""
    on, off = (c.to.node("Reshape", [c.real(op.inputs[i]), c.longs([1])]) for i in (2, 3))
    index, depth = c.long(op, 0), c.long(op, 1)
    negative = c.to.node("Less", [index, c.to.constant(np.int64(0))])
    # An index of ``depth`` is beyond the range, which ONNX makes off as well.
    index = c.to.node("Where", [negative, depth, index])
    operands = [index, depth, c.to.node("Concat", [off, on], axis=0)]
    c.put(op, c.to.node("OneHot", operands, label=c.label(op), axis=int(op.option("Axis", -1))))


def where(c: SubgraphConversion, op: Op) -> None:
    """WHERE: the positions of what is not zero, a row each."""
    found = c.to.node("NonZero", [c.stored(op.inputs[0])], label=c.label(op))
    c.put_stored(op, c.to.node("Transpose", [found], perm=[1, 0]))


def update_slice(c: SubgraphConversion, op: Op) -> None:
    """DYNAMIC_UPDATE_SLICE (tensor, update, starts): starts are clamped so that it fits."""
    x, update = c.real(op.inputs[0]), c.real(op.inputs[1])
    extents, sizes = c.shape(op.inputs[0]), c.shape(op.inputs[1])
    need_known((*extents, *sizes))
    starts = c.to.node(
        "Min",
        [c.long(op, 2), c.longs([e - s for e, s in zip(extents, sizes, strict=True)])],
    )
    starts = c.to.node("Max", [starts, c.to.constant(np.zeros(len(sizes), np.int64))])
    if int(np.prod(sizes, dtype=object)) * len(sizes) > _LISTED:
        raise UnknownForm("it updates more than a million elements")
    grid = np.stack(np.meshgrid(*(np.arange(s) for s in sizes), indexing="ij"), axis=-1)
    places = c.to.node("Add", [c.to.constant(grid.astype(np.int64)), starts])
    c.put(op, c.to.node("ScatterND", [x, places, update], label=c.label(op)))


def shape(c: SubgraphConversion, op: Op) -> None:
    """SHAPE."""
    found = c.to.node("Shape", [c.stored(op.inputs[0])], label=c.label(op))
    kind = c.dtype(c.tensor(op.outputs[0]))
    c.put_stored(op, found if kind is DType.INT64 else c.cast(found, kind))


def rank(c: SubgraphConversion, op: Op) -> None:
    """RANK, which is known."""
    c.put_stored(op, c.to.constant(np.asarray(c.rank(op.inputs[0]), np.int32)))


def number_range(c: SubgraphConversion, op: Op) -> None:
    """RANGE (start, limit, delta); of constant floats TFLite's count, which it takes in float32."""
    given = [c.array(i) for i in op.inputs]
    if all(array is not None and array.dtype == np.float32 for array in given):
        start, limit, delta = (array.reshape(()) for array in given if array is not None)
        with np.errstate(all="ignore"):
            count = np.ceil(np.abs((limit - start) / delta))
        if count < _LISTED:
            steps = np.full(int(count), delta, np.float32)
            steps[:1] = start
            numbers = np.add.accumulate(steps, dtype=np.float32)
            c.put_stored(op, c.to.constant(numbers))
            return
    scalars = [c.to.node("Reshape", [c.stored(i), c.longs([])]) for i in op.inputs]
    c.put_stored(op, c.to.node("Range", scalars, label=c.label(op)))


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
    "DYNAMIC_UPDATE_SLICE": update_slice,
    "GATHER": gather,
    "GATHER_ND": gather_nd,
    "ONE_HOT": one_hot,
    "RANGE": number_range,
    "RANK": rank,
    "SCATTER_ND": scatter_nd,
    "SHAPE": shape,
    "TOPK_V2": top_k,
    "WHERE": where,
}
