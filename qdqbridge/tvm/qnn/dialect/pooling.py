"""qnn.avg_pool1d, avg_pool2d, avg_pool3d, qnn.mean and qnn.sum: exact sums, one multiplier."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.ops.shapes import covered, elements_read, laid_along, span, window_count
from qdqbridge.tvm.qnn.dialect.arithmetic import BLOCK, Prim, saturated, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import (
    REQUIRED,
    SPATIAL,
    Attribute,
    CallContext,
    Extent,
    QnnOp,
    ResultType,
    data_layout,
)
from qdqbridge.tvm.qnn.dialect.convolution import padding, spread
from qdqbridge.tvm.qnn.dialect.dense import centred, padded_codes
from qdqbridge.tvm.qnn.dialect.unary import FIVE
from qdqbridge.tvm.qnn.ranges import accumulator_dtype, is_code, magnitude

OUT_DTYPE = Attribute("out_dtype", "", "type of the result; empty takes the data's; or float32")
Four = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _result_dtype(context: CallContext) -> str:
    dtype = context.dtype(0)
    out = context.attr("out_dtype") or dtype
    if not is_code(dtype) or not (is_code(out) or out == "float32"):
        context.fail(
            f"data is {dtype}, out_dtype {out}",
            "give an 8- or 16-bit integer (or out_dtype float32)",
        )
    context.expect_params(1, 2)
    context.expect_params(3, 4)
    return out


def _multiplier(context: CallContext, count: Any) -> NDArray[np.float32]:
    """Returns ``f32(f64(sx) / (f64(sy) * n))``, or ``f32(f64(sx) / n)`` for a float result."""
    number = np.asarray(count, np.float64)
    scale = context.vector(1).astype(np.float64)
    if _result_dtype(context) == "float32":
        return (scale / number).astype(np.float32)
    return (scale / (context.vector(3).astype(np.float64) * number)).astype(np.float32)


def _finished(total: Prim, multiplier: Prim, zero_point: Prim, out: str) -> Prim:
    scaled = total.astype("float32") * multiplier
    if out == "float32":
        return scaled
    return saturated(tirx.nearbyint(scaled), zero_point, out, nan=False)


def _sum_dtype(context: CallContext, count: int) -> str:
    return accumulator_dtype(count, magnitude(context.dtype(0), context.vector(2)), 1)


def _qnn_pool_window(context: CallContext, rank: int) -> Four:
    """Returns pool size, strides, dilation and the padding, begins first."""
    begin, end = padding(context, rank)
    size, strides, dilation = (
        spread(context, n, rank) for n in ("pool_size", "strides", "dilation")
    )
    return size, strides, dilation, begin + end


def _counts(context: CallContext, extents: Sequence[Extent], window: Four) -> list[Extent]:
    """Returns the number of windows along every spatial axis (ONNX's rule for ceil_mode)."""
    size, strides, dilation, pads = window
    rank, ceil = len(size), bool(context.attr("ceil_mode"))
    result: list[Extent] = []
    for i, extent in enumerate(extents):
        room = extent + pads[i] + pads[i + rank] - span(size[i], dilation[i])
        number = window_count(room + (strides[i] - 1) * ceil, strides[i])
        # ONNX drops a window that would start in the padding behind the data, as onnxruntime does.
        if ceil and isinstance(number, int):
            number -= int((number - 1) * strides[i] >= extent + pads[i])
        elif ceil and _may_drop(window, i):
            start = (number - 1) * strides[i]
            number = tirx.Select(start >= extent + pads[i], number - 1, number)
        result.append(number)
    return result


def _may_drop(window: Four, axis: int) -> bool:
    """True where a last window of ``ceil_mode`` may start behind the data and so be left out."""
    size, strides, dilation, pads = window
    return pads[len(size) + axis] + strides[axis] > span(size[axis], dilation[axis])


def _infer_pool(rank: int) -> Any:
    def infer(context: CallContext) -> ResultType:
        out, layout = _result_dtype(context), data_layout(context, "layout", rank)
        shape = layout.logical(context.expect_rank(0, rank + 2))
        sizes = _counts(context, shape[2:], _qnn_pool_window(context, rank))
        if any(isinstance(size, int) and size < 1 for size in sizes):
            context.fail(f"the window is larger than the padded input {shape[2:]}")
        return ResultType.of(layout.stored([*shape[:2], *sizes]), out)

    return infer


def _populations(
    context: CallContext, extents: Sequence[Extent], window: Four
) -> NDArray[np.int64] | None:
    """Returns how many elements each window averages over, or one number where all agree.

    Returns:
        None where that depends on extents that only the run knows.
    """
    size, strides, dilation, pads = window
    rank, whole = len(size), int(np.prod(size))
    if not any(pads) and not context.attr("ceil_mode"):
        return np.asarray([whole])
    if not all(isinstance(extent, int) for extent in extents):
        return None
    total = np.ones([1] * rank, np.int64)
    for i, number in enumerate(_counts(context, extents, window)):
        along = elements_read(
            number, extents[i], strides[i], size[i], dilation[i], (pads[i], pads[i + rank]),
            with_padding=bool(context.attr("count_include_pad")),
        )  # fmt: skip
        total = total * laid_along(along, i, rank)
    return np.asarray([total.flat[0]]) if (total == total.flat[0]).all() else total


def _population(
    context: CallContext, extents: Sequence[Prim], window: Four, pixel: Sequence[Prim]
) -> Prim:
    """Returns how many elements one window averages over, from the extents of the run."""
    size, strides, dilation, pads = window
    total: Prim = tirx.const(1, "int64")
    for i, extent in enumerate(extents):
        low, high = pads[i], extent + pads[i]
        if context.attr("count_include_pad"):
            low, high = 0, high + pads[i + len(size)]
        # Places count from the begin of the padding. What counts lies between ``low`` and ``high``;
        # the taps among these are counted in closed form, since a loop over a window would be run
        # for every result.
        start = pixel[i] * strides[i]
        first = tirx.max(tirx.floordiv(low - start + dilation[i] - 1, dilation[i]), 0)
        last = tirx.min(tirx.floordiv(high - 1 - start, dilation[i]), size[i] - 1)
        total = total * (last - first + 1)
    return total


def _lower_pool(rank: int) -> Any:
    def lower(context: CallContext) -> Any:
        window, out = _qnn_pool_window(context, rank), _result_dtype(context)
        size, strides, dilation, _ = window
        layout = data_layout(context, "layout", rank)
        extents = layout.logical(context.shape(0))[2:]
        counts = _populations(context, extents, window)
        multiplier = _ratio(context) if counts is None else _multiplier(context, counts)
        uniform, dtype = multiplier.size == 1, _sum_dtype(context, int(np.prod(size)))

        def pool(x: te.Tensor, zx: te.Tensor, m: te.Tensor, zy: te.Tensor) -> te.Tensor:
            shape = [_int_or_symbolic(extent) for extent in layout.logical(x.shape)]
            sizes = _counts(context, shape[2:], window)
            ceil = bool(context.attr("ceil_mode"))
            reach = [(0, 0), (0, 0), *_reach(shape[2:], sizes, window, ceil=ceil)]
            data = padded_codes(x, zx, layout.stored(reach))
            taps = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(size)]

            def total(*i: Prim) -> Prim:
                batch, channel, *pixel = layout.logical(i)
                where = [v * strides[d] + taps[d].var * dilation[d] for d, v in enumerate(pixel)]
                code = data(*layout.stored([batch, channel, *where]))
                return te.sum(code.astype(dtype), axis=taps)

            def average(*i: Prim) -> Prim:
                pixel = layout.logical(i)[2:]
                if counts is None:
                    own = _averaging(m, _population(context, shape[2:], window, pixel))
                else:
                    own = m[0] if uniform else m(*pixel)
                return _finished(sums(*i), own, zy[0], out)

            sums = stage(layout.stored([*shape[:2], *sizes]), total, name=BLOCK)
            return stage(sums.shape, average, name="average")

        zeros = [context.const(context.vector(i), "int32") for i in (2, 4)]
        factor = context.const(multiplier, str(multiplier.dtype))
        args = [context.args[0], zeros[0], factor, zeros[1]]
        return context.reduce_te(f"qnn_avg_pool{rank}d", pool, args, inner=1)

    return lower


def _int_or_symbolic(extent: Any) -> Extent:
    return extent.value if isinstance(extent, tirx.IntImm) else extent


def _reach(
    extents: Sequence[Any], sizes: Sequence[Extent], window: Four, *, ceil: bool
) -> list[tuple[int, int]]:
    """Returns the padding, with its end moved as far as the last window reaches, or further."""
    size, strides, dilation, pads = window
    pairs: list[tuple[int, int]] = []
    for i, extent in enumerate(_int_or_symbolic(e) for e in extents):
        end = pads[i + len(size)]
        if isinstance(extent, int):
            wide = covered(sizes[i], strides[i], size[i], dilation[i])
            # The last window of ceil_mode reaches beyond the padding; what it reads there is the
            # zero point, which adds nothing to a centred sum.
            end = max(end, wide - extent - pads[i])
        # How far it reaches only the run knows: at most this.
        elif ceil:
            end += strides[i] - 1
        pairs.append((pads[i], end))
    return pairs


def _qnn_reduce_axes(context: CallContext) -> tuple[int, ...]:
    """Returns the reduced axes, sorted; none given means all."""
    rank, value = len(context.shape(0)), context.attr("axis")
    axes = (value,) if isinstance(value, int) else tuple(value) or tuple(range(rank))
    return tuple(sorted({context.normal_axis(axis, rank) for axis in axes}))


def _infer_reduce(context: CallContext) -> ResultType:
    out, shape, axes = _result_dtype(context), context.shape(0), _qnn_reduce_axes(context)
    keep = context.attr("keepdims")
    return ResultType.of(
        [1 if i in axes else e for i, e in enumerate(shape) if keep or i not in axes], out
    )


def _lower_reduce(*, mean: bool) -> Any:
    def lower(context: CallContext) -> Any:
        axes, out, keep = (
            _qnn_reduce_axes(context),
            _result_dtype(context),
            bool(context.attr("keepdims")),
        )
        shape = context.shape(0)
        reduced = [shape[axis] for axis in axes]
        opened = not all(isinstance(extent, int) for extent in reduced)
        count = 1 if opened else int(np.prod(reduced, dtype=np.int64))
        multiplier = (
            _ratio(context) if opened and mean else _multiplier(context, count if mean else 1)
        )
        # No bound of an open extent says that int32 holds the sum.
        dtype = "int64" if opened else _sum_dtype(context, count)

        def reduce(x: te.Tensor, zx: te.Tensor, m: te.Tensor, zy: te.Tensor) -> te.Tensor:
            if opened and mean:
                count = functools.reduce(operator.mul, (x.shape[axis] for axis in axes))
                ratio = m
                m = stage([1], lambda _: _averaging(ratio, count), name="multiplier")
            taps = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}

            def total(*i: Prim) -> Prim:
                rest = iter(i)
                where = [taps[d].var if d in taps else next(rest) for d in range(len(x.shape))]
                code = centred(x(*where), zx[0], str(x.dtype)).astype(dtype)
                return te.sum(code, axis=list(taps.values()))

            kept = [d for d in range(len(x.shape)) if d not in axes]
            sums = stage([x.shape[d] for d in kept] or [1], _any_rank(total, kept), name=BLOCK)

            def element(*i: Prim) -> Prim:
                where = [v for d, v in enumerate(i) if d in kept] if keep else list(i)
                return _finished(sums(*(where if kept else [0])), m[0], zy[0], out)

            result = [1 if d in axes else e for d, e in enumerate(x.shape) if keep or d in kept]
            return stage(result, element, name="reduce")

        zeros = [context.const(context.vector(i), "int32") for i in (2, 4)]
        factor = context.const(multiplier, str(multiplier.dtype))
        args = [context.args[0], zeros[0], factor, zeros[1]]
        return context.reduce_te("qnn_mean" if mean else "qnn_sum", reduce, args)

    return lower


def _ratio(context: CallContext) -> NDArray[np.float64]:
    """Returns the scale of the data, and that of the result (1 for a float one)."""
    scale = context.vector(1).astype(np.float64)[0]
    out = 1.0 if _result_dtype(context) == "float32" else context.vector(3).astype(np.float64)[0]
    return np.asarray([scale, out])


def _averaging(ratio: te.Tensor, count: Prim) -> Prim:
    """Returns :func:`_multiplier` of a number of elements that the run has."""
    return (ratio[0] / (ratio[1] * count.astype("float64"))).astype("float32")


def _any_rank(function: Any, kept: Sequence[int]) -> Any:
    """Returns ``function`` for a stage that keeps one dummy axis where no axis is left."""
    return function if kept else lambda *_: function()


def _pool_attributes(rank: int) -> tuple[Attribute, ...]:
    return (
        Attribute("pool_size", REQUIRED, "one per spatial axis"),
        Attribute("strides", [1] * rank, "one per spatial axis"),
        Attribute("padding", [0] * (2 * rank), "begins of all spatial axes, then ends"),
        Attribute("dilation", [1] * rank, "one per spatial axis"),
        Attribute("ceil_mode", False, "a last window may reach beyond the padding"),
        Attribute("count_include_pad", False, "whether padding counts"),
        Attribute("layout", f"NC{SPATIAL[rank]}", "channels first, or last (NHWC)"),
        OUT_DTYPE,
    )


_REDUCE = (
    Attribute("axis", [], "reduced axes; empty for all"),
    Attribute("keepdims", False, "whether reduced axes stay with extent 1"),
    OUT_DTYPE,
)
_DOC = "sat(rint(f32(S) * f32(sx / (sy * n))) + zy), S the exact sum of x - zx"

OPS = (
    *(
        QnnOp(
            f"qnn.avg_pool{rank}d",
            FIVE,
            _pool_attributes(rank),
            _infer_pool(rank),
            _lower_pool(rank),
            _DOC,
        )
        for rank in (1, 2, 3)
    ),
    QnnOp("qnn.mean", FIVE, _REDUCE, _infer_reduce, _lower_reduce(mean=True), _DOC),
    QnnOp("qnn.sum", FIVE, _REDUCE, _infer_reduce, _lower_reduce(mean=False), _DOC + ", n = 1"),
)
