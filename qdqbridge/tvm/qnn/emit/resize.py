"""Resize: nearest copies elements, the other methods interpolate in float32 and round once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import call_attributes
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import Shape
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import RESIZE, moves, sizes
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, unsupported


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
