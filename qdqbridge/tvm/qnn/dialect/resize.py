"""qnn.resize1d, resize2d, resize3d and qnn.resize (any axes): nearest, linear and cubic.

What a call asks for, and how it is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from qdqbridge.core.ops import resize as table
from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import RESIZE, coordinates, cubic_weights
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, fenced, quantized, real, stage, tirx
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
from qdqbridge.tvm.qnn.dialect.unary import FIVE, OUT_DTYPE, infer_codes
from qdqbridge.tvm.qnn.ranges import is_code

# ---- interpolation -------------------------------------------------------------------------------
# Interpolation of a Resize: index and weight tables, and the sums that kernels make with them.
#
# Tables of an axis are what ``qdqbridge.core.ops.resize`` computes when a call is legalized; the
# PrimFunc multiplies and adds in the same order.


Table = NDArray[Any]


def along(attributes: ResizeAttrs, axis: int) -> ResizeAttrs:
    """Returns the attributes of the same Resize of one axis alone."""
    rank = len(attributes.roi) // 2
    return replace(
        attributes,
        scales=None if attributes.scales is None else (attributes.scales[axis],),
        sizes=None if attributes.sizes is None else (attributes.sizes[axis],),
        roi=(attributes.roi[axis], attributes.roi[axis + rank]) if rank else (),
    )


def nearest_indices(attributes: ResizeAttrs, length: int, axis: int) -> Table:
    """Returns the input index of every output element, which is the Resize of 0, 1, 2 and so on."""
    single = replace(along(attributes, axis), extrapolation_value=0.0)
    (indices,) = RESIZE.compute(single, (np.arange(length, dtype=np.int64),))
    return indices


def linear_sides(
    attributes: ResizeAttrs, length: int, axis: int
) -> tuple[tuple[Table, Table], tuple[Table, Table]]:
    """Returns the lower and upper neighbours, and the weights of both."""
    last, half = length - 1, np.float32(0.5)
    where = coordinates(along(attributes, axis), (length,), 0, np.float32)
    where = np.maximum(np.float32(0), np.minimum(where, np.float32(last)))
    lower = np.minimum(where.astype(np.int64), last)
    upper = np.minimum(lower + 1, last)
    same = lower == upper
    to_lower = np.where(same, half, np.abs(where - lower.astype(np.float32)))
    to_upper = np.where(same, half, np.abs(where - upper.astype(np.float32)))
    return (lower, upper), (to_upper, to_lower)


def cubic_taps(
    attributes: ResizeAttrs, length: int, axis: int
) -> tuple[list[Table], list[Table], Table]:
    """Returns four clamped neighbours, their weights, and the sum of the weights that count."""
    where = coordinates(along(attributes, axis), (length,), 0, np.float32)
    floor = np.floor(where)
    weights: list[Table] = list(cubic_weights(where - floor, attributes.cubic_coeff_a))
    taps: list[Table] = [floor.astype(np.int64) + offset for offset in (-1, 0, 1, 2)]
    whole = np.full_like(where, 1)
    if attributes.exclude_outside:
        weights = [
            np.where((tap < 0) | (tap >= length), np.float32(0), weight)
            for tap, weight in zip(taps, weights, strict=True)
        ]
        whole = ((weights[0] + weights[1]) + weights[2]) + weights[3]
    return [np.clip(tap, 0, length - 1) for tap in taps], weights, whole


# ---- all axes


class InterpolationPlan:
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

    def steps(self) -> Any:
        """Adds the tables of all axes that are resized; returns where they are, by axis."""
        make: Any = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}
        return make[self.attributes.mode](self)

    def where(self, axis: int) -> NDArray[np.float32]:
        """Returns the coordinates along an axis."""
        return table.coordinates(self.attributes, self.shape, axis, np.float32)


def _expression(extent: Extent) -> Prim:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def _entry_of(scales: te.Tensor, axis: int) -> te.Tensor:
    return stage([1], lambda _: scales[axis], name=f"scale{axis}")


def _nearest(plan: InterpolationPlan) -> list[tuple[int, int]]:
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


def _linear(plan: InterpolationPlan) -> Sides:
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


def _cubic(plan: InterpolationPlan) -> Taps:
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
            # Without it LLVM would contract the product and the sum to one fused operation, whose
            # missing rounding is another result.
            term = fenced(term, zero)
            total = term if total is None else total + term
        return total

    return stage(shape, element, name=f"axis{axis}")


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
    plan = InterpolationPlan(attributes, shape, frozenset(range(rank)))
    steps = plan.steps()
    tables = plan.filled((zero,), x.shape, sizes, zero)
    value = interpolated(
        attributes.mode, steps, lambda where: x(*where), x.shape, list(sizes), tables, zero
    )
    return stage(sizes, lambda *i: value(i), name="resize")


def interpolated(
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


def outside_masks(plan: InterpolationPlan) -> list[tuple[int, int]]:
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


# ---- Indices and weights of a Resize along an axis whose extents only the run knows
#
# What the tables above hold where extents are known, computed in stages of the kernel: the same
# float32 operations in the same order.


def scaled_extent(extent: Prim, scale: float) -> Prim:
    """Returns the extent that a scale gives: a float32 product, truncated.

    Scales that are fractions of small powers of two give exact products, which are written in
    integers.
    """
    factor = float(np.float32(scale))
    for shift in range(7):
        whole = factor * (1 << shift)
        if whole == int(whole) < 1 << 10:
            product = extent * int(whole)
            return tirx.floordiv(product, tirx.const(1 << shift, "int64")) if shift else product
    return (extent.astype("float32") * tirx.const(factor, "float32")).astype("int64")


def _f32(value: Any) -> Prim:
    return tirx.const(float(np.float32(value)), "float32")


@dataclass(frozen=True, slots=True)
class OpenAxis:
    """One axis of a Resize in a kernel.

    Attributes:
        attributes: Of the Resize.
        name: A suffix for the names of stages.
        length: Its extent in the data.
        size: Its extent in the result.
        scale: A tensor of one float32 element; None takes ``size / length``.
        zero: The fence.
        made: Stages by what they hold.
    """

    attributes: ResizeAttrs
    name: str
    length: Prim
    size: Prim
    scale: te.Tensor | None
    zero: te.Tensor
    made: dict[str, te.Tensor] = field(default_factory=dict[str, te.Tensor])

    def table(self, kind: str) -> te.Tensor:
        """Returns a stage: ``index``; ``lower``, ``upper`` and their weights; taps and theirs."""
        if kind not in self.made:
            stem, number = kind.rstrip("0123456789"), kind[-1]
            which = int(number) if number.isdigit() else 0
            make = getattr(self, f"_{stem}")
            self.made[kind] = stage([self.size], lambda i: make(i, which), f"{kind}{self.name}")
        return self.made[kind]

    def _ratio(self) -> te.Tensor:
        if self.scale is not None:
            return self.scale
        if "ratio" not in self.made:
            ratio = self.size.astype("float32") / self.length.astype("float32")
            self.made["ratio"] = stage([1], lambda _: ratio, f"ratio{self.name}")
        return self.made["ratio"]

    def _where(self, i: Prim, _: int) -> Prim:
        """Where an element of the result lies in the data; as ``ops.resize.coordinates``."""
        scale, x, half = self._ratio()[0], i.astype("float32"), _f32(0.5)
        out, inn = self.size.astype("float32"), self.length.astype("float32")
        zero, one = _f32(0), _f32(1)
        match self.attributes.coordinate_transformation_mode:
            case "asymmetric":
                where = x / scale
            case "pytorch_half_pixel":
                where = tirx.Select(out > one, (x + half) / scale - half, zero)
            case "tf_half_pixel_for_nn":
                where = (x + half) / scale
            case "align_corners":
                where = tirx.Select(out == one, zero, (x * (inn - one)) / (out - one))
            case "half_pixel_symmetric":
                adjustment = out / (scale * inn)
                offset = fenced((inn * half) * (one - adjustment), self.zero).astype("float64")
                wide = tirx.const(0.5, "float64")
                moved = (i.astype("float64") + wide) / scale.astype("float64")
                where = ((offset + moved) - wide).astype("float32")
            case _:
                where = (x + half) / scale - half
        return tirx.Select(scale == one, x, where)

    def _last(self) -> Prim:
        return (self.length - 1).astype("int32")

    def _index(self, i: Prim, _: int) -> Prim:
        x, mode = self.table("where")[i], self.attributes.nearest_mode
        down = tirx.trunc(x)
        if mode == "floor":
            index = tirx.floor(x)
        elif mode == "ceil":
            index = tirx.ceil(x)
        elif mode == "simple":
            index = tirx.Select(self._ratio()[0] < _f32(1), tirx.ceil(x), down)
        else:
            half = tirx.Select(x < _f32(0), _f32(-0.5), _f32(0.5))
            away = tirx.Select(tirx.abs(x - down) < _f32(0.5), down, tirx.trunc(x + half))
            tie = x == down + _f32(0.5)
            floors = mode == "round_prefer_floor"
            index = tirx.Select(tie, tirx.floor(x), away) if floors else away
        return self._clipped(index.astype("int32"))

    def _clipped(self, index: Prim) -> Prim:
        return tirx.max(tirx.min(index, self._last()), tirx.const(0, "int32"))

    def _inside(self, i: Prim, _: int) -> Prim:
        last = self._last().astype("float32")
        return tirx.max(_f32(0), tirx.min(self.table("where")[i], last))

    def _lower(self, i: Prim, _: int) -> Prim:
        return tirx.min(self.table("inside")[i].astype("int32"), self._last())

    def _upper(self, i: Prim, _: int) -> Prim:
        return tirx.min(self.table("lower")[i] + 1, self._last())

    def _weight(self, i: Prim, side: int) -> Prim:
        """The distance to the other neighbour; 0 for the lower one, 1 for the upper one."""
        lower, upper = self.table("lower")[i], self.table("upper")[i]
        other = lower if side else upper
        distance = tirx.abs(self.table("inside")[i] - other.astype("float32"))
        return tirx.Select(lower == upper, _f32(0.5), distance)

    def _tap(self, i: Prim, which: int) -> Prim:
        return self._clipped(self._neighbour(i, which))

    def _neighbour(self, i: Prim, which: int) -> Prim:
        return tirx.floor(self.table("where")[i]).astype("int32") + (which - 1)

    def _cubic(self, i: Prim, which: int) -> Prim:
        """The weight of a tap, as ``ops.resize.cubic_weights``; 0 outside where asked for."""
        where, f = self.table("where")[i], np.float32
        s, a = where - tirx.floor(where), f(self.attributes.cubic_coeff_a)
        if which in (0, 3):
            t = s + _f32(1) if which == 0 else _f32(2) - s
            inner = fenced(_f32(a) * t, self.zero) - _f32(f(5) * a)
            middle = fenced(inner * t, self.zero) + _f32(f(8) * a)
            weight = fenced(middle * t, self.zero) - _f32(f(4) * a)
        else:
            t = s if which == 1 else _f32(1) - s
            inner = fenced(_f32(a + f(2)) * t, self.zero) - _f32(a + f(3))
            weight = fenced(inner * t * t, self.zero) + _f32(1)
        if not self.attributes.exclude_outside:
            return weight
        tap = self._neighbour(i, which)
        outside = tirx.any(tap < 0, tap > self._last())
        return tirx.Select(outside, _f32(0), weight)

    def _whole(self, i: Prim, _: int) -> Prim:
        if not self.attributes.exclude_outside:
            return _f32(1)
        first, *others = (self.table(f"cubic{which}")[i] for which in range(4))
        for other in others:
            first = first + other
        return first

    def _share(self, i: Prim, which: int) -> Prim:
        return self.table(f"cubic{which}")[i] / self.table("whole")[i]


# ---- qnn.resize1d, resize2d, resize3d and qnn.resize (any axes): nearest, linear and cubic -------


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
            # onnxruntime multiplies in float32 before it cuts: in float64 some extents would be one
            # less.
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
        # ONNX lists all starts and then all ends; axes that are not resized are taken whole, 0 to
        # 1.
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
