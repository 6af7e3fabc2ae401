"""Pools without a row: LpPool, which TVM's importer pads otherwise, and MaxPool with indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te

from qdqbridge.core.ops.windows import extents, same_padding
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.onnx_io.codecs.windows import ResolvedWindow, window_of
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    wide,
)


def _power_pool(context: CompositionContext) -> Sequence[Expr]:
    """``(sum |x|^p)^(1/p)`` over every window, zeros around the data.

    Source: ONNX LpPool-22; p is an integer, 2 where it is left out.
    """
    kernel = context.onnx.ints("kernel_shape", ())
    x = wide(context, context.arg(0))
    shape = context.extents(x)
    spatial = shape[2:]
    if not all(isinstance(extent, int) for extent in spatial):
        raise NoRow("an extent of space is known at run time only")
    window = window_of(context.onnx, kernel)
    pads, strides, dilations = window.pads, window.strides, window.dilations
    if window.same:
        pads = _same_pads(window, spatial)
    out = extents(spatial, kernel, strides, dilations, pads, ceil_mode=_ceil_mode(context, window))

    def total(data: te.Tensor) -> Any:
        taps: list[Any] = [te.reduce_axis((0, size), name="tap") for size in kernel]

        def element(*at: Any) -> Any:
            places = [
                at[2 + i] * strides[i] + tap * dilations[i] - pads[i] for i, tap in enumerate(taps)
            ]
            within = tirx.all(*(
                test
                for place, size in zip(places, spatial, strict=True)
                for test in (place >= 0, place < size)
            ))  # fmt: skip
            zero = tirx.const(0.0, data.dtype)
            return te.sum(tirx.if_then_else(within, data(*at[:2], *places), zero), axis=taps)

        return te.compute([*data.shape[:2], *out], element, name="power_sums")

    power = context.onnx.int_("p", 2)
    sums = loops(context, "lp_pool", total, _powers(context, x, power))
    return [context.cast(_root(context, sums, power), context.dtype(context.arg(0)))]


def _same_pads(window: ResolvedWindow, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the pads of SAME_UPPER or SAME_LOWER; below 0 where strides leave elements over.

    onnxruntime (1.32) leaves out as many of the first elements then, halves rounded towards zero.
    """
    begins: list[int] = []
    ends: list[int] = []
    for size, covered, stride in zip(sizes, window.spans(), window.strides, strict=True):
        total = same_padding(size, covered, stride)
        begins.append(int((total if window.auto_pad == "SAME_UPPER" else total + 1) / 2))
        ends.append(total - begins[-1])
    return (*begins, *ends)


def _whole_power_pool(context: CompositionContext) -> Sequence[Expr]:
    """:func:`_power_pool` whose window is all of space."""
    x, power = wide(context, context.arg(0)), context.onnx.int_("p", 2)
    axes = list(range(2, context.rank(x)))
    sums = context("sum", _powers(context, x, power), axes, keepdims=True)
    return [context.cast(_root(context, sums, power), context.dtype(context.arg(0)))]


_MULTIPLIED = 8
"""Powers up to which factors are multiplied one by one."""


def _powers(context: CompositionContext, x: Expr, power: int) -> Expr:
    size = context("abs", x)
    if power == 1:
        return size
    if power > _MULTIPLIED:
        return context("power", size, context.number(power, x))
    product = size
    for _ in range(1, power):
        product = context("multiply", product, size)
    return product


def _root(context: CompositionContext, sums: Expr, power: int) -> Expr:
    if power == 1:
        return sums
    if power == 2:
        return context("sqrt", sums)
    exponent = 1 / power if context.dtype(sums) == "float64" else np.float32(1) / np.float32(power)
    return context("power", sums, context.number(exponent, sums))


def _largest_and_where(context: CompositionContext) -> Sequence[Expr]:
    """MaxPool that also gives where each largest element stands in the flattened operand.

    Of equal ones the first; ``storage_order`` 1 counts the first axis of space fastest.
    Source: ONNX MaxPool-22.
    """
    if not context.asks(1):
        raise NoRow("it has no indices")
    own = context.dtype(context.arg(0))
    x = (
        context.arg(0) if "float" in own else context.cast(context.arg(0), "float32")
    )  # of 8 bits: exact
    spatial = context.static(x)[2:]
    window = window_of(context.onnx, context.onnx.ints("kernel_shape", ()))
    kernel, pads, strides, dilations = window.kernel, window.pads, window.strides, window.dilations
    out = extents(spatial, kernel, strides, dilations, pads, ceil_mode=_ceil_mode(context, window))
    order = range(len(spatial))
    weights = _weights(spatial, order[::-1] if context.onnx.int_("storage_order", 0) else order)
    channels, image = context.static(x)[1], int(np.prod(spatial))

    def pool(data: te.Tensor) -> Any:
        taps: list[Any] = [te.reduce_axis((0, size), name="tap") for size in kernel]
        lowest = tirx.min_value(data.dtype)
        later = te.comm_reducer(
            lambda one, other: (
                tirx.if_then_else(other[1] > one[1], other[0], one[0]),
                tirx.if_then_else(other[1] > one[1], other[1], one[1]),
            ),
            lambda at, _: (tirx.const(0, at), lowest),
            name="first_largest",
        )

        def element(*at: Any) -> Any:
            places = [
                at[2 + i] * strides[i] + tap * dilations[i] - pads[i] for i, tap in enumerate(taps)
            ]
            ends = zip(places, spatial, strict=True)
            within = tirx.all(*(test for p, n in ends for test in (p >= 0, p < n)))
            flat = (at[0] * channels + at[1]) * image
            flat = flat + sum(p * weight for p, weight in zip(places, weights, strict=True))
            value = tirx.if_then_else(within, data(*at[:2], *places), lowest)
            return later((tirx.Cast("int64", flat), value), axis=taps)

        return list(te.compute([*data.shape[:2], *out], element, name="max_pool"))

    found = loops(context, "max_pool_with_indices", pool, x)
    value, place = (context.emitter.emit(relax.TupleGetItem(found, index)) for index in (1, 0))
    return [context.cast(value, own), place]


def _ceil_mode(context: CompositionContext, window: ResolvedWindow) -> bool:
    """SAME has a number of windows of its own."""
    return context.onnx.flag("ceil_mode") and not window.same


def _weights(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Returns how far elements lie apart along each axis; the last of ``order`` is the nearest."""
    weights, step = [0] * len(sizes), 1
    for axis in reversed(order):
        weights[axis], step = step, step * sizes[axis]
    return weights


POOLING: Mapping[str, Composition] = {
    "GlobalLpPool": _whole_power_pool, "LpPool": _power_pool, "MaxPool": _largest_and_where,
}  # fmt: skip
