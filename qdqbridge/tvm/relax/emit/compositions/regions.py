"""RoiAlign, as onnxruntime computes it: TVM's own operator scales and takes maxima otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.kernel import stage
from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_OWN_MODES = 16
"""The opset since which half a pixel is subtracted by default."""


@dataclass(frozen=True, slots=True)
class _RegionAxis:
    """One axis of the regions: how it is cut into bins, and the bins into samples.

    Attributes:
        first: The column of the region's begin; its end is two columns further.
        bins: Bins of the result along the axis.
        samples: Samples of a bin; 0 takes as many as it has pixels.
        scale: What a region's coordinates are multiplied by.
        offset: What is subtracted from them then: half a pixel, or nothing.
    """

    first: int
    bins: int
    samples: int
    scale: float
    offset: float

    def bin(self, rois: te.Tensor, roi: Expr) -> Expr:
        """Returns the length of a bin; without an offset a region has at least one pixel."""
        length = self._at(rois, roi, self.first + 2) - self._at(rois, roi, self.first)
        if not self.offset:
            length = tirx.max(length, tirx.const(1.0, rois.dtype))
        return length / tirx.const(float(self.bins), rois.dtype)

    def count(self, rois: te.Tensor, roi: Expr) -> Expr:
        """Returns how many samples a bin has."""
        if self.samples > 0:
            return tirx.const(self.samples, "int32")
        whole = tirx.ceil(self.bin(rois, roi)).astype("int32")
        return tirx.max(whole, tirx.const(0, "int32"))

    def where(self, rois: te.Tensor, roi: Expr, bin_: Expr, sample: Expr) -> Expr:
        """Returns the coordinate of a sample."""
        kind, length = rois.dtype, self.bin(rois, roi)
        begin = self._at(rois, roi, self.first) + bin_.astype(kind) * length
        within = (sample.astype(kind) + tirx.const(0.5, kind)) * length
        return begin + within / self.count(rois, roi).astype(kind)

    def _at(self, rois: te.Tensor, roi: Expr, column: int) -> Expr:
        scaled: Expr = rois(roi, column) * tirx.const(self.scale, rois.dtype)
        return scaled - tirx.const(self.offset, rois.dtype)


def _neighbours(
    where: Expr, extent: Expr, kind: str
) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
    """Returns the two pixels beside a coordinate, and their weights; both the last one at it."""
    last = (extent - 1).astype("int32")
    inside = tirx.max(where, tirx.const(0.0, kind))
    low = tirx.min(tirx.min(inside, last.astype(kind)).astype("int32"), last)
    distance = tirx.min(inside, last.astype(kind)) - low.astype(kind)
    return (low, tirx.min(low + 1, last)), (tirx.const(1.0, kind) - distance, distance)


def _outside(where: Expr, extent: Expr, kind: str) -> Expr:
    return tirx.any(where < tirx.const(-1.0, kind), where > extent.astype(kind))


def _roi_align(context: CompositionContext) -> Sequence[Expr]:
    """The mean of a bin's samples, or the greatest weighted pixel beside any of them.

    The text of ONNX leaves open what the maximum is taken of; onnxruntime and ONNX's own reference
    take it of the four products of pixel and weight at each sample, not of the samples.
    """
    onnx = context.onnx
    mode = onnx.string("mode", "avg")
    default = "half_pixel" if onnx.opset >= _OWN_MODES else "output_half_pixel"
    coordinates = onnx.string("coordinate_transformation_mode", default)
    if mode not in ("avg", "max") or coordinates not in ("half_pixel", "output_half_pixel"):
        raise NoRow(f"its mode is {mode}, its coordinates are {coordinates}")
    offset = 0.5 if coordinates == "half_pixel" else 0.0
    ratio, scale = onnx.int_("sampling_ratio", 0), onnx.float_("spatial_scale", 1.0)
    axes = [
        _RegionAxis(first, onnx.int_(name, 1), ratio, scale, offset)
        for first, name in ((1, "output_height"), (0, "output_width"))
    ]
    x, kind = context.arg(0), context.dtype(context.arg(0))
    wide = "float64" if kind == "float64" else "float32"

    def roi_align(data: te.Tensor, rois: te.Tensor, batch: te.Tensor) -> te.Tensor:
        return _pooled(axes, data, rois, batch, mode)

    operands = [context.cast(x, wide), context.cast(context.arg(1), wide), context.arg(2)]
    call = context.emitter.builder.call_te(roi_align, *operands, primfunc_name_hint="roi_align")
    return [context.cast(context.emitter.emit(call), kind)]


def _pooled(
    axes: Sequence[_RegionAxis], data: te.Tensor, rois: te.Tensor, batch: te.Tensor, mode: str
) -> te.Tensor:
    images, channels, *extents = data.shape
    kinds = [data.dtype] * len(axes)
    shape: list[Any] = [rois.shape[0], channels, *(axis.bins for axis in axes)]

    def products(i: Sequence[Any], samples: Sequence[Expr]) -> list[Expr]:
        """Returns the four pixels beside a sample, each times its weight."""
        image = tirx.max(tirx.min(batch(i[0]).astype("int64"), images - 1), 0)
        places = [
            axis.where(rois, i[0], bin_, sample)
            for axis, bin_, sample in zip(axes, i[2:], samples, strict=True)
        ]
        outside = tirx.any(*map(_outside, places, extents, kinds))
        (rows, heights), (columns, widths) = map(_neighbours, places, extents, kinds)
        zero = tirx.const(0.0, data.dtype)
        return [
            tirx.if_then_else(outside, zero, height * width * data(image, i[1], row, column))
            for row, height in zip(rows, heights, strict=True)
            for column, width in zip(columns, widths, strict=True)
        ]

    def reduced(*i: Any) -> Expr:
        samples: Any = [te.reduce_axis((0, axis.count(rois, i[0])), "s") for axis in axes]
        first, second, third, fourth = products(i, [sample.var for sample in samples])
        if mode == "avg":
            return te.sum(first + second + third + fourth, axis=samples)
        greatest = tirx.max(tirx.max(first, second), tirx.max(third, fourth))
        return te.max(greatest, axis=samples)

    total = stage(shape, reduced, name="reduced")

    def element(*i: Any) -> Expr:
        rows, columns = (axis.count(rois, i[0]) for axis in axes)
        count = rows * columns
        some = tirx.max(count, tirx.const(1, "int32")).astype(data.dtype)
        value = total(*i) / some if mode == "avg" else total(*i)
        # a reduction of no elements leaves its result as the memory was
        return tirx.Select(count > 0, value, tirx.const(0.0, data.dtype))

    return stage(shape, element, name="pooled")


REGIONS: Mapping[str, Composition] = {"RoiAlign": _roi_align}
