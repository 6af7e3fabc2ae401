"""ReduceMean, ReduceSum, ReduceMax and ReduceMin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import (
    Array,
    Compute,
    Contract,
    Flow,
    OnnxOp,
    Operands,
    Operator,
    Row,
    Types,
)
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.accumulator import accumulation_dtype, averaged, centered, integer_params
from qdqbridge.core.ops.attributes import ReduceAttrs
from qdqbridge.core.ops.pooling import GLOBAL_POOLS, NAN_WINS, comparable, highest, lowest
from qdqbridge.core.ops.shapes import axes_fit
from qdqbridge.core.ops.stored import moved, present


def reduces(row: Operator) -> bool:
    """True of a plain reduction, and of a global pool, which is one over the spatial axes."""
    return (row.attributes is ReduceAttrs and not row.by_steps) or row in GLOBAL_POOLS


def reduction_of(node: Node, spatial: Sequence[int]) -> ReduceAttrs:
    """Returns what a reduction or a global pool reduces, of data with these spatial axes."""
    attributes = node.attributes
    return attributes if isinstance(attributes, ReduceAttrs) else ReduceAttrs(tuple(spatial))


def _reduced_element_count(attrs: ReduceAttrs, x: Array) -> int:
    return int(np.prod([x.shape[axis] for axis in attrs.axes], dtype=np.int64))


def _sum(attrs: ReduceAttrs, x: Array) -> Array:
    wide = x.astype(accumulation_dtype(x))
    return np.asarray(wide.sum(axis=attrs.axes, keepdims=attrs.keepdims, dtype=wide.dtype))


def _reduce_sum(attrs: ReduceAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    return (_sum(attrs, x).astype(x.dtype),)


def _reduce_mean(attrs: ReduceAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    total, count = _sum(attrs, x), _reduced_element_count(attrs, x)
    if x.dtype.kind in "iu":
        # Cut towards zero, as onnxruntime divides integers; NumPy's // floors.
        return ((np.sign(total) * (np.abs(total) // count)).astype(x.dtype),)
    return ((total / count).astype(x.dtype),)


def _reduce_max(attrs: ReduceAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    wide = comparable(x)
    # Of no element NumPy refuses an extreme without a first one; ONNX gives the least number.
    best = wide.max(axis=attrs.axes, keepdims=attrs.keepdims, initial=lowest(wide.dtype))
    return (np.asarray(best).astype(x.dtype),)


def _reduce_min(attrs: ReduceAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    wide = comparable(x)
    best = wide.min(axis=attrs.axes, keepdims=attrs.keepdims, initial=highest(wide.dtype))
    return (np.asarray(best).astype(x.dtype),)


def _clip_to_result_range(compute: Compute) -> Contract:
    """Returns the contract of the largest or smallest stored value, or bound of the range."""
    stored = moved(compute)

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        found = stored(attributes, operands, types, results)
        if found is None or not isinstance(results[0], QuantType):
            return found
        (part,), params = found, results[0].params
        if not params.storage_dtype.is_integer:
            return found
        return (np.clip(part, params.qmin, params.qmax).astype(part.dtype),)

    return contract


def _summed(
    attrs: ReduceAttrs, operands: Operands, types: Types, results: Types, *, mean: bool
) -> tuple[Array, ...] | None:
    params = integer_params(types[0])
    if params is None or not params.per_tensor:
        return None
    (x,) = present(operands, 1)
    total = centered(x, params).sum(axis=attrs.axes, keepdims=attrs.keepdims, dtype=np.int64)
    count = _reduced_element_count(attrs, x) if mean else 1
    return (averaged(np.asarray(total), count, params, results[0]),)


def _sum_contract(
    attrs: ReduceAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    return _summed(attrs, operands, types, results, mean=False)


def _mean_contract(
    attrs: ReduceAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    return _summed(attrs, operands, types, results, mean=True)


def _check_reduce(node: Node, attrs: ReduceAttrs) -> Iterator[str]:
    yield from axes_fit(attrs.axes, node.operand(0).rank)


_MEAN = (
    "S = exact integer sum of (x - zx) over the n reduced elements{n}; "
    "y = sat(rint(f32(S) * M) + zy), M = f32(f64(sx) / (f64(sy) * n)). "
    "Float result: f32(S) * f32(f64(sx) / n). "
)
_FLOAT = (
    "onnxruntime 1.31 adds dequantized values in float32: 1 LSB different in 1 of 700 results "
    "where the scales are tenths or powers of two (many exact midpoints), in 0 of 26,000 with "
    "other scales; each is a midpoint within the error of its sum."
)


def _onnx(name: str, axes_operand: int) -> tuple[OnnxOp, ...]:
    return (
        OnnxOp(
            name=name, operands={"axes": axes_operand}, left_out=("axes",),
            defaults={"keepdims": True},
        ),
    )  # fmt: skip


REDUCE_MEAN = Row(
    name="ReduceMean",
    onnx=_onnx("ReduceMean", axes_operand=18),
    flow=Flow.AVERAGE,
    attributes=ReduceAttrs,
    compute=_reduce_mean,
    contract=_mean_contract,
    check=_check_reduce,
    qnn="mean",
    tvm="mean",
    numerics=_MEAN.format(n="") + _FLOAT,
)
REDUCE_SUM = Row(
    name="ReduceSum",
    onnx=_onnx("ReduceSum", axes_operand=13),
    flow=Flow.AVERAGE,
    attributes=ReduceAttrs,
    compute=_reduce_sum,
    contract=_sum_contract,
    check=_check_reduce,
    qnn="sum",
    tvm="sum",
    numerics=_MEAN.format(n=", n taken as 1") + _FLOAT,
)
REDUCE_MAX = Row(
    name="ReduceMax",
    onnx=_onnx("ReduceMax", axes_operand=18),
    flow=Flow.MOVE,
    attributes=ReduceAttrs,
    compute=_reduce_max,
    contract=_clip_to_result_range(_reduce_max),
    check=_check_reduce,
    tvm="max",
    numerics="The largest stored value; of no element the least one. Exact." + NAN_WINS,
)
REDUCE_MIN = Row(
    name="ReduceMin",
    onnx=_onnx("ReduceMin", axes_operand=18),
    flow=Flow.MOVE,
    attributes=ReduceAttrs,
    compute=_reduce_min,
    contract=_clip_to_result_range(_reduce_min),
    check=_check_reduce,
    tvm="min",
    numerics="The smallest stored value; of no element the greatest one. Exact." + NAN_WINS,
)

OPERATORS = (REDUCE_MEAN, REDUCE_SUM, REDUCE_MAX, REDUCE_MIN)
