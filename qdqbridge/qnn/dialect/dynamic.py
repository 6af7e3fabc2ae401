"""qnn.dynamic_dense: a product whose activation is quantized while the model runs."""

from __future__ import annotations

from typing import Any

from tvm import te

from qdqbridge.qnn.dialect.accumulate import centred
from qdqbridge.qnn.dialect.arithmetic import Prim, entry
from qdqbridge.qnn.dialect.kernel import BLOCK, stage
from qdqbridge.qnn.dialect.op import Attribute, QnnOp
from qdqbridge.qnn.dialect.site import DialectSite, ResultType
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.qnn.ranges import is_code

_LAST = 255
"""The last code of the type that activations are quantized to."""


def _infer(site: DialectSite) -> ResultType:
    site.expect_dtype(0, "float32")
    if not is_code(site.dtype(1)):
        site.fail(f"weight has dtype {site.dtype(1)}", "give an 8- or 16-bit integer")
    x, w = site.shape(0), site.expect_rank(1, 2)
    if not x:
        site.fail("data is a scalar", "give it at least one axis")
    site.expect_equal(x[-1], w[1], "the last axes of data and weight")
    site.expect_params(3, 2, w[0], what="units")
    return ResultType.of([*x[:-1], w[0]], "float32")


def _lower(site: DialectSite) -> Any:
    zero_points, rows = site.vector(2), bool(site.attr("rows"))
    shifted = bool(zero_points.any())

    def dynamic_dense(
        x: te.Tensor, w: te.Tensor, scale: te.Tensor, last: te.Tensor, *zero_point: te.Tensor
    ) -> te.Tensor:
        step, place = _parameters(x, last, rows=rows)

        def code(*i: Prim) -> Prim:
            at = _row(i, rows=rows)
            value = tirx.nearbyint(x(*i) / step(*at)) + place(*at)
            value = tirx.Select(tirx.isnan(value), tirx.const(0.0, "float32"), value)
            top = tirx.const(float(_LAST), "float32")
            bounded = tirx.max(tirx.min(value, top), tirx.const(0.0, "float32"))
            return (bounded - place(*at)).astype("int32").astype("int16")

        data, weight = stage(x.shape, code, name="codes"), w
        if shifted:
            weight = stage(
                w.shape,
                lambda u, k: centred(w(u, k), entry(zero_point[0], (u,), 0), str(w.dtype)),
                name="centred_weight",
            )
        k = te.reduce_axis((0, w.shape[1]), name="k")

        def element(*i: Prim) -> Prim:
            product = data(*i[:-1], k.var).astype("int32") * weight(i[-1], k.var).astype("int32")
            return te.sum(product, axis=k)

        total = stage([*x.shape[:-1], w.shape[0]], element, name=BLOCK)

        def real(*i: Prim) -> Prim:
            factor = step(*_row(i, rows=rows)) * entry(scale, i, len(i) - 1)
            return total(*i).astype("float32") * factor

        return stage(total.shape, real, name="real")

    scale, last = site.const(site.vector(3), "float32"), site.const([_LAST], "float32")
    args = [site.args[0], site.args[1], scale, last]
    args += [site.const(zero_points, "int32")] if shifted else []
    blocks = ("lowest", "highest", BLOCK)
    return site.reduce_te("qnn_dynamic_dense", dynamic_dense, args, blocks=blocks)


def _row(indices: Any, *, rows: bool) -> Any:
    """Returns where the parameters of an element of data, or of a result, are."""
    return indices[:-1] if rows else (0,)


def _parameters(x: te.Tensor, last: te.Tensor, *, rows: bool) -> tuple[te.Tensor, te.Tensor]:
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
        span = (high(*i) - low(*i)) / last[0]
        return tirx.Select(high(*i) <= low(*i), tirx.const(1.0, "float32"), span)

    scale = stage(shape, step, name="scale")

    def place(*i: Prim) -> Prim:
        value, top = zero - low(*i) / scale(*i), tirx.const(float(_LAST), "float32")
        bounded = tirx.min(tirx.max(value, zero), top)
        return tirx.nearbyint(tirx.Select(tirx.isnan(value), top, bounded))

    return scale, stage(shape, place, name="zero_point")


OPS = (
    QnnOp(
        "qnn.dynamic_dense",
        ("data", "weight", "kernel_zero_point", "kernel_scale"),
        (Attribute("rows", False, "every row of data has a scale and zero point of its own"),),
        _infer,
        _lower,
        "data[..., K] is quantized to uint8 by its extremes and 0; the exact integer product with "
        "weight[units, K] times both scales, float32",
    ),
)
