"""Indices and weights of a Resize along an axis whose extents only the run knows.

What :mod:`.interpolation` computes with NumPy when a call is legalized, as stages of its kernel:
the same float32 operations in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import te

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.tvm.qnn.dialect.arithmetic import Prim, fenced, stage, tirx


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
