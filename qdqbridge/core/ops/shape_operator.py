"""Shape: the extents of a tensor as numbers."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.operator import Array, Flow, OnnxOp, Operands, Row
from qdqbridge.core.ops.attributes import ShapeAttrs
from qdqbridge.core.ops.stored import present


def _compute_shape_op(attributes: ShapeAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (np.array(x.shape[attributes.start : attributes.end], np.int64),)


SHAPE = Row(
    name="Shape", flow=Flow.FLOAT, attributes=ShapeAttrs, compute=_compute_shape_op, data=(),
    onnx=(
        OnnxOp(
            name="Shape", defaults={"start": 0, "end": None}, later={"start": 15, "end": 15},
            unsaid=("start", "end"),
        ),
    ),
    numerics="Extents, exact; the same of a tensor and of its stored integers.",
)  # fmt: skip

OPERATORS = (SHAPE,)
