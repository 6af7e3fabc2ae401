"""Cast: the same numbers in another element type."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import Array, Flow, OnnxOp, Operands, Row
from qdqbridge.core.ops.attributes import CastAttrs
from qdqbridge.core.ops.stored import present


def _compute_cast(attributes: CastAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    target = attributes.to.numpy
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.asarray(x.astype(target)),)


_NEWER = {DType.INT4: 21, DType.UINT4: 21, DType.INT2: 25, DType.UINT2: 25}
CAST = Row(
    name="Cast", flow=Flow.FLOAT, attributes=CastAttrs, compute=_compute_cast,
    onnx=(
        OnnxOp(name="Cast", newer={"to": _NEWER}),
        OnnxOp(name="CastLike", read_only=True),
    ),
    numerics="The element type changes; float to float rounds half to even.",
)  # fmt: skip

OPERATORS = (CAST,)
