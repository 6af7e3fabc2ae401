"""Norms and softmaxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.fuzzing.graph_grower import Draft, Grower
from tests.fuzzing.operators.axes import axes_of, axis_of


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
        axis = axis_of(g, x.rank)
        shape = x.shape[axis % x.rank :]
        operands = [x, g.like_constant(x.kind, shape)]
        results = 1
        if op_type[0] == "L":
            operands += [g.like_constant(x.kind, shape)] if g.chance(0.6) else []
            results = g.pick(1, 1, 1, 2, 3)
        return Draft(op_type, operands, {"axis": axis, "epsilon": 1e-3}, results)
    x = g.any(kinds, ranks=(2, 3, 4, 5))
    if op_type == "LpNormalization":
        return Draft(op_type, [x], {"axis": axis_of(g, x.rank), "p": g.pick(1, 2)})
    if op_type == "MeanVarianceNormalization":
        axes = axes_of(g, x.rank, 1)
        if math.prod(x.shape[axis] for axis in axes) < 2:
            return None  # onnxruntime divides 0 by 0 where ONNX adds 1e-9 to the deviation
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
    return Draft(op_type, [x], {"axis": axis_of(g, x.rank)} if g.chance(0.8) else {})
