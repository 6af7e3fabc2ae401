"""What goes along axes: reductions, places of extremes, running sums, the first of an order."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzzing.graph_grower import Draft, Grower, Grown
from tests.fuzzing.operators.axes import axes_of, axis_of

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceMean", "ReduceMax",
)  # fmt: skip


def reduction(g: Grower) -> Draft | None:
    op_type = g.pick(*REDUCTIONS)
    x = g.any(g.kinds_of(op_type))
    attributes: dict[str, Any] = {"keepdims": 0} if g.chance(0.5) else {}
    attribute = g.attribute(op_type, "axes")
    axes = None if g.chance(0.2) else axes_of(g, x.rank, 1 if attribute else 0)
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
    attributes: dict[str, Any] = {"axis": axis_of(g, x.rank), "keepdims": g.pick(0, 1)}
    if g.b.opset >= 12 and g.chance(0.4):
        attributes["select_last_index"] = 1
    return Draft(op_type, [x], attributes)


def running(g: Grower) -> Draft | None:
    op_type = g.pick("CumSum", "CumSum", "CumProd")
    if not g.has(op_type):
        return None
    x = g.any(g.kinds_of(op_type))
    axis = np.array(axis_of(g, x.rank), g.pick("int32", "int64"))
    attributes = {"exclusive": g.pick(0, 1), "reverse": g.pick(0, 1)}
    return Draft(op_type, [x, g.constant(axis)], attributes)


def top(g: Grower) -> Draft | None:
    x = g.any(g.kinds_of("TopK"))
    if not x.rank:
        return None
    axis = axis_of(g, x.rank)
    k = g.rng.randint(0, x.shape[axis])
    if g.b.opset < 10:
        return Draft("TopK", [x], {"axis": axis, "k": k}, 2)
    attributes: dict[str, Any] = {"axis": axis}
    if g.b.opset >= 11:
        attributes |= {"largest": g.pick(0, 1)}
    return Draft("TopK", [x, g.ints(k)], attributes, 2)
