"""Shapes, and what moves elements without looking at them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.fuzzing.graph_grower import Draft, Grower, Grown
from tests.fuzzing.operators.axes import axes_of, axis_of


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
    axes = axes_of(g, x.rank, 1)
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
    axes = axes_of(g, x.rank, 1) if g.b.opset >= 18 and g.chance(0.5) else None
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
    axis = axis_of(g, x.rank)
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
    axis = axis_of(g, x.rank)
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
