"""qnn.dynamic_dense, in blocks too, and qnn.dynamic_conv: data are quantized while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops.dynamic import LAST_OF_BLOCK, SMALLEST
from qdqbridge.tvm.qnn.dialect import convolution
from qdqbridge.tvm.qnn.dialect.arithmetic import BLOCK, Prim, entry, fenced, stage, tirx
from qdqbridge.tvm.qnn.dialect.context import Attribute, CallContext, QnnOp, ResultType
from qdqbridge.tvm.qnn.dialect.convolution import (
    ConvolutionWindow,
    correlation,
    inferred,
    operand_shapes,
    result_sizes,
    weight_of,
    window_attributes,
    window_of,
)
from qdqbridge.tvm.qnn.dialect.dense import (
    OUT_DTYPE,
    centred,
    centred_weight,
    expect_rows,
    padded_codes,
)
from qdqbridge.tvm.qnn.ranges import is_code

_LAST = 255
"""The last code of the type that activations are quantized to."""


def _infer_dynamic_dense(context: CallContext) -> ResultType:
    context.expect_dtype(0, "float32")
    if not is_code(context.dtype(1)):
        context.fail(f"weight has dtype {context.dtype(1)}", "give an 8- or 16-bit integer")
    x, w = expect_rows(context)
    context.expect_params(3, 2, w[0], what="units")
    return ResultType.of([*x[:-1], w[0]], "float32")


def _lower_dynamic_dense(context: CallContext) -> Any:
    zero_points, rows = context.vector(2), bool(context.attr("rows"))
    shifted = bool(zero_points.any())

    def dynamic_dense(
        x: te.Tensor, w: te.Tensor, scale: te.Tensor, last: te.Tensor, *zero_point: te.Tensor
    ) -> te.Tensor:
        step, place = _te_dynamic_params(x, last, rows=rows)
        data = _centred_codes(x, step, place, rows=rows)
        weight = centred_weight(w, zero_point[0]) if shifted else w
        k = te.reduce_axis((0, w.shape[1]), name="k")

        def element(*i: Prim) -> Prim:
            product = data(*i[:-1], k.var).astype("int32") * weight(i[-1], k.var).astype("int32")
            return te.sum(product, axis=k)

        total = stage([*x.shape[:-1], w.shape[0]], element, name=BLOCK)

        def real(*i: Prim) -> Prim:
            factor = step(*_parameter_index(i, rows=rows)) * entry(scale, i, len(i) - 1)
            return total(*i).astype("float32") * factor

        return stage(total.shape, real, name="real")

    scale, last = context.const(context.vector(3), "float32"), context.const([_LAST], "float32")
    args = [context.args[0], context.args[1], scale, last]
    args += [context.const(zero_points, "int32")] if shifted else []
    blocks = ("lowest", "highest", BLOCK)
    return context.reduce_te("qnn_dynamic_dense", dynamic_dense, args, blocks=blocks)


def _centred_codes(x: te.Tensor, step: te.Tensor, place: te.Tensor, *, rows: bool) -> te.Tensor:
    """Returns what data are rounded to, less the zero point, as int16."""

    def code(*i: Prim) -> Prim:
        at = _parameter_index(i, rows=rows)
        value = tirx.nearbyint(x(*i) / step(*at)) + place(*at)
        # The cast of a NaN is whatever the processor gives.
        value = tirx.Select(tirx.isnan(value), tirx.const(0.0, "float32"), value)
        top = tirx.const(float(_LAST), "float32")
        bounded = tirx.max(tirx.min(value, top), tirx.const(0.0, "float32"))
        return (bounded - place(*at)).astype("int32").astype("int16")

    return stage(x.shape, code, name="codes")


def _parameter_index(indices: Any, *, rows: bool) -> Any:
    """Returns where the parameters of an element of data, or of a result, are."""
    return indices[:-1] if rows else (0,)


def _te_dynamic_params(x: te.Tensor, last: te.Tensor, *, rows: bool) -> tuple[te.Tensor, te.Tensor]:
    """Returns scale and zero point, both float32, of the whole tensor or of every row."""
    shape = x.shape[:-1] if rows else [1]
    zero = tirx.const(0.0, "float32")

    def extreme(name: str, choose: Any, pick: Any) -> te.Tensor:
        axes = [te.reduce_axis((0, extent)) for extent in (x.shape[-1:] if rows else x.shape)]

        def element(*i: Prim) -> Prim:
            at = (*i, *axes) if rows else axes
            value = x(*at)
            return choose(tirx.Select(tirx.isnan(value), zero, value), axis=axes)

        found = stage(shape, element, name=name)
        return stage(shape, lambda *i: pick(found(*i), zero), name=f"{name}_and_zero")

    low, high = extreme("lowest", te.min, tirx.min), extreme("highest", te.max, tirx.max)

    def step(*i: Prim) -> Prim:
        # 255 is an operand and no constant of the code, so that no compiler makes a multiplication
        # of the division, which would round otherwise.
        span = (high(*i) - low(*i)) / last[0]
        return tirx.Select(high(*i) <= low(*i), tirx.const(1.0, "float32"), span)

    scale = stage(shape, step, name="scale")

    def place(*i: Prim) -> Prim:
        value, top = zero - low(*i) / scale(*i), tirx.const(float(_LAST), "float32")
        bounded = tirx.min(tirx.max(value, zero), top)
        return tirx.nearbyint(tirx.Select(tirx.isnan(value), top, bounded))

    return scale, stage(shape, place, name="zero_point")


# ---- convolutions -------------------------------------------------------------------------------


def _conv_window(context: CallContext, rank: int) -> ConvolutionWindow:
    context.expect_dtype(0, "float32")
    if not is_code(context.dtype(1)):
        context.fail(f"weight has dtype {context.dtype(1)}", "give an 8- or 16-bit integer")
    return window_of(context, rank, "int32", transposed=False)


def _infer_conv(rank: int) -> Any:
    def infer(context: CallContext) -> ResultType:
        return inferred(context, _conv_window(context, rank), 3, 2, "float32")

    return infer


def _lower_conv(rank: int) -> Any:
    def lower(context: CallContext) -> Any:
        window = _conv_window(context, rank)
        shape, stored = operand_shapes(context, window)
        weight = weight_of(context, shape[1], stored, window.groups)
        zero_points = context.vector(2)
        shifted = bool(zero_points.any())
        pads = [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)]
        channel_axis = window.data.stored(range(rank + 2)).index(1)

        def dynamic_conv(
            x: te.Tensor, w: te.Tensor, scale: te.Tensor, last: te.Tensor, none: te.Tensor,
            *zero_point: te.Tensor,
        ) -> te.Tensor:  # fmt: skip
            step, place = _te_dynamic_params(x, last, rows=False)
            codes = _centred_codes(x, step, place, rows=False)
            data = padded_codes(codes, none, window.data.stored(pads), "int16")
            kernel = w
            if shifted:
                kernel = convolution.centred_weight(w, zero_point[0], weight, window.kernel)

            def at(channel: Prim, source: Prim, taps: Sequence[Prim]) -> Prim:
                return kernel(*window.kernel.stored([*weight.index(channel, source), *taps]))

            sizes = result_sizes(window.data.logical(x.shape)[2:], window, weight.kernel)
            extents = (weight.out, weight.per_group, *weight.kernel)
            total = correlation(data, at, extents, window, sizes)

            def real(*i: Prim) -> Prim:
                return total(*i).astype("float32") * (step(0) * entry(scale, i, channel_axis))

            return stage(total.shape, real, name="real")

        scale, last = context.const(context.vector(3), "float32"), context.const([_LAST], "float32")
        args = [context.args[0], context.args[1], scale, last, context.const([0], "int32")]
        args += [context.const(zero_points, "int32")] if shifted else []
        blocks = ("lowest", "highest", BLOCK)
        return context.reduce_te(f"qnn_dynamic_conv{rank}d", dynamic_conv, args, blocks=blocks)

    return lower


def _conv(rank: int) -> QnnOp:
    attributes = window_attributes(rank, transposed=False)
    return QnnOp(
        f"qnn.dynamic_conv{rank}d",
        ("data", "weight", "kernel_zero_point", "kernel_scale"),
        tuple(attribute for attribute in attributes if attribute is not OUT_DTYPE),
        _infer_conv(rank),
        _lower_conv(rank),
        "data is quantized to uint8 by its extremes and 0; the exact integer sum of (x - zx)(w - "
        "zw) times both scales, float32",
    )


def _infer_blocks(context: CallContext) -> ResultType:
    kind = context.expect_dtype(0, "float32", "float16")
    if not is_code(context.dtype(1)):
        context.fail(f"weight has dtype {context.dtype(1)}", "give an 8-bit integer")
    x, w = expect_rows(context)
    size = context.attr("block_size")
    if size < 1 or not isinstance(w[1], int):
        context.fail(f"block_size is {size} for rows of {w[1]}", "give a known number above 0")
    for index in (2, 3):
        if len(context.shape(index)) == 2:
            context.expect_equal(context.shape(index)[0], w[0], "units")
            context.expect_equal(context.shape(index)[1], -(-w[1] // size), "blocks")
    return ResultType.of([*x[:-1], w[0]], kind)


def _lower_blocks(context: CallContext) -> Any:
    size, kind = context.attr("block_size"), context.dtype(0)
    units, inner = (int(extent) for extent in context.shape(1))
    blocks = -(-inner // size)

    def spread(index: int, dtype: str) -> Any:
        """Returns scales or zero points of every block."""
        array = context.constant(index)
        array = array if array.ndim == 2 else array.reshape(-1, 1)
        return context.const(np.broadcast_to(array, (units, blocks)).reshape(-1), dtype)

    def dynamic_block_dense(
        x: te.Tensor, w: te.Tensor, zeros: te.Tensor, scales: te.Tensor, last: te.Tensor,
        zero: te.Tensor,
    ) -> te.Tensor:  # fmt: skip
        rows = x.shape[:-1]
        axis, terms = (te.reduce_axis((0, size), name=name) for name in ("i", "k"))

        def magnitude(*i: Prim) -> Prim:
            """As an integer: what is not a number is larger than infinity."""
            place = i[-1] * size + axis
            # A Select reads both sides: behind the end of a row it reads inside, and counts as 0.
            value = x(*i[:-1], tirx.min(place, inner - 1)).astype("float32")
            bits = tirx.bitwise_and(tirx.reinterpret("int32", value), 0x7FFFFFFF)
            return te.max(tirx.Select(place < inner, bits, 0), axis=axis)

        top = stage([*rows, blocks], magnitude, name="largest")

        def usual(*i: Prim) -> Prim:
            real = tirx.reinterpret("float32", top(*i))
            return tirx.all(real >= SMALLEST, real < float("inf"))

        def safe(*i: Prim) -> Prim:
            real = tirx.reinterpret("float32", top(*i))
            return tirx.Select(usual(*i), real, tirx.const(1.0, "float32"))

        def step(*i: Prim) -> Prim:
            real = tirx.reinterpret("float32", top(*i))
            other = tirx.Select(
                real < SMALLEST, tirx.const(0.0, "float32"), tirx.const(float("nan"), "float32")
            )
            return tirx.Select(usual(*i), safe(*i) / last[0], other)

        steps = stage(top.shape, step, name="scale")
        inverse = stage(top.shape, lambda *i: last[0] / safe(*i), name="inverse")

        def code(*i: Prim) -> Prim:
            at = (*i[:-1], i[-1] // size)
            value = tirx.nearbyint(x(*i).astype("float32") * inverse(*at))
            value = tirx.Select(usual(*at), value, tirx.const(0.0, "float32"))
            return value.astype("int32").astype("int16")

        codes = stage(x.shape, code, name="codes")
        weight = stage(
            w.shape,
            lambda u, k: centred(w(u, k), zeros[u * blocks + k // size], str(w.dtype)),
            name="centred_weight",
        )

        def element(*i: Prim) -> Prim:
            """The sum of one block; behind the end of a row nothing is added."""
            place = i[-1] * size + terms
            inside = tirx.min(place, inner - 1)
            product = codes(*i[:-2], inside).astype("int32") * weight(i[-2], inside).astype("int32")
            return te.sum(tirx.Select(place < inner, product, 0), axis=terms)

        total = stage([*rows, units, blocks], element, name=BLOCK)
        block = te.reduce_axis((0, blocks), name="block")

        def real(*i: Prim) -> Prim:
            sums = total(*i, block).astype("float32") * steps(*i[:-1], block)
            # Without the fence LLVM would make one FMA of the product and the sum.
            return te.sum(fenced(sums * scales[i[-1] * blocks + block], zero), axis=block)

        whole = stage([*rows, units], real, name="real")
        if kind == "float32":
            return whole
        return stage(whole.shape, lambda *i: whole(*i).astype(kind), name="rounded")

    args = [context.args[0], context.args[1], spread(2, "int32"), spread(3, "float32")]
    args += [context.const([LAST_OF_BLOCK], "float32"), context.fence()]
    names = ("largest", BLOCK, "real")
    return context.reduce_te("qnn_dynamic_block_dense", dynamic_block_dense, args, blocks=names)


OPS = (
    *map(_conv, (1, 2, 3)),
    QnnOp(
        "qnn.dynamic_block_dense",
        ("data", "weight", "kernel_zero_point", "kernel_scale"),
        (Attribute("block_size", 32, "neighbours of a row of data that share a scale"),),
        _infer_blocks,
        _lower_blocks,
        "data[..., K] is quantized to int8, block by block by the largest magnitude; exact integer "
        "products with weight[units, K], times both scales, added in float32, in the type of data",
    ),
    QnnOp(
        "qnn.dynamic_dense",
        ("data", "weight", "kernel_zero_point", "kernel_scale"),
        (Attribute("rows", False, "every row of data has a scale and zero point of its own"),),
        _infer_dynamic_dense,
        _lower_dynamic_dense,
        "data[..., K] is quantized to uint8 by its extremes and 0; the exact integer product with "
        "weight[units, K] times both scales, float32",
    ),
)
