"""Data-movement operators: the plain Relax operator, on floats and on stored integers alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import call_attributes
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import quantize
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.types import Shape
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    PadAttrs,
    PoolAttrs,
    ReshapeAttrs,
    ResizeAttrs,
    SliceAttrs,
    SplitAttrs,
)
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    EXPAND,
    FLATTEN,
    IDENTITY,
    RESHAPE,
    SPACE_TO_DEPTH,
    SQUEEZE,
    STEPS,
    TILE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.pooling import MAX_POOL
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.resize import RESIZE, moves, sizes
from qdqbridge.core.ops.selection import GATHER, PAD, SLICE, SPLIT, within
from qdqbridge.core.ops.shapes import known
from qdqbridge.core.ops.table import MOVED_ALIKE, OPERATORS
from qdqbridge.core.ops.unary import CLIP
from qdqbridge.tvm.qnn.emit.accumulate import pool, reduction, window_pads
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, storage, unsupported
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.ranges import FAR, are_ordered, open_bounds

Emit = Callable[[FunctionEmitter, Node, Expr], Any]
_BEYOND = {"reflect": 1, "wrap": 0}
"""How many elements more than it adds on a side an axis has to have, by the mode of a Pad."""


def _reshape(emitter: FunctionEmitter, node: Node, attributes: ReshapeAttrs, x: Expr) -> Expr:
    if attributes.shape is None:
        return emitter.op.reshape(x, emitter.run_time_shape(node, x))
    have = emitter.extents(x)
    keep = not attributes.allow_zero
    target = [have[i] if dim == 0 and keep else dim for i, dim in enumerate(attributes.shape)]
    if _misread(have, target):
        return emitter.op.zeros(target, emitter.dtype(x))
    return emitter.op.reshape(x, emitter.rest_of(have, target))


def _misread(have: Sequence[Any], target: Sequence[Any]) -> bool:
    """True where a host would put the operand's extent in the place of a 0: no element is left."""
    if not all(isinstance(extent, int) and extent >= 0 for extent in target):
        return False
    own = [*have, *[None] * len(target)]
    return any(
        extent == 0 and not (isinstance(other, int) and other == 0)
        for extent, other in zip(target, own, strict=False)
    )


def _flatten(emitter: FunctionEmitter, node: Node, attributes: AxisAttrs, x: Expr) -> Expr:
    have, axis = emitter.extents(x), attributes.axis
    lead = int(np.prod(have[:axis])) if all(isinstance(d, int) for d in have[:axis]) else None
    tail = int(np.prod(have[axis:])) if all(isinstance(d, int) for d in have[axis:]) else None
    if 0 in (lead, tail) and None in (lead, tail):
        raise unsupported(node, "its extents beside one of 0 are symbolic")
    if lead is not None and not (lead == 0 and tail):  # of (0, -1) nobody could tell the -1
        return emitter.op.reshape(x, (lead, -1))
    if tail is not None:
        return emitter.op.reshape(x, (-1, tail))
    raise unsupported(node, "extents on both sides of the axis are symbolic")


def _slice(emitter: FunctionEmitter, node: Node, attributes: SliceAttrs, x: Expr) -> Expr:
    del node
    have = emitter.extents(x)
    begins: list[Any] = []
    ends: list[Any] = []
    for start, end, axis, step in zip(
        attributes.starts, attributes.ends, attributes.axes, attributes.steps, strict=True
    ):
        extent = have[axis]
        if isinstance(extent, int):
            begin, stop, _ = slice(start, end, step).indices(extent)
            begin = max(begin, 0)  # backwards from before the first element is from the first
            if step < 0 and stop < 0:
                stop = -extent - 1
            elif stop < begin if step > 0 else begin < stop:
                stop = begin
        else:
            begin, stop = _bounds(emitter, extent, start, end, step)
        begins.append(begin)
        ends.append(stop)
    return emitter.op.strided_slice(
        x, axes=list(attributes.axes), begin=begins, end=ends, strides=list(attributes.steps)
    )


def _bounds(
    emitter: FunctionEmitter, extent: Any, start: int, end: int, step: int
) -> tuple[Any, Any]:
    """Returns the bounds along an open axis, of which nothing may be left.

    Hosts subtract one bound from the other, so that the one that counts from the other side of the
    axis must not pass it.
    """
    if step < 0 and start < -1 and end < 0:  # from the first element on where there is none
        stop = max(end, -FAR)
        return emitter.larger_bound(extent, max(start, stop), 0), stop
    begin, stop = open_bounds(start, end, step)
    if are_ordered(begin, stop) or abs(stop) == FAR or (step > 0 and begin == 0):
        return begin, stop
    if step > 0:
        return begin, emitter.larger_bound(extent, stop, begin)
    return emitter.larger_bound(extent, begin, stop), stop


def _gather(emitter: FunctionEmitter, node: Node, attributes: AxisAttrs, x: Expr) -> Expr:
    indices = node.operand(1)
    extent = emitter.extents(x)[attributes.axis]
    if indices.constant is not None and isinstance(extent, int):
        array = indices.constant.numpy().astype(np.int64)
        if _reach(array) > extent:
            raise unsupported(node, f"it has an index beyond its {extent} elements")
        array = np.where(array < 0, array + extent, array)
        # Hosts take with a vector of indices; the axis of one index is taken away behind it.
        if array.ndim == 0:
            picked = emitter.emit(
                _taken(emitter, x, emitter.number(array.reshape(1)), attributes.axis)
            )
            return emitter.op.squeeze(picked, [attributes.axis])
        return _taken(emitter, x, emitter.number(array), attributes.axis)
    if indices.constant is not None:
        array = indices.constant.numpy().astype(np.int64)
        emitter.at_least(extent, _reach(array))
    index = emitter.value(indices)
    if not _are_within(indices, extent):
        emitter.need_indices(index, x, attributes.axis)
    length = emitter.run_time_extent(x, attributes.axis, emitter.dtype(index))
    negative = emitter.emit(
        emitter.op.less(index, emitter.number(np.zeros((), emitter.dtype(index))))
    )
    wrapped = emitter.emit(emitter.op.add(index, length))
    index = emitter.emit(emitter.op.where(negative, wrapped, index))
    return _taken(emitter, x, index, attributes.axis)


_REORDERED = (RESHAPE, FLATTEN, SQUEEZE, UNSQUEEZE, TRANSPOSE, CAST, SLICE)


def _reach(indices: NDArray[Any]) -> int:
    """Returns how many elements an axis needs to have for its indices."""
    wide = indices.astype(np.int64)
    return int(max(wide.max(initial=-1) + 1, -wide.min(initial=0)))


def _are_within(indices: Value, extent: Any) -> bool:
    """Returns whether an axis has all elements that indices name, by what computes these."""
    if indices.constant is not None:
        return not isinstance(extent, int) or _reach(indices.constant.numpy()) <= extent
    node = indices.producer
    if node is None or not isinstance(extent, int):
        return False
    if node.op in _REORDERED:
        return indices.type.dtype.is_integer and _are_within(node.operand(0), extent)
    clip = CLIP.of(node)
    # Bounds of the file's own spare the run its check.
    if clip is not None and clip.low is not None and clip.high is not None:
        return -extent <= clip.low and clip.high < extent
    if node.op.name in ("ArgMax", "ArgMin"):
        longest = known(node.operand(0), node.attributes.stated().get("axis", 0))
        return longest is not None and longest <= extent
    return False


def _taken(emitter: FunctionEmitter, x: Expr, index: Expr, axis: int) -> Expr:
    """Returns elements; an index out of bounds, which ONNX forbids, reads no foreign memory."""
    return emitter.op.take(x, index, axis=axis, mode="clip")


def _emit_split(
    emitter: FunctionEmitter, node: Node, attributes: SplitAttrs, x: Expr
) -> list[Expr]:
    del node
    sizes = attributes.sizes
    if len(sizes) == 1:
        return [x]
    # Hosts are given where to cut, ONNX how much each part has.
    cuts = [int(c) for c in np.cumsum(sizes)[:-1]]
    parts = emitter.emit(emitter.op.split(x, cuts, axis=attributes.axis))
    return [emitter.item(parts, i) for i in range(len(sizes))]


def _emit_pad(emitter: FunctionEmitter, node: Node, attributes: PadAttrs, x: Expr) -> Expr:
    rank = len(attributes.pads) // 2
    given = list(zip(attributes.pads[:rank], attributes.pads[rank:], strict=True))
    given = [
        within(*pair, extent) if isinstance(extent, int) else pair
        for pair, extent in zip(given, emitter.extents(x), strict=True)
    ]
    x = _cropped(emitter, x, given)
    pads = [(max(begin, 0), max(end, 0)) for begin, end in given]
    for axis, extent in enumerate(emitter.extents(x)):
        least = max(pads[axis])
        least += _BEYOND.get(attributes.mode, -least)
        if not isinstance(extent, int):
            emitter.at_least(extent, least)
        elif 0 < extent < least:  # TVM's operator goes around once only
            mode: Any = attributes.mode
            index = np.pad(np.arange(extent, dtype=np.int64), pads[axis], mode=mode)
            x = emitter.emit(_taken(emitter, x, emitter.number(index), axis))
            pads[axis] = (0, 0)
    widths = [width for pair in pads for width in pair]
    value: float = attributes.value
    quant = node.output.quant  # a clamp before it does not reach what is put around
    if quant is not None:
        value = float(quantize(np.array([attributes.value], np.float32), quant.params)[0])
    return emitter.op.nn.pad(x, widths, call_attributes(attributes)["pad_mode"], value)


def _cropped(emitter: FunctionEmitter, x: Expr, pads: Sequence[tuple[int, int]]) -> Expr:
    """Negative pads cut elements off, before the others add any; an open axis must have them."""
    have = emitter.extents(x)
    axes = [axis for axis, pair in enumerate(pads) if min(pair) < 0]
    if not axes:
        return x
    begins = [max(-pads[axis][0], 0) for axis in axes]
    ends: list[Any] = []
    for axis, begin in zip(axes, begins, strict=True):
        extent, cut = have[axis], max(-pads[axis][1], 0)
        if isinstance(extent, int):
            ends.append(extent - cut)
        else:
            emitter.at_least(extent, begin + cut)
            ends.append(-cut or FAR)
    return emitter.emit(emitter.op.strided_slice(x, axes=axes, begin=begins, end=ends))


def _expand(emitter: FunctionEmitter, node: Node, attributes: ExpandAttrs, x: Expr) -> Expr:
    target = attributes.shape
    if target is None:
        return emitter.broadcast(x, emitter.run_time_shape(node, x))
    have = emitter.extents(x)
    rank = max(len(have), len(target))
    own = [1] * (rank - len(have)) + have
    wanted = [1] * (rank - len(target)) + list(target)
    return emitter.broadcast(x, [o if w == 1 else w for o, w in zip(own, wanted, strict=True)])


def _emit_blocks(
    emitter: FunctionEmitter, node: Node, attributes: DepthSpaceAttrs, x: Expr
) -> Expr:
    steps, have, size = (
        STEPS[node.op.name, attributes.mode],
        emitter.extents(x),
        attributes.block_size,
    )
    steps = steps.channels_last() if node in emitter.channels_last else steps
    split = emitter.emit(emitter.reshape(x, steps.between(have, size)))
    permuted = emitter.emit(emitter.op.permute_dims(split, list(steps.perm)))
    return emitter.reshape(permuted, steps.result(have, size))


def _max_pool(emitter: FunctionEmitter, node: Node, attributes: PoolAttrs, x: Expr) -> Expr:
    return pool(emitter, node, x, window_pads(emitter, node, attributes, emitter.extents(x)))


def _emit_host_operator(emitter: FunctionEmitter, node: Node, x: Expr) -> Expr:
    """The host's operator, which takes the operands and then the attributes by name."""
    others = [emitter.value(value) for value in node.inputs[1:] if value is not None]
    return emitter.function(node.op.tvm)(x, *others, **call_attributes(node.attributes))


def _emit_renamed(name: str) -> Emit:
    """A host's operator of another name, which takes the one attribute behind the operand."""

    def emit(emitter: FunctionEmitter, node: Node, x: Expr) -> Expr:
        return emitter.function(name)(x, *call_attributes(node.attributes).values())

    return emit


def _emit_identity(emitter: FunctionEmitter, node: Node, x: Expr) -> Expr:
    del emitter, node
    return x


DATA_MOVEMENT: Mapping[Operator, Emit] = {
    **{row: reduction for row in OPERATORS if row.flow is Flow.MOVE and reduces(row)},
    **dict.fromkeys(MOVED_ALIKE, _emit_host_operator),
    **dict[Operator, Emit](
        (
            at(RESHAPE, _reshape),
            at(FLATTEN, _flatten),
            at(SLICE, _slice),
            at(GATHER, _gather),
            at(SPLIT, _emit_split),
            at(PAD, _emit_pad),
            at(EXPAND, _expand),
            at(DEPTH_TO_SPACE, _emit_blocks),
            at(SPACE_TO_DEPTH, _emit_blocks),
            at(MAX_POOL, _max_pool),
        )
    ),
    IDENTITY: _emit_identity,
    SQUEEZE: _emit_renamed("squeeze"),
    TILE: _emit_renamed("tile"),
    TRANSPOSE: _emit_renamed("permute_dims"),
    UNSQUEEZE: _emit_renamed("expand_dims"),
}


# ---- Resize: nearest copies elements, the other methods interpolate in float32 and round once ----


def emit_resize(emitter: FunctionEmitter, node: Node) -> Expr:
    """Emits a Resize of any rank and mode on quantized values, and of floats."""
    attributes, value, result = node.record(ResizeAttrs), node.operand(0), node.output
    if value.quant is None or result.quant is None:
        return _floating(emitter, node, attributes)
    axes = _resized(emitter, node, attributes, value.type.shape, result.type.shape)
    attrs = _emit_resize_attrs(node, attributes, axes)
    rank = len(axes) if axes else 0
    if rank:
        attrs["layout"] = emitter.layout(node, rank + 2)
    params = value.quant.params, result.quant.params
    attrs["out_dtype"] = storage(params[1])
    args = [emitter.value(value)]
    for each in params:
        args += [emitter.scale(each), emitter.zero_point(each)]
    name = f"resize{rank}d" if rank else "resize"
    resized = emitter.qnn(name, args, attrs)
    return resized if moves(attributes) else emitter.clamp(resized, result.quant.params)


def _resized(
    emitter: FunctionEmitter, node: Node, attributes: ResizeAttrs, shape: Shape, result: Shape
) -> list[int]:
    """Returns the 1 to 3 axes besides batch and channels where only they are resized."""
    if shape is None or result is None or not 3 <= len(shape) <= 5:
        return []
    rank = len(shape)
    # TVM's own resizes leave batch and channels as they are.
    others = (0, emitter.channel(node, rank))
    kept = all(_kept(attributes, shape, result, axis) for axis in others)
    factors = attributes.scales is None or all(attributes.scales[axis] == 1.0 for axis in others)
    return emitter.spatial(node, rank) if kept and factors else []


def _kept(
    attributes: ResizeAttrs, shape: tuple[int | str, ...], result: tuple[int | str, ...], axis: int
) -> bool:
    """True where an axis is not resized; shape inference renames a symbolic extent times 1."""
    if attributes.scales is not None:
        return attributes.scales[axis] == 1.0
    return shape[axis] == result[axis]


def _sizes(node: Node, attributes: ResizeAttrs, axes: Sequence[int]) -> list[int]:
    """Returns the extents of some axes; 0 keeps one."""
    before, after = node.operand(0).type.shape, node.output.type.shape
    if before is None or after is None:
        raise unsupported(node, "the rank of its input is unknown")
    computed = sizes(attributes, tuple(d if isinstance(d, int) else 1 for d in before))
    result: list[int] = []
    for axis in axes:
        kept = _kept(attributes, before, after, axis)
        by_scale = 0 if kept else -1 if attributes.sizes is None else computed[axis]
        result.append(computed[axis] if isinstance(before[axis], int) else by_scale)
    return result


def _emit_resize_attrs(node: Node, attributes: ResizeAttrs, axes: list[int]) -> dict[str, Any]:
    axes = axes or list(range(node.operand(0).rank or 0))
    attrs = call_attributes(attributes) | {"size": _sizes(node, attributes, axes)}
    attrs["scales"] = [attributes.scales[axis] for axis in axes] if attributes.scales else []
    half = len(attributes.roi) // 2
    attrs["roi"] = [attributes.roi[start + axis] for start in (0, half) for axis in axes if half]
    unsaid = {"sizes", "antialias"} if half else {"sizes", "antialias", "roi"}
    return {name: value for name, value in attrs.items() if name not in unsaid}


def _floating(emitter: FunctionEmitter, node: Node, attributes: ResizeAttrs) -> Expr:
    """Emits one weighted sum of shifted values per resized axis."""
    value, shape = emitter.real(node.operand(0)), node.operand(0).type.shape
    if attributes.antialias or attributes.coordinate_transformation_mode == "tf_crop_and_resize":
        raise unsupported(node, "TVM resizes floats neither with antialias nor with a crop")
    if shape is None:
        raise unsupported(node, "the rank of its input is unknown")
    extents = _sizes(node, attributes, range(len(shape)))
    if any(size and not isinstance(d, int) for d, size in zip(shape, extents, strict=True)):
        value = _opened(emitter, node, attributes, value)
        quant = node.output.quant
        return value if quant is None else emitter.quantize(value, quant.params)
    own = emitter.dtype(value)
    if not moves(attributes) and "int" in own:
        value = emitter.cast(value, "float32")
    for axis, (length, size) in enumerate(zip(shape, extents, strict=True)):
        if not isinstance(length, int) or length == 0:
            continue
        # An axis that keeps its extent may still be resized, by a scale near 1.
        if not (size == length and _unscaled(attributes, axis)):
            value = _along(emitter, value, axis, _weights(attributes, axis, length, size))
    value = emitter.cast(value, own)
    quant = node.output.quant
    return value if quant is None else emitter.quantize(value, quant.params)


def _opened(emitter: FunctionEmitter, node: Node, attributes: ResizeAttrs, value: Expr) -> Expr:
    """Emits ``qnn.resize``, whose weights are computed when it runs: of floats, or of a copy."""
    dtype = emitter.dtype(value)
    if dtype == "float64":
        raise unsupported(node, "it resizes float64 along an axis of symbolic extent")
    kind = dtype if moves(attributes) and "float" not in dtype else "float32"
    attrs = {**_emit_resize_attrs(node, attributes, []), "out_dtype": kind}
    one, zero = emitter.number(np.ones((), np.float32)), emitter.number(np.zeros((), np.int32))
    resized = emitter.qnn("resize", [emitter.cast(value, kind), one, zero, one, zero], attrs)
    return emitter.cast(resized, dtype)


def _unscaled(attributes: ResizeAttrs, axis: int) -> bool:
    return attributes.scales is None or attributes.scales[axis] == 1.0


def _weights(attributes: ResizeAttrs, axis: int, length: int, size: int) -> NDArray[np.float32]:
    """Returns the matrix (size, length) of an axis: what the operator makes of the identity."""
    scales = None if attributes.scales is None else (attributes.scales[axis], 1.0)
    alone = replace(attributes, scales=scales, sizes=(size, length))
    if attributes.sizes is None:
        alone = replace(alone, sizes=None)
    (matrix,) = RESIZE.compute(alone, (np.eye(length, dtype=np.float32),))
    return matrix


def _along(emitter: FunctionEmitter, x: Expr, axis: int, matrix: NDArray[np.float32]) -> Expr:
    """Returns the product of a sparse matrix with an axis of ``x``."""
    count = int((matrix != 0).sum(axis=1).max(initial=1))
    taps = np.sort(np.argsort(matrix == 0, axis=1, kind="stable")[:, :count], axis=1)
    column = [-1 if i == axis else 1 for i in range(emitter.rank(x))]
    total: Expr = None
    for tap in taps.T:
        weight = np.take_along_axis(matrix, tap[:, None], axis=1)
        index = emitter.number(tap.astype(np.int64))
        term = emitter.emit(emitter.op.take(x, index, axis=axis, mode="clip"))
        if count > 1:
            factor = emitter.number(weight.reshape(column).astype(emitter.dtype(x)))
            term = emitter.emit(emitter.op.multiply(term, factor))
        total = term if total is None else emitter.emit(emitter.op.add(total, term))
    return total
