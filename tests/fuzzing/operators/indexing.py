"""What reads or writes at indices, and what counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzzing.graph_grower import Draft, Grower, Grown
from tests.fuzzing.operators.axes import axis_of


def indices_into(g: Grower, extent: int, shape: Sequence[int]) -> Grown:
    """Returns positions on an axis, some counted from its end."""
    if not extent:
        shape = [0 for _ in shape]
    low = -extent if g.b.opset >= 11 else 0
    array = g.numbers.integers(low, max(extent, 1), shape)
    array = array.astype(g.pick("int64", "int64", "int32"))
    return g.input_of(array) if g.chance(0.25) else g.constant(array)


def gather(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3, 4))
    axis = axis_of(g, x.rank)
    shape = g.pick((), (1,), (2,), (3,), (2, 2), (0,))
    return Draft("Gather", [x, indices_into(g, x.shape[axis], shape)], {"axis": axis})


def gather_elements(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3))
    if not g.has("GatherElements"):
        return None
    axis = axis_of(g, x.rank)
    shape = [
        g.rng.randint(0, e + 1) if i == axis % x.rank else g.rng.randint(1, max(e, 1))
        for i, e in enumerate(x.shape)
    ]
    return Draft("GatherElements", [x, indices_into(g, x.shape[axis], shape)], {"axis": axis})


def _points(g: Grower, extents: Sequence[int], shape: Sequence[int]) -> Grown:
    columns = [g.numbers.integers(-e if g.b.opset >= 11 else 0, max(e, 1), shape) for e in extents]
    array = np.stack(columns, axis=-1).astype(np.int64)
    return g.input_of(array) if g.chance(0.25) else g.constant(array)


def gather_nd(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3, 4))
    if not g.has("GatherND"):
        return None
    batch = g.rng.randrange(x.rank) if g.b.opset >= 12 and g.chance(0.4) else 0
    depth = g.rng.randint(1, x.rank - batch)
    shape = (*x.shape[:batch], *g.pick((), (1,), (2,), (3,), (2, 2)))
    points = _points(g, x.shape[batch : batch + depth], shape)
    return Draft("GatherND", [x, points], {"batch_dims": batch} if batch else {})


def scatter(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3))
    kind = g.pick("ScatterElements", "ScatterND", "Scatter")
    if not g.has(kind):
        return None
    attributes: dict[str, Any] = {}
    reductions = ["none"]
    if kind != "Scatter" and g.b.opset >= 16:
        reductions += ["add", "mul"]
    if kind != "Scatter" and g.b.opset >= 18:
        reductions += ["max", "min"]
    reduction = g.pick(*reductions)
    if reduction != "none":
        attributes["reduction"] = reduction
    if kind == "ScatterND":
        depth = g.rng.randint(1, x.rank)
        count = math.prod(x.shape[:depth])
        rows = g.rng.randint(0, min(3, count))
        # Without a reduction equal places are undefined.
        flat = g.numbers.choice(max(count, 1), rows, replace=False)
        if not count:
            flat = flat[:0]
        at = np.stack(np.unravel_index(flat, [max(e, 1) for e in x.shape[:depth]]), axis=-1)
        points = g.constant(at.astype(np.int64).reshape(len(flat), depth))
        updates = g.data(x.kind, (len(flat), *x.shape[depth:]))
        return Draft(kind, [x, points, g.constant(updates)], attributes)
    axis = axis_of(g, x.rank)
    attributes["axis"] = axis
    size = g.rng.randint(0, x.shape[axis])
    order = g.numbers.permutation(max(x.shape[axis], 1))[:size]
    own = [
        size if i == axis % x.rank else g.rng.randint(min(e, 1), e) for i, e in enumerate(x.shape)
    ]
    line = [size if i == axis % x.rank else 1 for i in range(x.rank)]
    places = np.broadcast_to(order.reshape(line), own).astype(np.int64)
    places = g.input_of(places) if g.chance(0.2) else g.constant(places)
    return Draft(kind, [x, places, g.constant(g.data(x.kind, own))], attributes)


def one_hot(g: Grower) -> Draft | None:
    if not g.has("OneHot"):
        return None
    x = g.any(["int64", "int32", "float32", "uint8"], ranks=(0, 1, 2))
    depth = g.constant(np.array(g.pick(1, 3, 5), g.pick("int64", "int32", "float32")))
    values = g.constant(g.data(g.pick("float32", "int64", "int32", "bool"), (2,)))
    return Draft("OneHot", [x, depth, values], {"axis": g.rng.randint(-x.rank - 1, x.rank)})


def trilu(g: Grower) -> Draft | None:
    if not g.has("Trilu"):
        return None
    x = g.any(g.kinds_of("Trilu"), ranks=(2, 3, 4))
    operands: list[Grown | None] = [x]
    if g.chance(0.6):
        operands.append(g.constant(np.array(g.pick(-2, -1, 0, 1, 2, 9))))
    return Draft("Trilu", operands, {"upper": g.pick(0, 1)})


def range_(g: Grower) -> Draft | None:
    if not g.has("Range"):
        return None
    kind = g.pick("int64", "int64", "int32", "float32", "float64", "int16")
    numbers = [g.pick(0, 1, -2), g.pick(3, 5, 0, -4), g.pick(1, 2, -1)]
    operands = [g.constant(np.array(n, kind)) for n in numbers]
    if kind == "int64" and g.chance(0.4):
        (size,) = g.put(Draft("Size", [g.any()])) or [None]
        if size is not None:
            operands[1], operands[2] = size, g.constant(np.array(1))
    return Draft("Range", operands)


def picked(g: Grower) -> Draft | None:
    op_type = g.pick("NonZero", "Compress", "Unique")
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type), ranks=(0, 1, 2, 3))
    if op_type == "NonZero":
        return Draft(op_type, [x])
    axis = g.pick(None, axis_of(g, x.rank))
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    if op_type == "Unique":
        attributes["sorted"] = g.pick(0, 1)
        return Draft(op_type, [x], attributes, g.pick(1, 2, 3, 4))
    extent = math.prod(x.shape) if axis is None else x.shape[axis] if x.rank else 0
    condition = g.data("bool", [g.rng.randint(0, extent)])
    given = g.input_of(condition) if g.chance(0.3) else g.constant(condition)
    return Draft(op_type, [x, given], attributes)


def eye(g: Grower) -> Draft | None:
    if not g.has("EyeLike"):
        return None
    x = g.any(g.kinds_of("EyeLike"), ranks=(2,))
    attributes: dict[str, Any] = {"k": g.pick(-1, 0, 0, 1, 3)}
    if g.chance(0.5):
        attributes["dtype"] = g.pick(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)
    return Draft("EyeLike", [x], attributes)
