"""TFLite's pools, reductions, normalizations and resizes; Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.counterparts import RESIZE_PLACES, Counterpart, Family, of_families
from qdqbridge.tflite_io.operators.products import (
    channels_first,
    channels_last,
    per_axis,
    same_or_valid,
)
from qdqbridge.tflite_io.schema import Op

# ---- TFLite's pools, reductions, normalizations and resizes --------------------------------------


def pool(op_type: str) -> Row:
    """Returns the row of a 2-D pool."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        x = channels_first(c, c.real(op.inputs[0]), 4)
        kernel, padding = _pool_filter_size(c, op), same_or_valid(op)
        result = c.to.node(
            op_type, [x], label=c.label(op), kernel_shape=kernel, auto_pad=padding,
            strides=per_axis(op, "Stride", 4),
        )  # fmt: skip
        kind = int(op.option("FusedActivationFunction"))
        c.put(op, channels_last(c, c.activated(result, op, kind), 4))

    return convert


def _pool_filter_size(c: SubgraphConversion, op: Op) -> list[int]:
    """Returns the extents of a pool's window, which fits into an image that is not padded."""
    window = [int(op.option("FilterHeight")), int(op.option("FilterWidth"))]
    for extent, size in zip(c.shape(op.inputs[0])[1:-1], window, strict=True):
        if size < 1 or (same_or_valid(op) == "VALID" and 0 <= extent < size):
            raise ValueError(f"its window of {size} lies on an image of {extent}")
    return window


def reduction(op_type: str) -> Row:
    """Returns the row of a reduction; the second operand lists its axes."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        result = c.to.node(
            op_type, [c.real(op.inputs[0]), _tflite_reduce_axes(c, op)], label=c.label(op),
            keepdims=int(op.option("KeepDims", False)), noop_with_empty_axes=1,
        )  # fmt: skip
        c.put(op, result)

    return convert


def _tflite_reduce_axes(c: SubgraphConversion, op: Op) -> str:
    """Returns the axes, each once and in order."""
    rank = max(c.rank(op.inputs[0]), 1)
    axes = sorted({axis % rank for axis in c.numbers(op, 1)})
    return c.to.constant(np.asarray(axes, np.int64))


def logical_reduction(op_type: str) -> Row:
    """Returns the row of REDUCE_ANY and REDUCE_ALL, as extremes of integers."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        x = c.cast(c.stored(op.inputs[0]), DType.INT32)
        found = c.to.node(
            op_type, [x, _tflite_reduce_axes(c, op)], label=c.label(op),
            keepdims=int(op.option("KeepDims", False)), noop_with_empty_axes=1,
        )  # fmt: skip
        c.put_stored(op, c.cast(found, DType.BOOL))

    return convert


def extreme_index(op_type: str) -> Row:
    """Returns the row of ARG_MAX and ARG_MIN."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        axis = c.numbers(op, 1)[0]
        found = c.to.node(op_type, [c.real(op.inputs[0])], label=c.label(op), axis=axis, keepdims=0)
        kind = c.dtype(c.tensor(op.outputs[0]))
        c.put_stored(op, found if kind is DType.INT64 else c.cast(found, kind))

    return convert


def softmax(row: Counterpart) -> Row:
    """Returns the row of a softmax over the last axis; SOFTMAX is one of ``beta · x``."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        x = c.real(op.inputs[0])
        beta = float(op.option("Beta", 1.0)) if row.options == "SoftmaxOptions" else 1.0
        if beta != 1.0:
            x = c.to.node("Mul", [x, c.to.constant(np.float32(beta))], label=c.label(op))
        c.put(op, c.to.node(row.onnx, [x], label=c.label(op), axis=-1))

    return convert


_NORM_EPSILON = 1e-6


def unit_length(c: SubgraphConversion, op: Op) -> None:
    """L2_NORMALIZATION over the last axis: ``x / sqrt(max(Σ x², 1e-6))``."""
    x, axes = c.real(op.inputs[0]), c.to.constant(np.asarray([-1], np.int64))
    total = c.to.node("ReduceSumSquare", [x, axes], keepdims=1)
    floor = c.to.node("Max", [total, c.to.constant(np.float32(_NORM_EPSILON))])
    result = c.to.node("Div", [x, c.to.node("Sqrt", [floor])], label=c.label(op))
    c.put(op, c.activated(result, op, int(op.option("FusedActivationFunction"))))


def l2_pool(c: SubgraphConversion, op: Op) -> None:
    """L2_POOL_2D: the root of the mean of squares."""
    x = channels_first(c, c.real(op.inputs[0]), 4)
    kernel = _pool_filter_size(c, op)
    mean = c.to.node(
        "AveragePool", [c.to.node("Mul", [x, x])], kernel_shape=kernel,
        auto_pad=same_or_valid(op), strides=per_axis(op, "Stride", 4),
    )  # fmt: skip
    result = c.to.node("Sqrt", [mean], label=c.label(op))
    kind = int(op.option("FusedActivationFunction"))
    c.put(op, channels_last(c, c.activated(result, op, kind), 4))


def local_response(c: SubgraphConversion, op: Op) -> None:
    """LOCAL_RESPONSE_NORMALIZATION: ``x / (bias + alpha · Σ x²)^beta`` over 2·radius+1 channels."""
    size = 2 * int(op.option("Radius")) + 1
    x = channels_first(c, c.real(op.inputs[0]), 4)
    result = c.to.node(
        "LRN", [x], label=c.label(op), size=size, alpha=float(op.option("Alpha")) * size,
        beta=float(op.option("Beta")), bias=float(op.option("Bias")),
    )  # fmt: skip
    c.put(op, channels_last(c, result, 4))


def resize(mode: str) -> Row:
    """Returns the row of RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR.

    TFLite's nearest takes ``floor((x + ½) · scale)`` with half-pixel centers, ``round(x · scale)``
    with aligned corners, else ``floor(x · scale)``.
    """

    def convert(c: SubgraphConversion, op: Op) -> None:
        x = channels_first(c, c.real(op.inputs[0]), 4)
        corners = bool(op.option("AlignCorners", False))
        centers = bool(op.option("HalfPixelCenters", False)) and not corners
        place, rounding = RESIZE_PLACES[corners, centers]
        more = {"nearest_mode": rounding} if mode == "nearest" else {}
        result = c.to.node(
            "Resize", [x, *_tfl_resize_operands(c, op, x)], label=c.label(op), mode=mode,
            coordinate_transformation_mode=place, **more,
        )  # fmt: skip
        c.put(op, channels_last(c, result, 4))

    return convert


def _tfl_resize_operands(c: SubgraphConversion, op: Op, x: str) -> list[str]:
    """Returns ONNX's operands that say the result's extents: whole factors, or four sizes."""
    batch, *spatial, channels = c.shape(op.inputs[0])
    if c.array(op.inputs[1]) is not None:
        sizes = c.numbers(op, 1)
        if min(sizes) < 1:
            raise ValueError(f"it resizes to {sizes}")
        if all(0 < old <= new and new % old == 0 for old, new in zip(spatial, sizes, strict=True)):
            factors = [new // old for old, new in zip(spatial, sizes, strict=True)]
            return ["", c.to.constant(np.asarray([1, 1, *factors], np.float32))]
        if batch > 0 and channels > 0:
            return ["", "", c.to.constant(np.asarray([batch, channels, *sizes], np.int64))]
    kept = c.to.node("Shape", [x], start=0, end=2)
    return ["", "", c.to.node("Concat", [kept, c.long(op, 1)], axis=0)]


def cumulated(c: SubgraphConversion, op: Op) -> None:
    """CUMSUM."""
    if c.dtype(c.at(op, 0)) is DType.INT8:
        raise UnknownForm("it sums quantized numbers")
    result = c.to.node(
        "CumSum", [c.real(op.inputs[0]), c.long(op, 1)], label=c.label(op),
        exclusive=int(op.option("Exclusive", False)), reverse=int(op.option("Reverse", False)),
    )  # fmt: skip
    c.put(op, result)


# ---- Fourier transforms; a complex tensor is a real one with a last axis of two more -------------


def real_transform(c: SubgraphConversion, op: Op) -> None:
    """RFFT2D over the last two axes, padded or cut to the lengths; half of the last one."""
    rows, columns = c.numbers(op, 1)
    rank, x = c.rank(op.inputs[0]), c.real(op.inputs[0])
    given = c.shape(op.inputs[0])[-2:]
    for axis, (extent, length) in enumerate(zip(given, (rows, columns), strict=True), rank - 2):
        if extent < 0:
            raise UnknownForm("it transforms an open extent")
        x = _fitted(c, x, axis, extent, length, rank)
    one = c.to.constant(np.asarray([rank], np.int64))
    x = c.to.node("Unsqueeze", [x, one])
    last = c.to.constant(np.int64(rank - 1))
    x = c.to.node("DFT", [x, "", last], label=c.label(op), onesided=1)
    if rows > 1:
        x = c.to.node("DFT", [x, "", c.to.constant(np.int64(rank - 2))], label=c.label(op))
    c.put_stored(op, x)


def _fitted(c: SubgraphConversion, x: str, axis: int, extent: int, length: int, rank: int) -> str:
    if extent == length:
        return x
    if extent > length:
        bounds = [c.to.constant(np.asarray([n], np.int64)) for n in (0, length, axis)]
        return c.to.node("Slice", [x, *bounds])
    amounts = np.zeros(2 * rank, np.int64)
    amounts[rank + axis] = length - extent
    return c.to.node("Pad", [x, c.to.constant(amounts)])


def part(index: int) -> Row:
    """Returns the row of REAL and IMAG."""

    def convert(c: SubgraphConversion, op: Op) -> None:
        place = c.to.constant(np.int64(index))
        x = c.stored(op.inputs[0])
        c.put_stored(op, c.to.node("Gather", [x, place], label=c.label(op), axis=-1))

    return convert


def magnitude(c: SubgraphConversion, op: Op) -> None:
    """COMPLEX_ABS."""
    axes = c.to.constant(np.asarray([-1], np.int64))
    x = c.stored(op.inputs[0])
    c.put_stored(op, c.to.node("ReduceL2", [x, axes], label=c.label(op), keepdims=0))


ROWS: Mapping[str, Row] = {
    **{row.tflite: extreme_index(row.onnx) for row in of_families(Family.INDEX)},
    **{row.tflite: pool(row.onnx) for row in of_families(Family.POOL)},
    **{row.tflite: reduction(row.onnx) for row in of_families(Family.REDUCTION)},
    **{row.tflite: softmax(row) for row in of_families(Family.SOFTMAX)},
    "CUMSUM": cumulated,
    "L2_NORMALIZATION": unit_length,
    "L2_POOL_2D": l2_pool,
    "LOCAL_RESPONSE_NORMALIZATION": local_response,
    "REDUCE_ALL": logical_reduction("ReduceMin"),
    "REDUCE_ANY": logical_reduction("ReduceMax"),
    "REDUCE_PROD": reduction("ReduceProd"),
    "RESIZE_BILINEAR": resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": resize("nearest"),
    "COMPLEX_ABS": magnitude,
    "IMAG": part(1),
    "REAL": part(0),
    "RFFT2D": real_transform,
}
