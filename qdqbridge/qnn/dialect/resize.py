"""qnn.resize1d, resize2d, resize3d and qnn.resize (any axes): nearest, linear and cubic.

Indices and weights are tables that the operator table (``qdqbridge.ops.resize``) computes when a
call is legalized; the PrimFunc multiplies and adds in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.ops import resize as table
from qdqbridge.ops.attributes import ResizeAttrs
from qdqbridge.qnn.dialect.arithmetic import (
    Prim,
    fenced,
    quantized,
    real,
)
from qdqbridge.qnn.dialect.interpolation import cubic_taps, linear_sides, nearest_indices
from qdqbridge.qnn.dialect.kernel import stage
from qdqbridge.qnn.dialect.layout import SPATIAL, AxisLayout, data_layout, straight
from qdqbridge.qnn.dialect.op import REQUIRED, Attribute, QnnOp
from qdqbridge.qnn.dialect.open_resize import OpenAxis, scaled_extent
from qdqbridge.qnn.dialect.site import DialectSite, Extent, ResultType
from qdqbridge.qnn.dialect.tir import tirx
from qdqbridge.qnn.dialect.unary import FIVE, OUT_DTYPE, infer_codes

METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}


def _decoded(site: DialectSite, rank: int) -> tuple[ResizeAttrs, list[Extent]]:
    """Returns the attributes over every axis, and the shape of the result, channels-first.

    Symbolic extents count as 1 in the attributes.
    """
    shape = _shape(site, rank)
    lead = len(shape) - rank if rank else 0
    size, factors = list(site.attr("size")), list(site.attr("scales"))
    if len(size) != len(shape) - lead or len(factors) not in (0, len(size)):
        site.fail(f"size is {size} and scales {factors}", "give one entry per resized axis")
    full, out = [1] * lead, shape[:lead]
    for axis, (extent, wanted) in enumerate(zip(shape[lead:], size, strict=True)):
        if wanted < 0 and not factors:
            site.fail(f"size is {size}", "give scales, or a size for every axis")
        if isinstance(extent, int):
            by_scale = int(np.float32(factors[axis]) * np.float32(extent)) if wanted < 0 else 0
            full.append(by_scale or wanted or extent)
            out.append(full[-1])
        else:
            full.append(wanted if wanted > 0 and not factors else 1)
            out.append(_opened(extent, wanted, factors[axis] if factors else 1.0))
    full[:lead] = [extent if isinstance(extent, int) else 1 for extent in shape[:lead]]
    return _attributes(site, [1.0] * lead, factors, full), out


def _opened(extent: Extent, wanted: int, factor: float) -> Extent:
    """Returns the extent of the result for an open one of the data."""
    return wanted if wanted > 0 else scaled_extent(extent, factor) if wanted < 0 else extent


def _layout(site: DialectSite, rank: int) -> AxisLayout:
    return data_layout(site, "layout", rank) if rank else straight(len(site.shape(0)))


def _shape(site: DialectSite, rank: int) -> list[Extent]:
    """Returns the channels-first shape of the data."""
    return _layout(site, rank).logical(site.shape(0))


def _attributes(
    site: DialectSite, ones: list[float], factors: list[float], sizes: list[int]
) -> ResizeAttrs:
    method = site.attr("method")
    mode = site.attr("coordinate_transformation_mode")
    rounding = site.attr("rounding_method")
    for name, value, allowed in (
        ("method", method, METHODS),
        ("rounding_method", rounding, table.NEAREST),
        ("coordinate_transformation_mode", mode, table.COORDINATES),
    ):
        if value not in allowed:
            site.fail(f"{name} is {value!r}", f"use one of {', '.join(allowed)}")
    roi = tuple(site.attr("roi"))
    if mode == "tf_crop_and_resize":
        half, lead = len(roi) // 2, len(ones)
        if len(roi) != 2 * (len(sizes) - lead):
            site.fail(f"roi has {len(roi)} entries", "give starts and ends of the resized axes")
        roi = (*(0.0,) * lead, *roi[:half], *(1.0,) * lead, *roi[half:])
    return ResizeAttrs(
        mode=METHODS[method],
        coordinate_transformation_mode=mode,
        nearest_mode=rounding,
        scales=(*ones, *factors) if factors else None,
        sizes=None if factors else tuple(sizes),
        cubic_coeff_a=site.attr("cubic_alpha"),
        exclude_outside=bool(site.attr("cubic_exclude")),
        extrapolation_value=site.attr("extrapolation_value"),
        roi=roi,
    )


def _kind(site: DialectSite) -> ResultType:
    """Returns the type of the result: codes, or floats of floats."""
    shape, dtype = site.tensor(0)
    if dtype == "float32" == (site.attr("out_dtype") or dtype):
        return ResultType.of(shape, dtype)
    return infer_codes(site)


def _infer(rank: int) -> Any:
    def infer(site: DialectSite) -> ResultType:
        type_ = _kind(site)
        if rank:
            site.expect_rank(0, rank + 2)
        attributes, out = _decoded(site, rank)
        stated = table.sizes(attributes, _numbers(site, rank))
        for extent, size in zip(out, stated, strict=True):
            if isinstance(extent, int) and extent != size:
                site.fail(f"size gives {out}, scales give {stated}")
        return ResultType.of(_layout(site, rank).stored(out), str(type_.dtype))

    return infer


def _numbers(site: DialectSite, rank: int) -> tuple[int, ...]:
    """Returns the channels-first shape of the data with 1 for symbolic extents."""
    return tuple(extent if isinstance(extent, int) else 1 for extent in _shape(site, rank))


class _Plan:
    """The steps of one call: which axes, with which tables, passed as constants in order.

    Attributes:
        attributes: Of the Resize.
        shape: Extents of the data; 1 for an open one.
        opened: The axes of open extent.
        tables: Constants, and what the kernel itself computes: an axis, and the kind of table.
    """

    def __init__(
        self, attributes: ResizeAttrs, shape: tuple[int, ...], opened: frozenset[int]
    ) -> None:
        self.attributes, self.shape, self.opened = attributes, shape, opened
        self.tables: list[NDArray[Any] | tuple[int, str]] = []

    def add(self, array: NDArray[Any], dtype: str) -> int:
        """Keeps a table; returns its position."""
        self.tables.append(np.asarray(array, dtype))
        return len(self.tables) - 1

    def later(self, axis: int, kind: str) -> int:
        """Returns the position of a table of an open axis."""
        self.tables.append((axis, kind))
        return len(self.tables) - 1

    def constants(self) -> list[NDArray[Any]]:
        """Returns the tables that are known, and the scales of all axes."""
        scales = self.attributes.scales or (1.0,) * len(self.shape)
        known = [table for table in self.tables if not isinstance(table, tuple)]
        return [*known, np.asarray(scales, np.float32)] if self.opened else known

    def filled(
        self,
        given: Sequence[te.Tensor],
        shape: Sequence[Prim],
        sizes: Sequence[Prim],
        zero: te.Tensor,
    ) -> list[te.Tensor]:
        """Returns all tables, in a kernel that is given :meth:`constants`."""
        if not self.opened:
            return list(given)
        *known, scales = given
        by_scale = self.attributes.scales is not None
        axes = {
            axis: OpenAxis(
                self.attributes, str(axis), shape[axis], _expression(sizes[axis]),
                _entry_of(scales, axis) if by_scale else None, zero,
            )
            for axis in self.opened
        }  # fmt: skip
        rest = iter(known)
        return [
            axes[table[0]].table(table[1]) if isinstance(table, tuple) else next(rest)
            for table in self.tables
        ]

    def where(self, axis: int) -> NDArray[np.float32]:
        """Returns the coordinates along an axis."""
        return table.coordinates(self.attributes, self.shape, axis, np.float32)


def _expression(extent: Extent) -> Prim:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def _entry_of(scales: te.Tensor, axis: int) -> te.Tensor:
    return stage([1], lambda _: scales[axis], name=f"scale{axis}")


def _nearest(plan: _Plan) -> list[tuple[int, int]]:
    """Returns pairs of an axis and its index table."""
    steps: list[tuple[int, int]] = []
    factors, sizes = (f(plan.attributes, plan.shape) for f in (table.scales, table.sizes))
    for axis, length in enumerate(plan.shape):
        if axis in plan.opened:
            if plan.attributes.scales is None or factors[axis] != 1:
                steps.append((axis, plan.later(axis, "index")))
        elif sizes[axis] != length or factors[axis] != 1:
            index = nearest_indices(plan.attributes, length, axis)
            steps.append((axis, plan.add(index, "int32")))
    return steps


Sides = list[tuple[int, tuple[int, int], tuple[int, int]]]


def _linear(plan: _Plan) -> Sides:
    """Returns axes with their index tables and weight tables (lower, upper)."""
    steps: Sides = []
    for axis in table.interpolated_axes(plan.attributes, plan.shape):
        if axis in plan.opened:
            later = [plan.later(axis, kind) for kind in ("lower", "upper", "weight0", "weight1")]
            steps.append((axis, (later[0], later[1]), (later[2], later[3])))
            continue
        (lower, upper), (low_weight, high_weight) = linear_sides(
            plan.attributes, plan.shape[axis], axis
        )
        indices = plan.add(lower, "int32"), plan.add(upper, "int32")
        weights = plan.add(low_weight, "float32"), plan.add(high_weight, "float32")
        steps.append((axis, indices, weights))
    return steps


def _linear_value(
    values: Any, steps: Sides, tables: Sequence[te.Tensor], zero: te.Tensor, i: Sequence[Prim]
) -> Prim:
    """Returns the weighted sum of the corners, in onnxruntime's order."""
    total: Prim = None
    for corner in itertools.product((0, 1), repeat=len(steps)):
        where, weight = list(i), None
        for (axis, indices, weights), side in reversed(list(zip(steps, corner, strict=True))):
            where[axis] = tables[indices[side]][i[axis]]
            factor = tables[weights[side]][i[axis]]
            weight = factor if weight is None else weight * factor
        value = values(where)
        term = value if weight is None else fenced(weight * value, zero)
        total = term if total is None else total + term
    return total


Taps = list[tuple[int, list[int], list[int], int | None]]


def _cubic(plan: _Plan) -> Taps:
    """Returns axes, innermost first, with four index tables, four weights and a divisor."""
    steps: Taps = []
    axes = table.interpolated_axes(plan.attributes, plan.shape)
    for position, axis in enumerate(reversed(axes)):
        if axis in plan.opened:
            kind = "cubic" if position else "share"
            steps.append((
                axis, [plan.later(axis, f"tap{i}") for i in range(4)],
                [plan.later(axis, f"{kind}{i}") for i in range(4)],
                plan.later(axis, "whole") if position else None,
            ))  # fmt: skip
            continue
        taps, weights, whole = cubic_taps(plan.attributes, plan.shape[axis], axis)
        if position == 0:
            with np.errstate(invalid="ignore"):  # no tap counts far outside the input
                weights = [weight / whole for weight in weights]
        divisor = plan.add(whole, "float32") if position else None
        steps.append(
            (
                axis,
                [plan.add(tap, "int32") for tap in taps],
                [plan.add(weight, "float32") for weight in weights],
                divisor,
            )
        )
    return steps


def _cubic_stage(
    source: Any, shape: list[Any], step: Any, tables: Sequence[te.Tensor], zero: te.Tensor
) -> te.Tensor:
    axis, taps, weights, divisor = step

    def element(*i: Prim) -> Prim:
        total: Prim = None
        for tap, weight in zip(taps, weights, strict=True):
            where = list(i)
            where[axis] = tables[tap][i[axis]]
            term = source(where) * tables[weight][i[axis]]
            if divisor is not None:
                term = term / tables[divisor][i[axis]]
            term = fenced(term, zero)
            total = term if total is None else total + term
        return total

    return stage(shape, element, name=f"axis{axis}")


def _lower(rank: int) -> Any:
    def lower(site: DialectSite) -> Any:
        attributes, out = _decoded(site, rank)
        layout, dtype = _layout(site, rank), site.attr("out_dtype") or site.dtype(0)
        lead, size = len(out) - len(site.attr("size")), list(site.attr("size"))
        factors = list(site.attr("scales")) or [1.0] * len(size)
        opened = [a for a, e in enumerate(_shape(site, rank)) if not isinstance(e, int)]
        plan = _Plan(attributes, _numbers(site, rank), frozenset(opened))
        make = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[attributes.mode]
        _check_open(site, plan, out, rank)
        steps, outside = make(plan), _outside(plan)

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
                return real(x(*layout.stored(where)), zx[0], sx[0])

            value = _value(attributes.mode, steps, values, shape, sizes, tables, zero)

            def element(*stored: Prim) -> Prim:
                i = layout.logical(stored)
                result = value(i)
                if outside:
                    mask = [tables[t][i[axis]] != tirx.const(0, "int32") for axis, t in outside]
                    fill = tirx.const(float(np.float32(attributes.extrapolation_value)), "float32")
                    result = tirx.Select(tirx.any(*mask), fill, result)
                return result if dtype == "float32" else quantized(result, sy[0], zy[0], dtype)

            return stage(layout.stored(sizes), element, name="resize")

        params = site.params((1, 2), (3, 4))
        tables = [site.const(array, str(array.dtype)) for array in plan.constants()]
        args = [site.args[0], *params, site.fence(), *tables]
        return site.call_te(f"qnn_resize{rank or ''}{'d' if rank else ''}", resize, args)

    return lower


def open_resize(
    attributes: ResizeAttrs, x: te.Tensor, sizes: Sequence[Prim], zero: te.Tensor
) -> te.Tensor:
    """Returns float32 data resized to extents that are known when the kernel runs.

    Args:
        attributes: With sizes of 1 for every axis.
        x: The data; linear and cubic modes interpolate over all axes but batch and channels.
        sizes: Extents of the result.
        zero: The fence.
    """
    rank = len(x.shape)
    kept = (1, 1) if rank > 3 else ()  # axes whose sizes differ are interpolated
    shape = (*kept, *(2,) * (rank - len(kept)))
    plan = _Plan(attributes, shape, frozenset(range(rank)))
    steps = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[attributes.mode](plan)
    tables = plan.filled((zero,), x.shape, sizes, zero)
    value = _value(
        attributes.mode, steps, lambda where: x(*where), x.shape, list(sizes), tables, zero
    )
    return stage(sizes, lambda *i: value(i), name="resize")


def _value(
    mode: str,
    steps: Any,
    values: Any,
    extents: Sequence[Any],
    sizes: list[Any],
    tables: Sequence[te.Tensor],
    zero: te.Tensor,
) -> Any:
    """Returns the function from an element's indices to its float32 value."""
    if mode == "linear":
        return lambda i: _linear_value(values, steps, tables, zero, i)
    if mode == "cubic":
        shape, source = list(extents), values
        for step in steps:
            shape[step[0]] = sizes[step[0]]
            stage = _cubic_stage(source, list(shape), step, tables, zero)
            source = _reader(stage)
        return source

    def nearest(i: Sequence[Prim]) -> Prim:
        where = list(i)
        for axis, position in steps:
            where[axis] = tables[position][i[axis]]
        return values(where)

    return nearest


def _reader(stage: te.Tensor) -> Any:
    return lambda where: stage(*where)


def _check_open(site: DialectSite, plan: _Plan, out: Sequence[Extent], rank: int) -> None:
    """Refuses open axes on which more than indices and weights depends."""
    shape, lead = _shape(site, rank), len(out) - len(site.attr("size"))
    resized = [a for a in plan.opened if a >= lead and site.attr("size")[a - lead]]
    if plan.attributes.coordinate_transformation_mode == "tf_crop_and_resize" and resized:
        site.fail(f"it crops axes of the extents {shape}", "give it known extents")
    by_size = plan.attributes.scales is None and [a for a in resized if isinstance(out[a], int)]
    if (
        by_size
        and plan.attributes.mode != "nearest"
        and (len(shape) not in (3, 4, 5) or min(by_size) < 2)
    ):
        site.fail(f"axes of the extents {shape} are resized by sizes", "give it known extents")


def _outside(plan: _Plan) -> list[tuple[int, int]]:
    """Returns the axes along which ``tf_crop_and_resize`` can leave the input, with masks."""
    if plan.attributes.coordinate_transformation_mode != "tf_crop_and_resize":
        return []
    masks: list[tuple[int, int]] = []
    for axis, length in enumerate(plan.shape):
        where = plan.where(axis)
        mask = (where < 0) | (where > length - 1)
        if mask.any():
            masks.append((axis, plan.add(mask, "int32")))
    return masks


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
            _infer(rank),
            _lower(rank),
            _DOC,
        )
        for rank in (1, 2, 3)
    ),
    QnnOp(
        "qnn.resize",
        FIVE,
        (Attribute("size", REQUIRED, f"extents of all axes; {_SPECIAL}"), *_COMMON),
        _infer(0),
        _lower(0),
        _DOC,
    ),
)
