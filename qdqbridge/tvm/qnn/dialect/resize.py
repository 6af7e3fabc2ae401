"""qnn.resize1d, resize2d, resize3d and qnn.resize (any axes): nearest, linear and cubic.

What a call asks for; how it is computed is :mod:`.interpolation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops import resize as table
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.tvm.qnn.dialect.arithmetic import (
    Prim,
    quantized,
    real,
    stage,
    tirx,
)
from qdqbridge.tvm.qnn.dialect.context import (
    REQUIRED,
    SPATIAL,
    Attribute,
    AxisLayout,
    CallContext,
    Extent,
    QnnOp,
    ResultType,
    data_layout,
    straight,
)
from qdqbridge.tvm.qnn.dialect.interpolation import (
    InterpolationPlan,
    interpolated,
    outside_masks,
    scaled_extent,
)
from qdqbridge.tvm.qnn.dialect.unary import FIVE, OUT_DTYPE, infer_codes
from qdqbridge.tvm.qnn.ranges import is_code

METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}


def _decoded(context: CallContext, rank: int) -> tuple[ResizeAttrs, list[Extent]]:
    """Returns the attributes over every axis, and the shape of the result, channels-first.

    Symbolic extents count as 1 in the attributes.
    """
    shape = _channels_first_shape(context, rank)
    lead = len(shape) - rank if rank else 0
    size, factors = list(context.attr("size")), list(context.attr("scales"))
    if len(size) != len(shape) - lead or len(factors) not in (0, len(size)):
        context.fail(f"size is {size} and scales {factors}", "give one entry per resized axis")
    full, out = [1] * lead, shape[:lead]
    for axis, (extent, wanted) in enumerate(zip(shape[lead:], size, strict=True)):
        if wanted < 0 and not factors:
            context.fail(f"size is {size}", "give scales, or a size for every axis")
        if isinstance(extent, int):
            by_scale = int(np.float32(factors[axis]) * np.float32(extent)) if wanted < 0 else 0
            full.append(by_scale or wanted or extent)
            out.append(full[-1])
        else:
            full.append(wanted if wanted > 0 and not factors else 1)
            out.append(_opened(extent, wanted, factors[axis] if factors else 1.0))
    full[:lead] = [extent if isinstance(extent, int) else 1 for extent in shape[:lead]]
    return _resize_attrs_of_call(context, [1.0] * lead, factors, full), out


def _opened(extent: Extent, wanted: int, factor: float) -> Extent:
    """Returns the extent of the result for an open one of the data."""
    return wanted if wanted > 0 else scaled_extent(extent, factor) if wanted < 0 else extent


def _layout(context: CallContext, rank: int) -> AxisLayout:
    return data_layout(context, "layout", rank) if rank else straight(len(context.shape(0)))


def _channels_first_shape(context: CallContext, rank: int) -> list[Extent]:
    """Returns the channels-first shape of the data."""
    return _layout(context, rank).logical(context.shape(0))


def _resize_attrs_of_call(
    context: CallContext, ones: list[float], factors: list[float], sizes: list[int]
) -> ResizeAttrs:
    method = context.attr("method")
    mode = context.attr("coordinate_transformation_mode")
    rounding = context.attr("rounding_method")
    for name, value, allowed in (
        ("method", method, METHODS),
        ("rounding_method", rounding, table.NEAREST),
        ("coordinate_transformation_mode", mode, table.COORDINATES),
    ):
        if value not in allowed:
            context.fail(f"{name} is {value!r}", f"use one of {', '.join(allowed)}")
    roi = tuple(context.attr("roi"))
    if mode == "tf_crop_and_resize":
        half, lead = len(roi) // 2, len(ones)
        if len(roi) != 2 * (len(sizes) - lead):
            context.fail(f"roi has {len(roi)} entries", "give starts and ends of the resized axes")
        roi = (*(0.0,) * lead, *roi[:half], *(1.0,) * lead, *roi[half:])
    return ResizeAttrs(
        mode=METHODS[method],
        coordinate_transformation_mode=mode,
        nearest_mode=rounding,
        scales=(*ones, *factors) if factors else None,
        sizes=None if factors else tuple(sizes),
        cubic_coeff_a=context.attr("cubic_alpha"),
        exclude_outside=bool(context.attr("cubic_exclude")),
        extrapolation_value=context.attr("extrapolation_value"),
        roi=roi,
    )


def _kind(context: CallContext) -> ResultType:
    """Returns the type of the result: codes, floats of floats, or what is copied."""
    shape, dtype = context.tensor(0)
    if dtype == "float32" == (context.attr("out_dtype") or dtype) or _copies(context):
        return ResultType.of(shape, dtype)
    return infer_codes(context)


def _copies(context: CallContext) -> bool:
    """True where nearest takes elements that are neither codes nor floats, as they are."""
    dtype = context.dtype(0)
    same = dtype == (context.attr("out_dtype") or dtype) != "float32"
    return same and context.attr("method") == "nearest_neighbor" and not is_code(dtype)


def _resize_type_inference(rank: int) -> Any:
    def infer(context: CallContext) -> ResultType:
        type_ = _kind(context)
        if rank:
            context.expect_rank(0, rank + 2)
        attributes, out = _decoded(context, rank)
        stated = table.sizes(attributes, _numbers(context, rank))
        for extent, size in zip(out, stated, strict=True):
            if isinstance(extent, int) and extent != size:
                context.fail(f"size gives {out}, scales give {stated}")
        return ResultType.of(_layout(context, rank).stored(out), str(type_.dtype))

    return infer


def _numbers(context: CallContext, rank: int) -> tuple[int, ...]:
    """Returns the channels-first shape of the data with 1 for symbolic extents."""
    return tuple(
        extent if isinstance(extent, int) else 1 for extent in _channels_first_shape(context, rank)
    )


def _lower_resize(rank: int) -> Any:
    def lower(context: CallContext) -> Any:
        attributes, out = _decoded(context, rank)
        layout, dtype = _layout(context, rank), context.attr("out_dtype") or context.dtype(0)
        lead, size = len(out) - len(context.attr("size")), list(context.attr("size"))
        factors = list(context.attr("scales")) or [1.0] * len(size)
        opened = [
            a for a, e in enumerate(_channels_first_shape(context, rank)) if not isinstance(e, int)
        ]
        plan = InterpolationPlan(attributes, _numbers(context, rank), frozenset(opened))
        _check_open(context, plan, out, rank)
        steps, outside, copies = plan.steps(), outside_masks(plan), _copies(context)

        def resize(
            x: te.Tensor,
            sx: te.Tensor,
            zx: te.Tensor,
            sy: te.Tensor,
            zy: te.Tensor,
            zero: te.Tensor,
            *tables: te.Tensor,
        ) -> te.Tensor:
            shape = layout.logical(x.shape)
            sizes = [
                e if isinstance(e, int)
                else own if axis < lead
                else _opened(own, size[axis - lead], factors[axis - lead])
                for axis, (e, own) in enumerate(zip(out, shape, strict=True))
            ]  # fmt: skip
            tables = tuple(plan.filled(tables, shape, sizes, zero))

            def values(where: Sequence[Prim]) -> Prim:
                stored = x(*layout.stored(where))
                return stored if copies else real(stored, zx[0], sx[0])

            value = interpolated(attributes.mode, steps, values, shape, sizes, tables, zero)

            def element(*stored: Prim) -> Prim:
                i = layout.logical(stored)
                result = value(i)
                if copies:
                    return result
                if outside:
                    mask = [tables[t][i[axis]] != tirx.const(0, "int32") for axis, t in outside]
                    fill = tirx.const(float(np.float32(attributes.extrapolation_value)), "float32")
                    result = tirx.Select(tirx.any(*mask), fill, result)
                return result if dtype == "float32" else quantized(result, sy[0], zy[0], dtype)

            return stage(layout.stored(sizes), element, name="resize")

        params = context.params((1, 2), (3, 4))
        tables = [context.const(array, str(array.dtype)) for array in plan.constants()]
        args = [context.args[0], *params, context.fence(), *tables]
        return context.call_te(f"qnn_resize{rank or ''}{'d' if rank else ''}", resize, args)

    return lower


def _check_open(
    context: CallContext, plan: InterpolationPlan, out: Sequence[Extent], rank: int
) -> None:
    """Refuses open axes on which more than indices and weights depends."""
    shape, lead = _channels_first_shape(context, rank), len(out) - len(context.attr("size"))
    resized = [a for a in plan.opened if a >= lead and context.attr("size")[a - lead]]
    if plan.attributes.coordinate_transformation_mode == "tf_crop_and_resize" and resized:
        context.fail(f"it crops axes of the extents {shape}", "give it known extents")
    by_size = plan.attributes.scales is None and [a for a in resized if isinstance(out[a], int)]
    if (
        by_size
        and plan.attributes.mode != "nearest"
        and (len(shape) not in (3, 4, 5) or min(by_size) < 2)
    ):
        context.fail(f"axes of the extents {shape} are resized by sizes", "give it known extents")


_COMMON = (
    Attribute("scales", [], "ONNX's scales of the resized axes; empty takes size / extent"),
    Attribute("method", "linear", "nearest_neighbor, linear or cubic"),
    Attribute("coordinate_transformation_mode", "half_pixel", "ONNX's name"),
    Attribute("rounding_method", "round_prefer_floor", "ONNX's nearest_mode, or simple"),
    Attribute("cubic_alpha", -0.75, "ONNX's cubic_coeff_a"),
    Attribute("cubic_exclude", False, "ONNX's exclude_outside"),
    Attribute("extrapolation_value", 0.0, "a real number, for tf_crop_and_resize"),
    Attribute("roi", [], "starts, then ends, of the resized axes, for tf_crop_and_resize"),
    OUT_DTYPE,
)
_SPECIAL = "0 keeps one, -1 takes what scales give"
_DOC = "dequantize, interpolate in float32 in onnxruntime's order, quantize"

OPS = (
    *(
        QnnOp(
            f"qnn.resize{rank}d",
            FIVE,
            (
                Attribute("size", REQUIRED, f"extents of the spatial axes; {_SPECIAL}"),
                Attribute("layout", f"NC{SPATIAL[rank]}", "channels first, or last (NHWC)"),
                *_COMMON,
            ),
            _resize_type_inference(rank),
            _lower_resize(rank),
            _DOC,
        )
        for rank in (1, 2, 3)
    ),
    QnnOp(
        "qnn.resize",
        FIVE,
        (Attribute("size", REQUIRED, f"extents of all axes; {_SPECIAL}"), *_COMMON),
        _resize_type_inference(0),
        _lower_resize(0),
        _DOC,
    ),
)
