"""Q and DQ, and operators of integers."""

from __future__ import annotations

import numpy as np

from tests.fuzzing.graph_grower import Draft, Grower, Grown
from tests.fuzzing.operators.axes import axis_of
from tests.fuzzing.operators.elementwise import binary
from tests.fuzzing.operators.indexing import gather
from tests.fuzzing.operators.norms import softmax
from tests.fuzzing.operators.products import gemm, matmul
from tests.fuzzing.operators.reductions import reduction
from tests.fuzzing.operators.shapes import (
    concat,
    flatten,
    reshape,
    slice_,
    tile,
    transpose,
    unsqueeze,
)
from tests.fuzzing.operators.windows import conv, pool


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
    axis = axis_of(g, x.rank) if channels else None
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
