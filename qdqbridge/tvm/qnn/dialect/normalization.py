"""qnn.layer_norm, rms_norm, instance_norm, group_norm and batch_norm.

Row statistics are exact integer sums; the rest is float64 per row and float32 per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.normalization import (
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    INSTANCES,
    LAYER_NORMALIZATION,
    OVER_ROWS,
    RMS_NORMALIZATION,
    NormalizedGroups,
    channel_groups,
)
from qdqbridge.tvm.qnn.dialect.arithmetic import (
    Prim,
    entry,
    fenced,
    kind_of,
    quantized,
    real,
    stage,
    tirx,
)
from qdqbridge.tvm.qnn.dialect.context import Attribute, CallContext, Extent, QnnOp, ResultType
from qdqbridge.tvm.qnn.dialect.elementwise import broadcast_indices
from qdqbridge.tvm.qnn.dialect.unary import OUT_DTYPE
from qdqbridge.tvm.qnn.ranges import accumulator_dtype, is_code, longest_row, magnitude

ELEVEN = (
    "data",
    "gamma",
    "beta",
    "input_scale",
    "input_zero_point",
    "gamma_scale",
    "gamma_zero_point",
    "beta_scale",
    "beta_zero_point",
    "output_scale",
    "output_zero_point",
)
Indices = Sequence[Prim]


def _layer(context: CallContext) -> NormalizedGroups:
    return NormalizedGroups(context.axis(len(context.shape(0))))


def _rms(context: CallContext) -> NormalizedGroups:
    return NormalizedGroups(context.axis(len(context.shape(0))), centred=False)


def _instance(context: CallContext) -> NormalizedGroups:
    del context
    return INSTANCES


def _group(context: CallContext) -> NormalizedGroups:
    groups, channels = context.attr("num_groups"), context.shape(0)[1]
    if groups < 1 or not isinstance(channels, int) or channels % groups:
        context.fail(f"{groups} groups do not divide {channels} channels")
    return channel_groups(groups)


def _norm_row_length(context: CallContext, rows: NormalizedGroups) -> int | None:
    """Returns the number of elements of a row; None where only the run knows it."""
    extents = context.shape(0)[rows.first :]
    if not all(isinstance(extent, int) for extent in extents):
        return None
    return int(np.prod(extents, dtype=np.int64)) // (rows.groups or 1)


def _norm_type_inference(decode: Callable[[CallContext], NormalizedGroups], least: int = 2) -> Any:
    def infer(context: CallContext) -> ResultType:
        shape, dtype = context.tensor(0)
        if len(shape) < least:
            context.fail(f"data has {len(shape)} axes", f"give it at least {least}")
        rows, out = decode(context), context.attr("out_dtype") or dtype
        if not is_code(dtype) or not is_code(out):
            context.fail(f"data is {dtype}, out_dtype {out}", "give 8- or 16-bit integers")
        count = _norm_row_length(context, rows)
        if count is not None and count > longest_row(dtype):
            context.fail(f"a row has {count} elements", "its squares overflow int64")
        for index in (1, 2):
            _check_affine(context, index, shape, rows)
        for pair in ((3, 4), (5, 6), (7, 8), (9, 10)):
            context.expect_params(*pair)
        return ResultType.of(shape, out)

    return infer


def _check_affine(
    context: CallContext, index: int, shape: list[Extent], rows: NormalizedGroups
) -> None:
    own, dtype = context.tensor(index)
    label = context.arguments[index]
    if dtype not in ("float32", "int32") and not is_code(dtype):
        context.fail(f"{label} has dtype {dtype}", "give float32, or 8-, 16- or 32-bit integers")
    if rows.channels:
        if len(own) != 1:
            context.fail(f"{label} has {len(own)} axes", "give one entry per channel")
        context.expect_equal(own[0], shape[1], f"{label} and channels")
        return
    if len(own) > len(shape):
        context.fail(f"{label} has more axes than data")
    for a, b in zip(reversed(own), reversed(shape), strict=False):
        if a != 1:
            context.expect_equal(a, b, f"{label} and data")


def _row_functions(rows: NormalizedGroups, x: te.Tensor) -> tuple[list[Any], Any, Any]:
    """Returns the shape of the statistics, ``taps(name) -> (axes, element)`` and ``row_of``."""
    inner = list(x.shape[rows.first :])
    share = int(x.shape[1]) // rows.groups if rows.groups else 0
    lead = [*x.shape[: rows.first], *([rows.groups] if rows.groups else [])]
    if rows.groups:
        inner[0] = share

    def taps(name: str) -> tuple[list[Any], Any]:
        axes = [te.reduce_axis((0, extent), name=f"{name}{d}") for d, extent in enumerate(inner)]

        def element(row: Indices) -> list[Prim]:
            where = [axis.var for axis in axes]
            if rows.groups:
                # The channels of a group are neighbours: they begin at as many as the groups before
                # it have.
                where[0] = row[-1] * share + where[0]
            return [*row[: rows.first], *where]

        return axes, element

    def row_of(i: Indices) -> list[Prim]:
        own = list(i[: rows.first])
        return [*own, tirx.floordiv(i[1], share)] if rows.groups else own

    return lead or [1], taps, row_of if lead else lambda _: [0]


def _lower_norm(name: str, decode: Callable[[CallContext], NormalizedGroups]) -> Any:
    def lower(context: CallContext) -> Any:
        rows, out = decode(context), context.attr("out_dtype") or context.dtype(0)
        count, largest = (
            _norm_row_length(context, rows),
            magnitude(context.dtype(0), context.vector(4)),
        )
        most = longest_row(context.dtype(0)) if count is None else count
        kinds = accumulator_dtype(most, largest, 1), accumulator_dtype(most, largest, largest)

        def norm(
            x: te.Tensor,
            gamma: te.Tensor,
            beta: te.Tensor,
            zx: te.Tensor,
            sg: te.Tensor,
            zg: te.Tensor,
            sb: te.Tensor,
            zb: te.Tensor,
            sy: te.Tensor,
            zy: te.Tensor,
            numbers: te.Tensor,
            zero: te.Tensor,
        ) -> te.Tensor:
            shape, taps, row_of = _row_functions(rows, x)

            def code(where: Indices) -> Prim:
                return x(*where).astype("int32") - zx[0]

            if count is None:
                numbers = _counted(numbers, x.shape[rows.first :], rows.groups or 1)
            mean, inverse = _statistics(rows, shape, taps, code, kinds, numbers, zero)

            def element(*i: Prim) -> Prim:
                t = code(i).astype("float32")
                if mean is not None:
                    t = t - mean(*row_of(i))
                t = t * inverse(*row_of(i))
                scaled = fenced(t * _load_gamma_or_beta(gamma, i, sg, zg, rows, zero), zero)
                return quantized(
                    scaled + _load_gamma_or_beta(beta, i, sb, zb, rows, zero), sy[0], zy[0], out
                )

            return stage(x.shape, element, name=name)

        return context.reduce_te(
            f"qnn_{name}",
            norm,
            _arguments(context, count or 0),
            blocks=("first", "second") if rows.centred else ("second",),
        )

    return lower


def _arguments(context: CallContext, count: int) -> list[Any]:
    scale = np.float64(context.vector(3)[0])
    epsilon = np.float64(np.float32(context.attr("epsilon")))
    numbers = [np.float64(count), np.float64(count * count), scale * scale, epsilon, scale]
    params = [
        context.const(context.vector(i), "float32" if i in (5, 7, 9) else "int32")
        for i in range(4, 11)
    ]
    return [*context.args[:3], *params, context.const(numbers, "float64"), context.fence()]


def _counted(numbers: te.Tensor, extents: Sequence[Prim], groups: int) -> te.Tensor:
    """Returns ``numbers`` with the elements of a row that the run has."""
    total = extents[0]
    for extent in extents[1:]:
        total = total * extent
    count = tirx.floordiv(total, tirx.const(groups, "int64")).astype("int64")

    def number(i: Prim) -> Prim:
        # n and n * n, as `_arguments` lays them out; the other numbers stay.
        power = tirx.Select(i == 0, count, count * count).astype("float64")
        return tirx.Select(i < 2, power, numbers[i])

    return stage(numbers.shape, number, name="numbers")


def _statistics(
    rows: NormalizedGroups,
    shape: list[Any],
    taps: Any,
    code: Callable[[Indices], Prim],
    kinds: tuple[str, str],
    numbers: te.Tensor,
    zero: te.Tensor,
) -> tuple[te.Tensor | None, te.Tensor]:
    """Returns ``f32(mean)`` and ``f32(sx / sqrt(variance + epsilon))`` of every row.

    ``kinds`` are the types of the sums of codes and of squares; ``numbers`` holds n, n * n,
    sx * sx, epsilon and sx in float64.
    """
    axes, at = taps("a")
    squares, square_at = taps("b")

    def square(*i: Prim) -> Prim:
        value = code(square_at(i)).astype(kinds[1])
        return te.sum(value * value, axis=squares)

    second = stage(shape, square, name="second")
    first = mean = None
    if rows.centred:
        first = stage(
            shape, lambda *i: te.sum(code(at(i)).astype(kinds[0]), axis=axes), name="first"
        )
        total = first
        mean = stage(
            shape,
            lambda *i: (total(*i).astype("float64") / numbers[0]).astype("float32"),
            name="mean",
        )

    def inverse(*i: Prim) -> Prim:
        spread = second(*i).astype("int64") * numbers[0].astype("int64")
        if first is not None:
            spread = spread - first(*i).astype("int64") * first(*i).astype("int64")
        variance = spread.astype("float64") / numbers[1]
        # The contract rounds the product before epsilon is added.
        root = tirx.sqrt(fenced(variance * numbers[2], zero) + numbers[3])
        return (numbers[4] / root).astype("float32")

    return mean, stage(shape, inverse, name="inverse")


def _load_gamma_or_beta(
    vector: te.Tensor,
    i: Indices,
    scale: te.Tensor,
    zero_point: te.Tensor,
    rows: NormalizedGroups,
    zero: te.Tensor,
) -> Prim:
    """Returns the float32 value of gamma or beta for an element."""
    where = [i[1]] if rows.channels else broadcast_indices(i, vector.shape)
    code = vector(*where)
    if kind_of(code) == "float32":
        return code
    return fenced(real(code, zero_point[0], scale[0]), zero)


NINE = (
    "data",
    "gamma",
    "beta",
    "moving_mean",
    "moving_var",
    "input_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
)


def _infer_batch(context: CallContext) -> ResultType:
    shape, dtype = context.tensor(0)
    out = context.attr("out_dtype") or dtype
    if not is_code(dtype) or not is_code(out):
        context.fail(f"data is {dtype}, out_dtype {out}", "give 8- or 16-bit integers")
    axis = context.axis(len(shape))
    for index in range(1, 5):
        context.expect_dtype(index, "float32")
        (extent,) = context.expect_rank(index, 1)
        context.expect_equal(extent, shape[axis], f"{context.arguments[index]} and axis {axis}")
    context.expect_params(5, 6)
    context.expect_params(7, 8)
    return ResultType.of(shape, out)


def _lower_batch(context: CallContext) -> Any:
    axis, out = context.axis(len(context.shape(0))), context.attr("out_dtype") or context.dtype(0)
    gamma, beta, mean, variance = (context.vector(index) for index in range(1, 5))
    with np.errstate(all="ignore"):
        # Folded here, in float32 and in the contract's order: kernels have one product and one sum.
        inverse = np.float32(1) / np.sqrt(variance + np.float32(context.attr("epsilon")))
        scale = inverse * gamma
        shift = beta - mean * scale

    def batch_norm(
        x: te.Tensor,
        a: te.Tensor,
        b: te.Tensor,
        sx: te.Tensor,
        zx: te.Tensor,
        sy: te.Tensor,
        zy: te.Tensor,
        zero: te.Tensor,
    ) -> te.Tensor:
        def element(*i: Prim) -> Prim:
            product = fenced(real(x(*i), zx[0], sx[0]) * entry(a, i, axis), zero)
            return quantized(product + entry(b, i, axis), sy[0], zy[0], out)

        return stage(x.shape, element, name="batch_norm")

    params = context.params((5, 6), (7, 8))
    args = [
        context.args[0],
        context.const(scale, "float32"),
        context.const(shift, "float32"),
        *params,
    ]
    return context.call_te("qnn_batch_norm", batch_norm, [*args, context.fence()])


_EPSILON = Attribute("epsilon", 1e-5, "added to the variance, a float32 number")
_AXIS = Attribute("axis", -1, "the first normalized axis; all after it are normalized too")
_DOC = "exact integer statistics; quantize((c - mean) * r * gamma + beta)"

_GROUPS: Mapping[Operator, tuple[Callable[[CallContext], NormalizedGroups], Attribute | None]] = {
    LAYER_NORMALIZATION: (_layer, _AXIS),
    RMS_NORMALIZATION: (_rms, _AXIS),
    INSTANCE_NORMALIZATION: (_instance, None),
    GROUP_NORMALIZATION: (_group, Attribute("num_groups", 1, "groups of channels")),
}
"""Which elements a call normalizes together, and what it says of them."""


def _norm(row: Operator) -> QnnOp:
    groups_of, stated = _GROUPS[row]
    attributes = (*((stated,) if stated else ()), _EPSILON, OUT_DTYPE)
    infer = _norm_type_inference(groups_of, 1 if row in OVER_ROWS else 2)
    doc = "as layer_norm, without subtracting the mean" if row is RMS_NORMALIZATION else _DOC
    return QnnOp(f"qnn.{row.qnn}", ELEVEN, attributes, infer, _lower_norm(row.qnn, groups_of), doc)


OPS = (
    *map(_norm, _GROUPS),
    QnnOp(
        "qnn.batch_norm",
        NINE,
        (Attribute("axis", 1, "the channel axis"), _EPSILON, OUT_DTYPE),
        _infer_batch,
        _lower_batch,
        "i = 1 / sqrt(var + epsilon), a = i * gamma, b = beta - mean * a: quantize(x * a + b)",
    ),
)
