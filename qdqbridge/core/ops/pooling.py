"""AveragePool, MaxPool and their global forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import (
    Array,
    Attributes,
    Flow,
    NoAttributes,
    OnnxOp,
    Operands,
    Row,
    Types,
)
from qdqbridge.core.graph.types import Dim, Shape
from qdqbridge.core.ops.accumulator import accumulation_dtype, averaged, centered, integer_params
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs
from qdqbridge.core.ops.bodies import Body, computed, contract_of_step
from qdqbridge.core.ops.shapes import (
    elements_read,
    extents,
    fitted,
    laid_along,
    padded,
    per_tensor,
    spatial_lengths,
    taps,
)
from qdqbridge.core.ops.stored import moved, present


def _out(attrs: PoolAttrs, x: Array) -> tuple[int, ...]:
    return extents(
        x.shape[2:],
        attrs.kernel_shape,
        attrs.strides,
        attrs.dilations,
        attrs.pads,
        ceil_mode=attrs.ceil_mode,
        clipped=True,
    )


def window_sums(attrs: PoolAttrs, x: Array) -> Array:
    """Returns the sum of every window of ``x`` (padding counts as 0)."""
    out = _out(attrs, x)
    shape = (attrs.kernel_shape, attrs.strides, attrs.dilations)
    around = padded(x, *shape, attrs.pads, out, 0)
    total = np.zeros((*x.shape[:2], *out), x.dtype)
    for _, view in taps(around, *shape, out):
        total += view
    return total


def window_counts(attrs: PoolAttrs, x: Array) -> Array:
    """Returns how many elements each window averages over, as ``[1, 1, out…]``.

    Padding counts with ``count_include_pad``; what lies beyond the padding never does.
    """
    rank, sizes = x.ndim - 2, x.shape[2:]
    out = _out(attrs, x)
    counts = np.ones((1, 1, *([1] * rank)), np.int64)
    for i, size in enumerate(sizes):
        along = elements_read(
            out[i], size, attrs.strides[i], attrs.kernel_shape[i], attrs.dilations[i],
            (attrs.pads[i], attrs.pads[i + rank]), with_padding=attrs.count_include_pad,
        )  # fmt: skip
        counts = counts * laid_along(along, i + 2, rank + 2)
    return counts


def _average_pool(attrs: PoolAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    total = window_sums(attrs, x.astype(accumulation_dtype(x)))
    return ((total / window_counts(attrs, x)).astype(x.dtype),)


def _average_contract(
    attrs: PoolAttrs, operands: Operands, types: Types, results: Types
) -> tuple[Array, ...] | None:
    params = integer_params(types[0])
    if params is None or not params.per_tensor:
        return None
    (x,) = present(operands, 1)
    total = window_sums(attrs, centered(x, params).astype(np.int64))
    return (averaged(total, window_counts(attrs, x), params, results[0]),)


def _over_pixels(reduction: str) -> Body:
    """Returns the body of a global pool: a reduction of the spatial axes."""
    return lambda attrs, shape: (reduction, "x", ReduceAttrs(tuple(range(2, len(shape)))))


def lowest(dtype: np.dtype[Any]) -> Any:
    """Returns the smallest value of a type that can be compared."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    # Minus infinity and no finite number: padding must not win against it either.
    return False if dtype.kind == "b" else -np.inf


def highest(dtype: np.dtype[Any]) -> Any:
    """Returns the largest value of a type that can be compared."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.inf


def comparable(x: Array) -> Array:
    """Returns ``x`` in a type NumPy can compare: sub-byte integers become int8."""
    return (
        x
        if x.dtype.kind in "iufb"
        # NumPy has no maximum of ml_dtypes' types, whose numbers are exact in these.
        else x.astype(np.float32 if x.dtype.itemsize > 1 or "float" in x.dtype.name else np.int8)
    )


def _max_pool(attrs: PoolAttrs, operands: Operands) -> tuple[Array, ...]:
    (x,) = present(operands, 1)
    wide, out = comparable(x), _out(attrs, x)
    shape = (attrs.kernel_shape, attrs.strides, attrs.dilations)
    around = padded(wide, *shape, attrs.pads, out, lowest(wide.dtype))
    best: Array | None = None
    for _, view in taps(around, *shape, out):
        # Tap by tap, not window by window: a kernel has few taps, and an image many windows.
        best = view.copy() if best is None else np.maximum(best, view)
    assert best is not None
    return (best.astype(x.dtype, copy=False),)


def _check_pool(node: Node, attrs: PoolAttrs) -> Iterator[str]:
    x = node.operand(0)
    rank = len(attrs.kernel_shape) if x.rank is None else x.rank - 2
    if rank < 1:
        yield f"the input has rank {x.rank}; it needs a batch, a channel and a spatial axis"
        return
    yield from spatial_lengths(
        rank,
        (
            ("kernel_shape", attrs.kernel_shape, 1, 1),
            ("strides", attrs.strides, 1, 1),
            ("dilations", attrs.dilations, 1, 1),
            ("pads", attrs.pads, 2, 0),
        ),
    )
    if len(attrs.pads) == 2 * rank and len(attrs.kernel_shape) == len(attrs.dilations) == rank:
        for i, (kernel, dilation) in enumerate(
            zip(attrs.kernel_shape, attrs.dilations, strict=True)
        ):
            if max(attrs.pads[i], attrs.pads[i + rank]) > (kernel - 1) * dilation:
                yield f"padding of spatial axis {i} is as wide as the kernel"
    yield from per_tensor(node, 0, "the input")


def _check_global(node: Node, _: Attributes) -> Iterator[str]:
    rank = node.operand(0).rank
    if rank is not None and rank < 3:
        yield f"the input has rank {rank}; it needs a batch, a channel and a spatial axis"


def fitting(attrs: PoolAttrs, sizes: Sequence[Dim | None]) -> PoolAttrs:
    """Returns the attributes of a pool whose windows fit along all axes of known extents.

    Args:
        attrs: Its attributes.
        sizes: The spatial extents of its input; names or None for open ones.
    """
    rank = len(attrs.kernel_shape)
    kernel, strides, pads = [*attrs.kernel_shape], [*attrs.strides], [*attrs.pads]
    for i, (size, dilation) in enumerate(zip(sizes, attrs.dilations, strict=True)):
        if isinstance(size, int):
            ends = pads[i], pads[rank + i]
            fit = fitted(size, kernel[i], strides[i], dilation, ends)
            kernel[i], strides[i], pads[rank + i] = fit
    return replace(attrs, kernel_shape=tuple(kernel), strides=tuple(strides), pads=tuple(pads))


def _fit_pool_windows(attrs: PoolAttrs, shape: Shape) -> PoolAttrs:
    return attrs if shape is None else fitting(attrs, shape[2:])


_MEAN = (
    "S = exact integer sum of (x - zx) over the n elements that count; "
    "y = sat(rint(f32(S) * M) + zy), M = f32(f64(sx) / (f64(sy) * n)). "
    "Float result: f32(S) * f32(f64(sx) / n). "
)
NAN_WINS = (
    " A float result is NaN where a NaN is among them (ONNX leaves it open; onnxruntime's kernels "
    "differ, by strides, axes and the place of the NaN, and some give the lowest finite number for "
    "-infinity)."
)
_WINDOWS = (
    "A window wider than the padded input by less than a stride is one window of what there is, "
    "as in ONNX's shape inference and onnxruntime 1.32; ONNX's text yields none. On TVM a picture"
    " of open extents has to be as large as the window, or is refused when it runs. SAME counts "
    "dilated kernels and never crops; onnxruntime 1.32 leaves dilations out of its padding, and "
    "shifts or refuses windows smaller than their stride. It refuses padding as wide as the "
    "kernel however dilated that is, and below opset 19 divides by the elements beyond the "
    "padding as well. "
)
_FLOAT = (
    "onnxruntime 1.31 adds dequantized values in float32: 1 LSB different in up to 1 of 100 "
    "results where sx / (sy * n) makes exact midpoints (one scale on both sides, tenths, powers of "
    "two), in 0 of 140,000 elsewhere; each is a midpoint within the error of its sum."
)
_FIRST = ("kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad")

AVERAGE_POOL = Row(
    name="AveragePool",
    onnx=(
        OnnxOp(
            name="AveragePool",
            defaults={"dilations": 1, "count_include_pad": False},
            later={"dilations": 19},
            first=_FIRST,
        ),
    ),
    flow=Flow.AVERAGE,
    attributes=PoolAttrs,
    compute=_average_pool,
    contract=_average_contract,
    check=_check_pool,
    known=_fit_pool_windows,
    qnn="avg_pool{rank}d",
    tvm="nn.avg_pool{rank}d",
    numerics=_MEAN + _WINDOWS + _FLOAT,
)
_PIXELS_AVERAGED = _over_pixels("ReduceMean")
GLOBAL_AVERAGE_POOL = Row(
    name="GlobalAveragePool",
    onnx=(OnnxOp(name="GlobalAveragePool"),),
    flow=Flow.AVERAGE,
    attributes=NoAttributes,
    body=_PIXELS_AVERAGED,
    compute=computed(_PIXELS_AVERAGED),
    contract=contract_of_step(_PIXELS_AVERAGED),
    check=_check_global,
    qnn="mean",
    tvm="mean",
    numerics=_MEAN + _FLOAT,
)
MAX_POOL = Row(
    name="MaxPool",
    onnx=(
        OnnxOp(
            name="MaxPool",
            defaults={"count_include_pad": False},
            later={"count_include_pad": 0},
            first=_FIRST,
        ),
    ),
    flow=Flow.MOVE,
    attributes=PoolAttrs,
    compute=_max_pool,
    contract=moved(_max_pool),
    check=_check_pool,
    known=_fit_pool_windows,
    tvm="nn.max_pool{rank}d",
    numerics="The largest stored value of every window; padding never wins. Exact. A float window "
    "of nothing but padding is -inf; onnxruntime 1.32 yields the lowest finite number. "
    + _WINDOWS.strip()
    + NAN_WINS,
)
_LARGEST_PIXELS = _over_pixels("ReduceMax")
GLOBAL_MAX_POOL = Row(
    name="GlobalMaxPool",
    onnx=(OnnxOp(name="GlobalMaxPool"),),
    flow=Flow.MOVE,
    attributes=NoAttributes,
    body=_LARGEST_PIXELS,
    compute=computed(_LARGEST_PIXELS),
    contract=contract_of_step(_LARGEST_PIXELS),
    check=_check_global,
    tvm="max",
    numerics="The largest stored value over the spatial axes. Exact." + NAN_WINS,
)

GLOBAL_POOLS = (GLOBAL_AVERAGE_POOL, GLOBAL_MAX_POOL)
"""Pools with one window, which are reductions of the spatial axes."""

OPERATORS = (AVERAGE_POOL, GLOBAL_AVERAGE_POOL, MAX_POOL, GLOBAL_MAX_POOL)
