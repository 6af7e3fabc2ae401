"""Data movers: the plain Relax operator, on floats and on stored integers alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from qdqbridge.graph.graph import Node
from qdqbridge.graph.numerics import quantize
from qdqbridge.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    PadAttrs,
    PoolAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.relax.emit.extents import run_time_broadcast, run_time_extent, run_time_reshape
from qdqbridge.relax.emit.scope import Expr, Scope, number, op, unsupported

Emit = Callable[[Scope, Node, Expr], Any]


def _extents(x: Expr) -> list[Any]:
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in x.ty.shape.values]


def _reshape(scope: Scope, node: Node, x: Expr) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, ReshapeAttrs)
    if attributes.shape is None:
        return op.reshape(x, run_time_reshape(scope, node, x, allow_zero=attributes.allow_zero))
    have = _extents(x)
    keep = not attributes.allow_zero
    target = [have[i] if dim == 0 and keep else dim for i, dim in enumerate(attributes.shape)]
    return op.reshape(x, target)


def _flatten(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    assert isinstance(node.attributes, AxisAttrs)
    have, axis = _extents(x), node.attributes.axis
    lead = int(np.prod(have[:axis])) if all(isinstance(d, int) for d in have[:axis]) else None
    tail = int(np.prod(have[axis:])) if all(isinstance(d, int) for d in have[axis:]) else None
    if lead is not None:
        return op.reshape(x, (lead, -1))
    if tail is not None:
        return op.reshape(x, (-1, tail))
    raise unsupported(node, "extents on both sides of the axis are symbolic")


def _transpose(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    assert isinstance(node.attributes, TransposeAttrs)
    return op.permute_dims(x, list(node.attributes.perm))


def _squeeze(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    assert isinstance(node.attributes, AxesAttrs)
    return op.squeeze(x, list(node.attributes.axes))


def _unsqueeze(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    assert isinstance(node.attributes, AxesAttrs)
    return op.expand_dims(x, list(node.attributes.axes))


def _slice(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    attributes, have = node.attributes, _extents(x)
    assert isinstance(attributes, SliceAttrs)
    begins: list[Any] = []
    ends: list[Any] = []
    for start, end, axis, step in zip(
        attributes.starts, attributes.ends, attributes.axes, attributes.steps, strict=True
    ):
        extent = have[axis]
        if isinstance(extent, int):
            begin, stop, _ = slice(start, end, step).indices(extent)
            if step < 0 and stop < 0:
                stop = -extent - 1
            if step > 0 and stop < begin:
                stop = begin
        else:
            begin, stop = start, min(end, 1 << 31)
        begins.append(begin)
        ends.append(stop)
    return op.strided_slice(
        x, axes=list(attributes.axes), begin=begins, end=ends, strides=list(attributes.steps)
    )


def _gather(scope: Scope, node: Node, x: Expr) -> Expr:
    attributes, indices = node.attributes, node.operand(1)
    assert isinstance(attributes, AxisAttrs)
    extent = _extents(x)[attributes.axis]
    if indices.constant is not None and isinstance(extent, int):
        array = indices.constant.numpy().astype(np.int64)
        array = np.where(array < 0, array + extent, array)
        if array.ndim == 0:
            picked = scope.emit(op.take(x, number(array.reshape(1)), axis=attributes.axis))
            return op.squeeze(picked, [attributes.axis])
        return op.take(x, number(array), axis=attributes.axis)
    index = scope.value(indices)
    length = run_time_extent(scope, x, attributes.axis, str(index.ty.dtype))
    negative = scope.emit(op.less(index, number(np.zeros((), str(index.ty.dtype)))))
    wrapped = scope.emit(op.add(index, length))
    return op.take(x, scope.emit(op.where(negative, wrapped, index)), axis=attributes.axis)


def _split(scope: Scope, node: Node, x: Expr) -> list[Expr]:
    assert isinstance(node.attributes, SplitAttrs)
    sizes = node.attributes.sizes
    if len(sizes) == 1:
        return [x]
    cuts = [int(c) for c in np.cumsum(sizes)[:-1]]
    parts = scope.emit(op.split(x, cuts, axis=node.attributes.axis))
    return [relax.TupleGetItem(parts, i) for i in range(len(sizes))]


def _pad(scope: Scope, node: Node, x: Expr) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, PadAttrs)
    rank = len(attributes.pads) // 2
    x = _cropped(scope, node, x, attributes.pads)
    widths = [max(attributes.pads[j], 0) for i in range(rank) for j in (i, rank + i)]
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    value: float = attributes.value
    quant = node.operand(0).quant
    if quant is not None:
        value = float(quantize(np.array([attributes.value], np.float32), quant.params)[0])
    return op.nn.pad(x, widths, modes[attributes.mode], value)


def _cropped(scope: Scope, node: Node, x: Expr, pads: tuple[int, ...]) -> Expr:
    """Negative pads cut elements off, before the others add any."""
    rank, have = len(pads) // 2, _extents(x)
    axes = [axis for axis in range(rank) if pads[axis] < 0 or pads[rank + axis] < 0]
    if not axes:
        return x
    if not all(isinstance(have[axis], int) for axis in axes):
        raise unsupported(node, "it crops an axis of symbolic extent")
    begins = [max(-pads[axis], 0) for axis in axes]
    ends = [have[axis] + min(pads[rank + axis], 0) for axis in axes]
    return scope.emit(op.strided_slice(x, axes=axes, begin=begins, end=ends))


def _tile(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    assert isinstance(node.attributes, TileAttrs)
    return op.tile(x, list(node.attributes.repeats))


def _expand(scope: Scope, node: Node, x: Expr) -> Expr:
    assert isinstance(node.attributes, ExpandAttrs)
    target = node.attributes.shape
    if target is None:
        return op.broadcast_to(x, run_time_broadcast(scope, node, x))
    have = _extents(x)
    rank = max(len(have), len(target))
    own = [1] * (rank - len(have)) + have
    wanted = [1] * (rank - len(target)) + list(target)
    return op.broadcast_to(x, [o if w == 1 else w for o, w in zip(own, wanted, strict=True)])


def _depth_to_space(scope: Scope, node: Node, x: Expr) -> Expr:
    assert isinstance(node.attributes, DepthSpaceAttrs)
    size, mode = node.attributes.block_size, node.attributes.mode
    n, c, h, w = _extents(x)
    depth = c // (size * size)
    first = (n, size, size, depth, h, w) if mode == "DCR" else (n, depth, size, size, h, w)
    order = [0, 3, 4, 1, 5, 2] if mode == "DCR" else [0, 1, 4, 2, 5, 3]
    split = scope.emit(op.reshape(x, first))
    turned = scope.emit(op.permute_dims(split, order))
    return op.reshape(turned, (n, depth, h * size, w * size))


def _space_to_depth(scope: Scope, node: Node, x: Expr) -> Expr:
    assert isinstance(node.attributes, DepthSpaceAttrs)
    size = node.attributes.block_size
    n, c, h, w = _extents(x)
    split = scope.emit(op.reshape(x, (n, c, h // size, size, w // size, size)))
    turned = scope.emit(op.permute_dims(split, [0, 3, 5, 1, 2, 4]))
    return op.reshape(turned, (n, c * size * size, h // size, w // size))


def _max_pool(scope: Scope, node: Node, x: Expr) -> Expr:
    del scope
    attributes = node.attributes
    assert isinstance(attributes, PoolAttrs)
    rank = len(attributes.kernel_shape)
    pool = (op.nn.max_pool1d, op.nn.max_pool2d, op.nn.max_pool3d)[rank - 1]
    return pool(
        x,
        pool_size=attributes.kernel_shape,
        strides=attributes.strides,
        padding=window_pads(node, attributes, _extents(x)),
        dilation=attributes.dilations,
    )


def window_pads(node: Node, attributes: PoolAttrs, have: list[Any]) -> tuple[int, ...]:
    """Returns pads under which a pool without ``ceil_mode`` has ONNX's windows.

    ONNX drops a last window that would start in the padding behind the data.
    """
    rank = len(attributes.kernel_shape)
    pads = list(attributes.pads)
    if not attributes.ceil_mode:
        return tuple(pads)
    if not all(isinstance(e, int) for e in have[2:]):
        raise unsupported(node, "ceil_mode needs static spatial extents")
    for i in range(rank):
        span = (attributes.kernel_shape[i] - 1) * attributes.dilations[i] + 1
        data, stride = have[2 + i] + pads[i], attributes.strides[i]
        windows = -(-(data + pads[rank + i] - span) // stride) + 1
        if (windows - 1) * stride >= data:
            windows -= 1
        pads[rank + i] = max(0, (windows - 1) * stride + span - data)
    return tuple(pads)


def _reduce(name: str) -> Emit:
    def emit(scope: Scope, node: Node, x: Expr) -> Expr:
        del scope
        attributes, axes, keepdims = node.attributes, list(range(2, len(_extents(x)))), True
        if isinstance(attributes, ReduceAttrs):
            axes, keepdims = list(attributes.axes), attributes.keepdims
        return getattr(op, name)(x, axes, keepdims)

    return emit


MOVERS: dict[str, Emit] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Pad": _pad,
    "Tile": _tile,
    "Expand": _expand,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "MaxPool": _max_pool,
    "GlobalMaxPool": _reduce("max"),
    "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"),
    "Identity": lambda scope, node, x: x,
}
