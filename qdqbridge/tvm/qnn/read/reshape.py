"""Plain operators that give values another shape, floats and stored integers alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import Shape, TensorType, static_shape
from qdqbridge.core.layout import channels_first, channels_last
from qdqbridge.core.ops import data_movement
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import permuted_shape as permuted
from qdqbridge.core.ops.data_movement import STEPS
from qdqbridge.core.ops.elementwise import CONCAT, WHERE
from qdqbridge.tvm.qnn.origin import layout_of
from qdqbridge.tvm.qnn.read.call import Call, Entry, Result
from qdqbridge.tvm.qnn.read.gather_concat import hinted, moved, type_like
from qdqbridge.tvm.qnn.read.parameters import transposed
from qdqbridge.tvm.qnn.read.reading import Reading, Row
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node


def reshape(reading: Reading, call: Call) -> Value:
    """``reshape(x, newshape)``: as its span writes it where that is the same."""
    if call.args[1:]:
        return _run_time(reading, call)
    data, shape = reading.value(call.args[0]), call.results[0].shape
    provenance = call.provenance
    given = call.stated(ReshapeAttrs)
    if given is not None and resolves(given, data.type.shape, shape):
        return moved(reading, call, "Reshape", given)
    axis = call.stated(AxisAttrs)
    op = "" if provenance is None else provenance.op
    if axis is not None and op == "Flatten" and _flattened(axis, data.type.shape, shape):
        return moved(reading, call, "Flatten", axis)
    # Frontends write a Flatten as a reshape; a module of our own says in its span which of both it
    # was.
    if provenance is None and _flattens(data.type.shape, shape):
        return moved(reading, call, "Flatten", AxisAttrs(1))
    grid = call.stated(DepthSpaceAttrs)
    if grid is not None and provenance is not None:
        found = _depth_space(reading, call, provenance.op, grid)
        if found is not None:
            return found
    attributes = ReshapeAttrs(_onnx_reshape_target(reading, data.type.shape, shape))
    return moved(reading, call, "Reshape", attributes)


def _flattened(given: AxisAttrs, before: Shape, after: Shape) -> bool:
    """True where nothing known says that a Flatten along that axis has another shape."""
    if after is None or len(after) != 2:
        return False
    sides = ((before or ())[: given.axis], (before or ())[given.axis :])
    return before is None or all(
        dim == math.prod(e for e in side if isinstance(e, int))
        for dim, side in zip(after, sides, strict=True)
        if isinstance(dim, int) and all(isinstance(e, int) for e in side)
    )


def _flattens(before: Shape, after: Shape) -> bool:
    """True where a reshape keeps axis 0 and joins all others."""
    if before is None or after is None or len(after) != 2 or len(before) < 3:
        return False
    return before[0] == after[0]


def _run_time(reading: Reading, call: Call) -> Value:
    """A reshape or broadcast to a vector (argument 1) that is computed at run time.

    Behind the vector stands what ONNX itself does to the target of a Reshape: 0 copies an extent,
    -1 takes what is left; and to that of an Expand: 1 keeps an extent.
    """
    target = reading.plain(call.args[1])
    given = call.stated(ReshapeAttrs)
    if given is not None:
        target = _chosen(target)
        target = target if given.allow_zero else _chosen(target)
        return moved(reading, call, "Reshape", given, target)
    expand = call.stated(ExpandAttrs)
    if expand is not None:
        target = _chosen(target)
        node = target.producer
        if node is not None and node.op is CONCAT and provenance_of_node(node) == call.provenance:
            target = node.operand(1)
        return moved(reading, call, "Expand", expand, target)
    if call.op == "reshape":
        return moved(reading, call, "Reshape", ReshapeAttrs(None, allow_zero=True), target)
    return moved(reading, call, "Expand", ExpandAttrs(None), target)


def _chosen(value: Value) -> Value:
    """Returns ``b`` where ``value`` is ``where(condition, a, b)``."""
    node = value.producer
    return node.operand(2) if node is not None and node.op is WHERE else value


def _onnx_reshape_target(reading: Reading, before: Shape, after: Shape) -> tuple[int, ...]:
    """Returns ONNX's form of a shape: 0 copies an unknown extent, one other is -1."""
    if after is None:
        raise reading.refused("the rank of its result is unknown")
    source = before or ()
    target = tuple(
        dim if isinstance(dim, int) else 0 if i < len(source) and source[i] == dim else -1
        for i, dim in enumerate(after)
    )
    if target.count(-1) > 1:
        raise reading.refused(f"several extents of its result are unknown: {after}")
    return target


def resolves(given: ReshapeAttrs, before: Shape, after: Shape) -> bool:
    """True where a form cannot mean another shape than ``after``."""
    if given.shape is None or after is None or len(given.shape) != len(after):
        return False
    for index, dim in enumerate(given.shape):
        if dim == 0 and not given.allow_zero:
            if before is None or index >= len(before) or before[index] != after[index]:
                return False
        elif dim != -1 and dim != after[index]:
            return False
    return given.shape.count(-1) <= 1


def _depth_space(
    reading: Reading, call: Call, name: str, attributes: DepthSpaceAttrs
) -> Value | None:
    """Returns DepthToSpace or SpaceToDepth for a reshape of a transposed reshape."""
    turn = reading.value(call.args[0]).producer
    split = None if turn is None else turn.operand(0).producer
    if turn is None or split is None or split.op is not data_movement.RESHAPE:
        return None
    if not isinstance(turn.attributes, TransposeAttrs):
        return None
    data, shape = split.operand(0), call.result.shape
    last = call.provenance is not None and layout_of(call.provenance) is not None
    steps, have = STEPS.get((name, attributes.mode)), static_shape(data.type.shape)
    if steps is None or have is None or len(have) != 4:
        return None
    steps, size = steps.channels_last() if last else steps, attributes.block_size
    wanted = steps.perm, steps.between(have, size), steps.result(have, size)
    if (turn.attributes.perm, split.output.type.shape, shape) != wanted:
        return None
    if not last:
        value = reading.node(name, attributes, [data], type_like(data, call), call)
        return hinted(reading, call, value)
    first = transposed(reading, data, channels_first(4))
    inner = replace(call, results=(Result(call.result.dtype, permuted(shape, channels_first(4))),))
    value = reading.node(name, attributes, [first], type_like(first, inner), inner)
    turned = TransposeAttrs(channels_last(4))
    return reading.node("Transpose", turned, [value], type_like(data, call))


def transpose(reading: Reading, call: Call) -> Value:
    """``transpose(x, axes)``; no axes reverse them."""
    axes, known = call.get("axes"), reading.value(call.args[0]).rank
    rank = len(axes or ()) if known is None else known
    perm = tuple(range(rank))[::-1] if not axes else tuple(a % rank for a in call.ints("axes"))
    return moved(reading, call, "Transpose", TransposeAttrs(perm))


def squeeze(reading: Reading, call: Call) -> Entry:
    """``squeeze(x, axis)``; no axis drops every extent of 1."""
    data = reading.value(call.args[0])
    rank, shape = data.rank or 0, data.type.shape or ()
    given = call.get("axis")
    axes = [i for i, dim in enumerate(shape) if dim == 1] if given is None else call.ints("axis")
    picked = _picked(reading, call, data)
    if picked is not None:
        return picked
    return moved(reading, call, "Squeeze", AxesAttrs(tuple(sorted(a % rank for a in axes))))


def _picked(reading: Reading, call: Call, data: Value) -> Value | None:
    """Returns the Gather of one element, whose axis is dropped after it."""
    node, provenance = data.producer, call.provenance
    if node is None or provenance is None or not provenance.op == node.op.name == "Gather":
        return None
    index = node.operand(1)
    if index.constant is None or index.constant.shape != (1,):
        return None
    scalar = reading.constant(index.constant.numpy().reshape(()), index.name)
    operands = [node.operand(0), scalar]
    value = reading.node(node.op, node.attributes, operands, type_like(data, call), call)
    return hinted(reading, call, value)


def expand_dims(reading: Reading, call: Call) -> Value:
    """``expand_dims(x, axis, num_newaxis)``; Relax's axis is a list."""
    rank = len(call.result.shape or ())
    axes = call.ints("axis")
    if "num_newaxis" in call.attrs:
        first = axes[0] if axes[0] >= 0 else axes[0] + rank - call.integer("num_newaxis") + 1
        axes = tuple(range(first, first + call.integer("num_newaxis")))
    data, shape = reading.value(call.args[0]), static_shape(call.results[0].shape)
    if data.constant is not None and data.quant is None and shape is not None:
        if math.prod(shape) != data.constant.size:
            raise reading.refused(f"{list(data.constant.shape)} does not become {list(shape)}")
        grown = data.constant.map(lambda array: array.reshape(shape), shape=shape)
        return Value(TensorType(grown.dtype, shape), data.name, constant=grown)
    return moved(reading, call, "Unsqueeze", AxesAttrs(tuple(sorted(a % rank for a in axes))))


def broadcast_to(reading: Reading, call: Call) -> Value:
    """``broadcast_to(x, shape)``: an extent that x has already is written 1."""
    if call.args[1:]:
        return _run_time(reading, call)
    data, shape = reading.value(call.args[0]), call.results[0].shape
    own = data.type.shape
    if shape is None or own is None:
        raise reading.refused("the rank of its result is unknown")
    given = call.stated(ExpandAttrs)
    if given is not None and given.shape is not None and _expands(given.shape, own, shape):
        return moved(reading, call, "Expand", given)
    padded = (1,) * (len(shape) - len(own)) + own
    target = tuple(
        1 if dim == have else dim if isinstance(dim, int) else -1
        for dim, have in zip(shape, padded, strict=True)
    )
    if -1 in target:
        raise reading.refused("it broadcasts to an extent that is known at run time only")
    return moved(reading, call, "Expand", ExpandAttrs(target))


def _expands(target: tuple[int, ...], own: tuple[Any, ...], shape: tuple[Any, ...]) -> bool:
    rank = max(len(target), len(own))
    wanted = (1,) * (rank - len(target)) + target
    have = (1,) * (rank - len(own)) + own
    return shape == tuple(h if w == 1 else w for h, w in zip(have, wanted, strict=True))


RESHAPE: dict[str, Row] = {
    "reshape": reshape,
    "transpose": transpose,
    "squeeze": squeeze,
    "expand_dims": expand_dims,
    "broadcast_to": broadcast_to,
}
"""One row per plain operator that gives values another shape, by Relay's name."""
