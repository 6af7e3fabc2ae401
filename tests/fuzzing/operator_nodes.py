"""The nodes that random graphs of ONNX's operators are made of, a function for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzzing.graph_grower import REALS, Draft, Grower, Grown

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos",
    "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan",
    "Tanh", "ThresholdedRelu", "Dropout", "Abs", "Neg", "Relu", "Not", "Identity", "Floor",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "And", "Or", "Xor", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "BitShift", "Equal", "Greater", "Less", "GreaterOrEqual",
    "LessOrEqual", "Max", "Min", "Sum", "Mean", "Add", "Sub", "Mul", "Div", "Max", "Min", "Add",
    "Mul", "Sub", "PRelu", "Mod",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceMean", "ReduceMax",
)  # fmt: skip


def some_attributes(g: Grower, op_type: str) -> dict[str, Any]:
    """Returns numbers for some of an operator's float attributes, and switches."""
    given: dict[str, Any] = {}
    for attribute in g.schema(op_type).attributes.values():
        kind = attribute.type.name
        if kind == "FLOAT" and g.chance(0.6):
            given[attribute.name] = g.pick(0.0, 1.0, -1.0, 0.5, 0.1, 2.0, 3.0)
    if op_type == "Gelu" and g.chance(0.5):
        given["approximate"] = "tanh"
    if op_type == "IsInf":
        given |= {"detect_negative": g.pick(0, 1), "detect_positive": g.pick(0, 1)}
    return given


def unary(g: Grower) -> Draft | None:
    op_type = g.pick(*UNARY)
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type))
    results = 2 if op_type == "Dropout" and g.b.opset >= 10 and g.chance(0.5) else 1
    return Draft(op_type, [x], some_attributes(g, op_type), results)


def binary(g: Grower) -> Draft | None:
    op_type = g.pick(*BINARY)
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type))
    attributes: dict[str, Any] = {}
    if op_type == "Pow" and g.b.opset >= 12 and g.chance(0.4):
        y = g.like(x, g.pick(*g.kinds_of(op_type, 1)))
    else:
        y = g.like(x)
    if op_type == "Mod" and (x.kind in REALS or g.chance(0.4)):
        attributes["fmod"] = 1
    if op_type == "BitShift":
        attributes["direction"] = g.pick("LEFT", "RIGHT")
        y = g.constant(g.numbers.integers(0, np.dtype(x.kind).itemsize * 8, y.shape).astype(x.kind))
    operands = [x, y] if op_type in ("PRelu", "BitShift", "Pow") or g.chance(0.6) else [y, x]
    if op_type in ("Max", "Min", "Sum", "Mean"):
        operands += [g.like(x) for _ in range(g.pick(0, 0, 1, 2))]
        operands = operands[: 1 if g.chance(0.1) else None]
    return Draft(op_type, operands, attributes)


def where(g: Grower) -> Draft | None:
    condition = g.any(["bool"])
    if not g.has("Where"):
        return None
    x = g.like(condition, g.kind())
    return Draft("Where", [condition, x, g.like(x)])


def clip(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("Clip"))
    if g.b.opset < 11:
        return Draft("Clip", [x], {"min": g.pick(-1.0, 0.0), "max": g.pick(0.0, 2.5, 6.0)})
    low, high = (
        None if g.chance(0.3) else g.constant(np.array(number, x.kind))
        for number in (g.pick(0, 1, 2), g.pick(3, 1, 6, 0))
    )
    if g.chance(0.2) and low is not None:
        low = g.input_of(low.first)
    return Draft("Clip", [x, low, high])


def _axis(g: Grower, rank: int) -> int:
    axis = g.rng.randrange(max(rank, 1))
    return axis - rank if g.b.opset >= 11 and g.chance(0.4) else axis


def _axes(g: Grower, rank: int, least: int = 0) -> list[int]:
    axes = g.rng.sample(range(rank), g.rng.randint(min(least, rank), rank))
    return [a - rank if g.b.opset >= 11 and g.chance(0.3) else a for a in axes]


def reduction(g: Grower) -> Draft | None:
    op_type = g.pick(*REDUCTIONS)
    x = g.any(g.kinds_of(op_type))
    attributes: dict[str, Any] = {"keepdims": 0} if g.chance(0.5) else {}
    attribute = g.attribute(op_type, "axes")
    axes = None if g.chance(0.2) else _axes(g, x.rank, 1 if attribute else 0)
    operands: list[Grown | None] = [x]
    if attribute:
        if axes:
            attributes["axes"] = axes
    else:
        if axes is not None:
            operands.append(g.ints(*axes))
        if g.chance(0.3):
            attributes["noop_with_empty_axes"] = 1
    return Draft(op_type, operands, attributes)


def arg(g: Grower) -> Draft | None:
    op_type = g.pick("ArgMax", "ArgMin")
    x = g.any(g.kinds_of(op_type))
    attributes: dict[str, Any] = {"axis": _axis(g, x.rank), "keepdims": g.pick(0, 1)}
    if g.b.opset >= 12 and g.chance(0.4):
        attributes["select_last_index"] = 1
    return Draft(op_type, [x], attributes)


def running(g: Grower) -> Draft | None:
    op_type = g.pick("CumSum", "CumSum", "CumProd")
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type))
    axis = np.array(_axis(g, x.rank), g.pick("int32", "int64"))
    attributes = {"exclusive": g.pick(0, 1), "reverse": g.pick(0, 1)}
    return Draft(op_type, [x, g.constant(axis)], attributes)


def top(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("TopK"))
    if not x.rank:
        return None
    axis = _axis(g, x.rank)
    k = g.rng.randint(0, x.shape[axis])
    if g.b.opset < 10:
        return Draft("TopK", [x], {"axis": axis, "k": k}, 2)
    attributes: dict[str, Any] = {"axis": axis}
    if g.b.opset >= 11:
        attributes |= {"largest": g.pick(0, 1)}
    return Draft("TopK", [x, g.ints(k)], attributes, 2)


# ---- shapes -----------------------------------------------------------------------------------


def reshape(g: Grower) -> Draft | None:
    x = g.any()
    count, target = math.prod(x.shape), [*x.shape]
    style = g.rng.random()
    if style < 0.3:
        target = [0 if i < x.rank and g.chance(0.4) else e for i, e in enumerate(target)]
    elif style < 0.7 and count:
        target, left = [], count
        for _ in range(g.rng.randint(0, 4)):
            parts = [n for n in range(1, left + 1) if left % n == 0]
            target.append(g.pick(*parts))
            left //= target[-1]
        target.append(left)
        g.rng.shuffle(target)
    if target and g.chance(0.5) and all(target):
        target[g.rng.randrange(len(target))] = -1
    attributes: dict[str, Any] = {}
    if g.b.opset >= 14 and g.chance(0.2):
        attributes["allowzero"] = 1
    if g.chance(0.2):
        return Draft("Reshape", [x, shape_of(g)], attributes)
    return Draft("Reshape", [x, g.ints(*target)], attributes)


def shape_of(g: Grower) -> Grown:
    """Returns a vector of extents that is computed from a value's shape."""
    y = g.any()
    found = g.put(Draft("Shape", [y]))
    assert found is not None
    return found[0]


def shape(g: Grower) -> Draft | None:
    x = g.any()
    if g.chance(0.25):
        return Draft("Size", [x])
    attributes: dict[str, Any] = {}
    if g.b.opset >= 15 and g.chance(0.5):
        attributes = {"start": g.pick(0, 1, -1, -2, 5), "end": g.pick(1, 2, -1, 9)}
    return Draft("Shape", [x], attributes)


def shape_arithmetic(g: Grower) -> Draft | None:
    """Extents that are gathered, multiplied, and joined to a target of Reshape or Expand."""
    x = g.any(ranks=(1, 2, 3, 4))
    (extents,) = g.put(Draft("Shape", [x])) or [None]
    if extents is None:
        return None
    axis = g.rng.randrange(x.rank)
    (one,) = g.put(Draft("Gather", [extents, g.constant(np.array([axis]))])) or [None]
    if one is None:
        return None
    others = g.constant(np.array([-1]))
    (target,) = g.put(Draft("Concat", [one, others], {"axis": 0})) or [None]
    return None if target is None else Draft("Reshape", [x, target])


def expand(g: Grower) -> Draft | None:
    x = g.any(ranks=(0, 1, 2, 3))
    if not g.has("Expand"):
        return None
    target = [g.pick(1, 2, 3, e) if e == 1 else g.pick(1, e) for e in x.shape]
    target = [g.pick(1, 2) for _ in range(g.pick(0, 0, 1))] + target
    target = target[g.pick(0, 0, 1) :]
    return Draft("Expand", [x, g.ints(*target)])


def squeeze(g: Grower) -> Draft | None:
    x = g.any()
    ones = [
        i - g.pick(0, x.rank if g.b.opset >= 11 else 0) for i, e in enumerate(x.shape) if e == 1
    ]
    axes = g.rng.sample(ones, g.rng.randint(0, len(ones)))
    if g.chance(0.2):
        return Draft("Squeeze", [x])
    if g.b.opset >= 13:
        return Draft("Squeeze", [x, g.ints(*axes)])
    return Draft("Squeeze", [x], {"axes": axes} if axes else {})


def unsqueeze(g: Grower) -> Draft | None:
    x = g.any(ranks=(0, 1, 2, 3, 4))
    rank = x.rank + g.pick(1, 1, 2)
    axes = g.rng.sample(range(rank), rank - x.rank)
    axes = [a - rank if g.b.opset >= 11 and g.chance(0.3) else a for a in axes]
    if g.b.opset >= 13:
        return Draft("Unsqueeze", [x, g.ints(*axes)])
    return Draft("Unsqueeze", [x], {"axes": axes})


def flatten(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("Flatten"))
    low = -x.rank if g.b.opset >= 11 else 0
    return Draft("Flatten", [x], {"axis": g.rng.randint(low, x.rank)})


def transpose(g: Grower) -> Draft | None:
    x = g.any()
    perm = g.rng.sample(range(x.rank), x.rank)
    return Draft("Transpose", [x], {"perm": perm} if perm and g.chance(0.8) else {})


def slice_(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3, 4, 5))
    axes = _axes(g, x.rank, 1)
    if g.chance(0.4):
        axes = list(range(g.rng.randint(1, x.rank)))
    far = (1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
    starts, ends = (
        [g.pick(*far) if g.chance(0.1) else g.rng.randint(-e - 1, e + 1) for e in
         (x.shape[a] for a in axes)] for _ in range(2)
    )  # fmt: skip
    if g.chance(0.3):
        starts, ends = [0] * len(axes), [g.pick(1, 2, -1, 100) for _ in axes]
    steps = [g.pick(1, 1, 2, 3, -1, -2) for _ in axes]
    plain = axes == list(range(len(axes)))
    if g.b.opset < 10:
        return Draft("Slice", [x], {"starts": starts, "ends": ends, "axes": axes})
    operands: list[Grown | None] = [x, g.ints(*starts), g.ints(*ends)]
    operands.append(None if plain and g.chance(0.5) else g.ints(*axes))
    if g.chance(0.7):
        operands.append(g.ints(*steps))
    if operands[-1] is None:
        operands.pop()
    return Draft("Slice", operands)


def pad(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("Pad"), ranks=(1, 2, 3, 4))
    mode = g.pick("constant", "constant", "edge", "reflect", *(["wrap"] if g.b.opset >= 19 else []))
    pads = [g.pick(0, 0, 1, 2, -1) for _ in range(2 * x.rank)]
    if mode in ("reflect", "wrap"):
        pads = [max(p, 0) if g.chance(0.9) else p for p in pads]
    if g.b.opset < 11:
        return Draft("Pad", [x], {"mode": mode, "pads": pads, "value": g.pick(0.0, 1.5)})
    operands: list[Grown | None] = [x]
    axes = _axes(g, x.rank, 1) if g.b.opset >= 18 and g.chance(0.5) else None
    if axes is not None:
        pads = [pads[i] for a in axes for i in (a % x.rank,)] * 2
    operands.append(g.ints(*pads))
    value = g.constant(g.data(x.kind, ())) if mode == "constant" and g.chance(0.6) else None
    operands.append(value)
    if axes is not None:
        operands.append(g.ints(*axes))
    elif value is None:
        operands.pop()
    return Draft("Pad", operands, {"mode": mode})


def split(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3, 4))
    axis = _axis(g, x.rank)
    extent, parts = x.shape[axis], g.pick(1, 2, 2, 3)
    cuts = sorted(g.rng.randint(0, extent) for _ in range(parts - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, extent], strict=True)]
    attributes: dict[str, Any] = {"axis": axis}
    operands: list[Grown | None] = [x]
    if g.chance(0.4):
        if g.b.opset >= 18:
            attributes["num_outputs"] = parts
    elif g.b.opset >= 13:
        operands.append(g.ints(*sizes))
    else:
        attributes["split"] = sizes
    return Draft("Split", operands, attributes, parts)


def concat(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3, 4))
    axis = _axis(g, x.rank)
    fits = [
        v for v in g.values
        if v.kind == x.kind and v.rank == x.rank
        and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True))
                if i != axis % x.rank)
    ]  # fmt: skip
    count = g.pick(1, 2, 2, 3)
    operands = [x if g.chance(0.3) else g.pick(*fits, x) for _ in range(count)]
    if g.chance(0.3):
        own = [g.pick(0, 1, 2) if i == axis % x.rank else e for i, e in enumerate(x.shape)]
        operands.append(g.constant(g.data(x.kind, own)))
    return Draft("Concat", operands, {"axis": axis})


def tile(g: Grower) -> Draft | None:
    x = g.any(ranks=(0, 1, 2, 3, 4))
    return Draft("Tile", [x, g.ints(*(g.pick(1, 1, 2, 3, 0) for _ in range(x.rank)))])


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
    axis = _axis(g, x.rank)
    shape = g.pick((), (1,), (2,), (3,), (2, 2), (0,))
    return Draft("Gather", [x, indices_into(g, x.shape[axis], shape)], {"axis": axis})


def gather_elements(g: Grower) -> Draft | None:
    x = g.any(ranks=(1, 2, 3))
    if not g.has("GatherElements"):
        return None
    axis = _axis(g, x.rank)
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
    axis = _axis(g, x.rank)
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
    axis = g.pick(None, _axis(g, x.rank))
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


def reverse(g: Grower) -> Draft | None:
    if not g.has("ReverseSequence"):
        return None
    x = g.any(ranks=(2, 3))
    batch = g.pick(0, 1)
    lengths = g.numbers.integers(0, x.shape[1 - batch] + 1, x.shape[batch])
    given = g.input_of(lengths) if g.chance(0.3) else g.constant(lengths)
    return Draft("ReverseSequence", [x, given], {"batch_axis": batch, "time_axis": 1 - batch})


def depth_space(g: Grower) -> Draft | None:
    op_type = g.pick("DepthToSpace", "SpaceToDepth")
    kinds = g.kinds_of(op_type)
    shape = (g.pick(1, 2), g.pick(4, 8), g.pick(1, 2, 4), g.pick(2, 4))
    fits = [v for v in g.values if v.rank == 4 and v.kind in kinds]
    x = g.pick(*fits) if fits and g.chance(0.5) else g.input(g.pick("float32", *kinds), shape)
    attributes: dict[str, Any] = {"blocksize": g.pick(1, 2, 2)}
    if op_type == "DepthToSpace" and g.b.opset >= 11:
        attributes["mode"] = g.pick("DCR", "CRD")
    return Draft(op_type, [x], attributes)


def cast(g: Grower) -> Draft | None:
    x = g.any()
    kind = g.kind()
    if g.b.opset >= 15 and g.chance(0.15):
        return Draft("CastLike", [x, g.any([kind])])
    attributes: dict[str, Any] = {"to": helper.np_dtype_to_tensor_dtype(np.dtype(kind))}
    if g.b.opset >= 19 and g.chance(0.3):
        attributes["saturate"] = g.pick(0, 1)
    return Draft("Cast", [x], attributes)


# ---- products, windows, norms -------------------------------------------------------------------


def matmul(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("MatMul"), ranks=(1, 2, 3, 4))
    inner = x.shape[-1]
    if x.rank >= 2 and g.chance(0.3):
        y = g.any([x.kind], ranks=(1, 2, 3))
    else:
        lead = [g.pick(1, e) for e in x.shape[:-2]][g.pick(0, 0, 1) :] if g.chance(0.4) else []
        shape = [inner] if g.chance(0.15) else [*lead, inner, g.pick(1, 2, 4, 0, 3)]
        y = g.like_constant(x.kind, shape)
    return Draft("MatMul", [x, y])


def gemm(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("Gemm"), ranks=(2,))
    a, b = g.pick(0, 1), g.pick(0, 1)
    inner, rows, units = x.shape[0 if a else 1], x.shape[1 if a else 0], g.pick(1, 2, 3, 5)
    y = g.like_constant(x.kind, (units, inner) if b else (inner, units))
    operands: list[Grown | None] = [x, y]
    if g.b.opset < 11 or g.chance(0.7):
        shape = g.pick((units,), (1, units), (rows, 1), (rows, units), (), (1,))
        operands.append(g.like_constant(x.kind, shape))
    attributes: dict[str, Any] = {"transA": a, "transB": b}
    if g.chance(0.5):
        attributes |= {"alpha": g.pick(0.0, 0.5, 1.0, 2.0), "beta": g.pick(0.0, 1.0, 0.5, -1.0)}
    return Draft("Gemm", operands, attributes)


def einsum(g: Grower) -> Draft | None:
    if not g.has("Einsum"):
        return None
    x = g.any(g.kinds_of("Einsum"), ranks=(1, 2, 3))
    letters = "abc"[: x.rank]
    style = g.rng.random()
    if style < 0.25:
        kept = g.rng.sample(letters, g.rng.randint(0, x.rank))
        return Draft("Einsum", [x], {"equation": f"{letters}->{''.join(kept)}"})
    if style < 0.35 and x.rank >= 2:
        return Draft("Einsum", [x], {"equation": "...ab->...ba"})
    other = g.rng.sample(letters, g.rng.randint(1, x.rank)) + (["d"] if g.chance(0.6) else [])
    shape = [3 if c == "d" else x.shape["abc".index(c)] for c in other]
    y = g.like_constant(x.kind, shape)
    every = sorted({*letters, *other})
    kept = g.rng.sample(every, g.rng.randint(0, len(every)))
    return Draft("Einsum", [x, y], {"equation": f"{letters},{''.join(other)}->{''.join(kept)}"})


def _windows(g: Grower, image: Sequence[int]) -> dict[str, Any]:
    rank = len(image)
    kernel = [g.rng.randint(1, max(1, min(3, e))) for e in image]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.5):
        attributes["strides"] = [g.pick(1, 2, 3) for _ in range(rank)]
    if g.chance(0.3):
        attributes["auto_pad"] = g.pick("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    elif g.chance(0.6):
        attributes["pads"] = [g.rng.randint(0, max(0, k - 1)) for k in (*kernel, *kernel)]
    if g.chance(0.25):
        attributes["dilations"] = [g.pick(1, 2) for _ in range(rank)]
    return attributes


def _image(g: Grower, kinds: Sequence[str] = ("float32",)) -> Grown:
    ranks = (3, 4, 4, 5)
    fits = [v for v in g.values if v.kind in kinds and v.rank in ranks]
    if fits and g.chance(0.7):
        return g.rng.choice(fits)
    shape = (
        g.pick(1, 2),
        g.pick(1, 2, 3, 4),
        *(g.rng.randint(1, 5) for _ in range(g.pick(1, 2, 2, 3))),
    )
    return g.input(g.pick("float32", "float32", *kinds), shape)


def conv(g: Grower) -> Draft | None:
    x = _image(g, ("float32", "float32", "float16", "float64"))
    channels, image = x.shape[1], x.shape[2:]
    attributes = _windows(g, image)
    groups = [n for n in (1, 1, 2, 3, channels) if n and channels % n == 0] or [1]
    group, each = g.pick(*groups), g.pick(1, 2, 3)
    if group > 1:
        attributes["group"] = group
    kernel = attributes["kernel_shape"]
    if g.chance(0.3):
        attributes.pop("kernel_shape")
    weight = g.like_constant(x.kind, (group * each, channels // group, *kernel))
    bias = [g.like_constant(x.kind, (group * each,))] if g.chance(0.6) else []
    return Draft("Conv", [x, weight, *bias], attributes)


def conv_transpose(g: Grower) -> Draft | None:
    x = _image(g)
    channels = x.shape[1]
    attributes = _windows(g, [3] * (x.rank - 2))
    group = g.pick(*[n for n in (1, 1, 2, channels) if n and channels % n == 0] or [1])
    each = g.pick(1, 2, 3)
    if group > 1:
        attributes["group"] = group
    strides = attributes.get("strides", [1] * (x.rank - 2))
    if g.chance(0.3):
        attributes["output_padding"] = [g.rng.randint(0, s - 1) for s in strides]
    elif g.chance(0.2):
        attributes["output_shape"] = [
            e * s + g.pick(0, 0, 1) for e, s in zip(x.shape[2:], strides, strict=True)
        ]
        attributes.pop("pads", None)
    weight = g.like_constant(x.kind, (channels, each, *attributes["kernel_shape"]))
    bias = [g.like_constant(x.kind, (group * each,))] if g.chance(0.6) else []
    return Draft("ConvTranspose", [x, weight, *bias], attributes)


def pool(g: Grower) -> Draft | None:
    op_type = g.pick("MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool",
                     "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")  # fmt: skip
    x = _image(g, g.kinds_of(op_type))
    if op_type.startswith("Global"):
        if x.kind == "float64":  # ONNX's reference adds an axis
            return None
        return Draft(op_type, [x], {"p": g.pick(1, 2, 3)} if op_type == "GlobalLpPool" else {})
    attributes = _windows(g, x.shape[2:])
    known = g.schema(op_type).attributes
    if "ceil_mode" in known and g.chance(0.4):
        attributes["ceil_mode"] = 1
    if "count_include_pad" in known and g.chance(0.5):
        attributes["count_include_pad"] = 1
    if "p" in known and g.chance(0.5):
        attributes["p"] = g.pick(1, 2, 3)
    results = 1
    if op_type == "MaxPool" and g.b.opset >= 8 and g.chance(0.3):
        results = 2
        if g.chance(0.4):
            attributes["storage_order"] = g.pick(0, 1)
    attributes = {k: v for k, v in attributes.items() if k in known}
    return Draft(op_type, [x], attributes, results)


def resize(g: Grower) -> Draft | None:
    x = g.any(["float32", "float32", "uint8", "int8", "int32"], ranks=(1, 2, 3, 4))
    mode = g.pick("nearest", "nearest", "linear", "cubic" if g.b.opset >= 11 else "linear")
    factors = [g.pick(1.0, 1.0, 2.0, 0.5, 1.5, 3.0, 0.6) for _ in x.shape]
    if mode != "nearest" and x.rank > 2:
        factors[:-2] = [1.0] * (x.rank - 2)
    scales = np.array(factors, np.float32)
    if g.b.opset < 9:
        return Draft("Upsample", [x], {"mode": mode, "scales": [max(f, 1.0) for f in factors]})
    if g.b.opset < 11:
        op_type = "Upsample" if g.b.opset == 9 else "Resize"
        return Draft(op_type, [x, g.constant(np.maximum(scales, 1))], {"mode": mode})
    kinds = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    if g.b.opset >= 19:
        kinds.append("half_pixel_symmetric")
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.pick(*kinds)}
    if mode == "nearest":
        attributes["nearest_mode"] = g.pick(
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    if mode == "cubic":
        attributes |= {"exclude_outside": g.pick(0, 1), "cubic_coeff_a": g.pick(-0.75, -0.5)}
    if g.b.opset >= 18 and g.chance(0.2):
        attributes["antialias"] = 1
    empty = g.constant(np.zeros(0, np.float32)) if g.b.opset < 13 else None
    if g.chance(0.5):
        return Draft("Resize", [x, empty, g.constant(scales)], attributes)
    sizes = [max(1, round(e * f)) for e, f in zip(x.shape, factors, strict=True)]
    if g.b.opset >= 18 and g.chance(0.3):
        axes = g.rng.sample(range(x.rank), g.rng.randint(1, x.rank))
        sizes = [sizes[a] for a in axes]
        attributes |= {"axes": axes, "keep_aspect_ratio_policy":
                       g.pick("stretch", "not_larger", "not_smaller")}  # fmt: skip
    scales = empty if g.b.opset < 13 else None
    return Draft("Resize", [x, empty, scales, g.ints(*sizes)], attributes)


def norm(g: Grower) -> Draft | None:
    op_type = g.pick(
        "BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization",
        "RMSNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization",
    )  # fmt: skip
    if not g.has(op_type):
        return None
    kinds = [k for k in ("float32", "float32", "float16", "float64") if k in g.kinds_of(op_type)]
    if op_type in ("LayerNormalization", "RMSNormalization"):
        x = g.any(kinds, ranks=(1, 2, 3, 4))
        axis = _axis(g, x.rank)
        shape = x.shape[axis % x.rank :]
        operands = [x, g.like_constant(x.kind, shape)]
        results = 1
        if op_type[0] == "L":
            operands += [g.like_constant(x.kind, shape)] if g.chance(0.6) else []
            results = g.pick(1, 1, 1, 2, 3)
        return Draft(op_type, operands, {"axis": axis, "epsilon": 1e-3}, results)
    x = g.any(kinds, ranks=(2, 3, 4, 5))
    if op_type == "LpNormalization":
        return Draft(op_type, [x], {"axis": _axis(g, x.rank), "p": g.pick(1, 2)})
    if op_type == "MeanVarianceNormalization":
        axes = _axes(g, x.rank, 1)
        return Draft(op_type, [x], {"axes": axes} if g.b.opset >= 9 else {})
    if op_type == "LRN":
        return Draft(op_type, [x], {"size": g.pick(1, 2, 3, 5), "alpha": 0.1, "bias": 1.5})
    channels = x.shape[1]
    count, positive = 4 if op_type[0] == "B" else 2, lambda a: np.abs(a) + np.asarray(0.5, a.dtype)
    group = g.pick(*[n for n in (1, 2, 3, channels) if n and channels % n == 0] or [1])
    extent = group if op_type[0] == "G" and g.b.opset < 21 else channels
    numbers = [np.nan_to_num(g.numbers.normal(size=extent)).astype(x.kind) for _ in range(count)]
    if count == 4:
        numbers[3] = positive(numbers[3])
    operands = [x, *map(g.constant, numbers)]
    attributes: dict[str, Any] = {"epsilon": 1e-3}
    if op_type[0] == "G":
        attributes["num_groups"] = group
    return Draft(op_type, operands, attributes)


def softmax(g: Grower) -> Draft | None:
    op_type = g.pick("Softmax", "Softmax", "LogSoftmax", "Hardmax")
    x = g.any(["float32", "float32", "float16", "float64"])
    return Draft(op_type, [x], {"axis": _axis(g, x.rank)} if g.chance(0.8) else {})


# ---- quantization -------------------------------------------------------------------------------


def _parameters(g: Grower, kind: str, axis: int | None, extent: int) -> list[Grown]:
    shape = () if axis is None else (extent,)
    scale = g.numbers.choice(np.array([0.5, 0.25, 0.1, 0.02, 1.0], np.float32), shape)
    low = 0 if kind[0] == "i" and g.chance(0.5) else None
    zero = np.zeros(shape) if low == 0 else g.numbers.integers(0, 9, shape)
    return [g.constant(np.asarray(scale)), g.constant(np.asarray(zero).astype(kind))]


def quantized(g: Grower) -> Draft | None:
    """A Q and the DQ behind it; at times between movements, at times with other parameters."""
    if not g.has("QuantizeLinear"):
        return None
    x = g.any(["float32"])
    kinds = ["uint8", "int8", "uint8", "int8"] + (["int16", "uint16"] if g.b.opset >= 21 else [])
    kind = g.pick(*kinds)
    channels = x.rank and x.first.size and g.b.opset >= 13 and g.chance(0.2)
    axis = _axis(g, x.rank) if channels else None
    extent = 0 if axis is None else x.shape[axis]
    parameters = _parameters(g, kind, axis, extent)
    attributes = {} if axis is None else {"axis": axis}
    (q,) = g.put(Draft("QuantizeLinear", [x, *parameters], attributes)) or [None]
    if q is None:
        return None
    if axis is None and g.chance(0.4):
        moved = g.pick(transpose, reshape, slice_, flatten, unsqueeze, gather, tile)
        g.values.append(q)
        draft = moved(g)
        if draft is not None and draft.operands[0] is q:
            q = (g.put(draft) or [q])[0]
    if axis is None and g.chance(0.15):
        parameters = [_parameters(g, kind, None, 0)[0], parameters[1]]
    return Draft("DequantizeLinear", [q, *parameters], attributes)


def dequantized(g: Grower) -> Draft | None:
    """A DQ of stored integers: a weight, an input, or whatever integers there are."""
    if not g.has("DequantizeLinear"):
        return None
    x = g.any(
        [k for k in ("uint8", "int8", "int32", "int16") if k in g.kinds_of("DequantizeLinear")]
    )
    scale = g.constant(np.float32(g.pick(0.5, 0.1, 0.02)))
    zero = (
        [] if g.chance(0.4) or x.kind == "int32" else [g.constant(np.array(g.pick(0, 3), x.kind))]
    )
    return Draft("DequantizeLinear", [x, scale, *zero])


def dynamic(g: Grower) -> Draft | None:
    return Draft("DynamicQuantizeLinear", [g.any(["float32"])], {}, 3) if g.b.opset >= 11 else None


def integer_product(g: Grower) -> Draft | None:
    if not g.has("MatMulInteger"):
        return None
    x = g.any(["uint8", "int8"], ranks=(2, 3))
    y = g.constant(g.data(g.pick("uint8", "int8"), (x.shape[-1], 3)))
    zeros = [g.constant(np.array(g.pick(0, 2), v.kind)) for v in (x, y)][: g.pick(0, 1, 2)]
    return Draft("MatMulInteger", [x, y, *zeros])


def quantized_product(g: Grower) -> Draft | None:
    """A product between Qs, the way quantizers write it, with Q and DQ on all of its operands."""
    draft = g.pick(matmul, gemm, conv, pool, binary, softmax, concat, reduction)(g)
    if draft is None or any(v is not None and v.kind != "float32" for v in draft.operands):
        return None
    operands: list[Grown | None] = []
    for v in draft.operands:
        kind = g.pick("uint8", "int8")
        if v is None or v.kind != "float32" or (v.rank == 1 and len(operands) == 2):
            operands.append(v)
            continue
        parameters = _parameters(g, kind, None, 0)
        (q,) = g.put(Draft("QuantizeLinear", [v, *parameters])) or [None]
        if q is None:
            return None
        (x,) = g.put(Draft("DequantizeLinear", [q, *parameters])) or [None]
        operands.append(x)
    draft.operands = operands
    results = g.put(draft)
    if results is None or results[0].kind != "float32":
        return None
    parameters = _parameters(g, g.pick("uint8", "int8"), None, 0)
    (q,) = g.put(Draft("QuantizeLinear", [results[0], *parameters])) or [None]
    return None if q is None else Draft("DequantizeLinear", [q, *parameters])


# ---- control flow -------------------------------------------------------------------------------


def _body(g: Grower, name: str, nodes: Any, inputs: Any, outputs: Any, constants: Any = ()) -> Any:
    return helper.make_graph(nodes, name, inputs, outputs, initializer=list(constants))


def branch(g: Grower) -> Draft | None:
    conditions = [v for v in g.values if v.kind == "bool" and v.first.size == 1]
    condition = (g.pick(*conditions) if conditions and g.chance(0.7)
                 else g.input_of(np.array(g.chance(0.5))))  # fmt: skip
    x = g.any(["float32", "int64", "int32"])
    kind = helper.np_dtype_to_tensor_dtype(x.first.dtype)
    bodies = []
    for name, op_type in (
        ("then", g.pick("Neg", "Abs", "Identity")),
        ("else", g.pick("Neg", "Abs")),
    ):
        result = f"{name}_{g.b.count}"
        node = helper.make_node(op_type, [x.name], [result])
        value = helper.make_tensor_value_info(result, kind, [None] * x.rank)
        bodies.append(_body(g, name, [node], [], [value]))
    attributes = {"then_branch": bodies[0], "else_branch": bodies[1]}
    return Draft("If", [condition], attributes, captured=[x])


def loop(g: Grower) -> Draft | None:
    if g.b.opset < 11:
        return None
    x = g.any(["float32", "int64"])
    kind = helper.np_dtype_to_tensor_dtype(x.first.dtype)
    n = f"{g.b.count}"
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Identity", [f"go{n}"], [f"on{n}"]),
        helper.make_node(g.pick("Add", "Sub", "Mul"), [f"state{n}", x.name], [f"next{n}"]),
        helper.make_node("Identity", [f"next{n}"], [f"row{n}"]),
    ]
    inputs = [value(f"i{n}", TensorProto.INT64, []), value(f"go{n}", TensorProto.BOOL, []),
              value(f"state{n}", kind, [None] * x.rank)]  # fmt: skip
    outputs = [value(f"on{n}", TensorProto.BOOL, []), value(f"next{n}", kind, [None] * x.rank),
               value(f"row{n}", kind, [None] * x.rank)]  # fmt: skip
    count = g.pick(0, 1, 3)
    trips, go = g.constant(np.array(count)), g.constant(np.array(True))
    if g.chance(0.3):
        trips = g.input_of(trips.first)
    attributes = {"body": _body(g, "body", nodes, inputs, outputs)}
    return Draft("Loop", [trips, go, x], attributes, 2 if count else 1, [x])


def scan(g: Grower) -> Draft | None:
    if g.b.opset < 9:
        return None
    x = g.any(["float32", "int32"], ranks=(1, 2, 3))
    kind, rank, n = helper.np_dtype_to_tensor_dtype(x.first.dtype), x.rank - 1, f"{g.b.count}"
    state = g.constant(g.data(x.kind, x.shape[1:]))
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(g.pick("Add", "Mul", "Max"), [f"s{n}", f"x{n}"], [f"t{n}"]),
        helper.make_node("Neg", [f"t{n}"], [f"y{n}"]),
    ]
    inputs = [value(f"s{n}", kind, [None] * rank), value(f"x{n}", kind, [None] * rank)]
    outputs = [value(f"t{n}", kind, [None] * rank), value(f"y{n}", kind, [None] * rank)]
    attributes: dict[str, Any] = {"body": _body(g, "body", nodes, inputs, outputs),
                                  "num_scan_inputs": 1}  # fmt: skip
    if g.chance(0.3):
        attributes["scan_input_directions"] = [1]
    if g.chance(0.3):
        attributes["scan_output_directions"] = [1]
    return Draft("Scan", [state, x], attributes, 2)


Kind = Callable[[Grower], Draft | None]
MAKERS: tuple[Kind, ...] = (
    *(unary,) * 8, *(binary,) * 10, *(where,) * 2, *(clip,) * 2, *(reduction,) * 5, *(arg,) * 2,
    running, *(top,) * 2, *(reshape,) * 4, *(shape,) * 2, shape_arithmetic, *(expand,) * 2,
    *(squeeze,) * 2, *(unsqueeze,) * 2, *(flatten,) * 2, *(transpose,) * 4, *(slice_,) * 4,
    *(pad,) * 3, *(split,) * 2, *(concat,) * 3, *(tile,) * 2, *(gather,) * 3,
    *(gather_elements,) * 2, *(gather_nd,) * 2, *(scatter,) * 3, one_hot, trilu, range_,
    *(picked,) * 2, eye, reverse, depth_space, *(cast,) * 5, *(matmul,) * 3, *(gemm,) * 2,
    *(einsum,) * 2, *(conv,) * 2, conv_transpose, *(pool,) * 3, *(resize,) * 2, *(norm,) * 3,
    *(softmax,) * 2, *(quantized,) * 8, *(dequantized,) * 2, dynamic, integer_product,
    *(quantized_product,) * 4, branch, loop, scan,
)  # fmt: skip
"""What has many forms is there several times."""
