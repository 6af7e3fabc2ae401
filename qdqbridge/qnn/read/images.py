"""Rows over images that hosts have beside what emission writes: global pools, resizing, blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qdqbridge.graph.graph import Value
from qdqbridge.graph.lenses import permuted_attributes
from qdqbridge.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.graph.types import TensorType, ValueType
from qdqbridge.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    ResizeAttrs,
)
from qdqbridge.ops.permutation import inverse, permuted_shape
from qdqbridge.qnn.layout.permutation import channels_first as first
from qdqbridge.qnn.origin import layout_of
from qdqbridge.qnn.read.layout import channels_first, laid_out
from qdqbridge.qnn.read.reading import Row
from qdqbridge.qnn.read.site import Ints, ReadSite, rows_of
from qdqbridge.qnn.signatures import data_letters
from qdqbridge.qnn.weights import axis_weights

_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
_ROUNDING = {
    "round": "round_prefer_ceil",
    "round_prefer_floor": "round_prefer_floor",
    "round_prefer_ceil": "round_prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
}


def in_layout(
    site: ReadSite, op: str, attributes_of: Callable[[Value, TensorType], Attributes]
) -> Value:
    """Returns ``op`` of operand 0 with channels first, brought back into the call's layout.

    Args:
        site: The call.
        op: The row's name.
        attributes_of: Makes the attributes from the operand and the type of the result, both with
            channels first.
    """
    data, rank = site.value(0), len(site.result.shape or ())
    layout = site.text("layout") or (data_letters(rank - 2) if 3 <= rank <= 5 else "")
    x, back = channels_first(site.reading, data, layout, rank - 2)
    shape = site.result.shape if back is None else permuted_shape(site.result.shape, inverse(back))
    attributes = attributes_of(x, TensorType(site.result.dtype, shape))
    if not _moves(op, attributes):
        x = site.plain(x)
    type_: ValueType = site.result if x.quant is None else x.quant.with_shape(site.result.shape)
    return laid_out(site.reading, type_, back, lambda inner: site.emit(op, [x], attributes, inner))


def _moves(op: str, attributes: Attributes) -> bool:
    if isinstance(attributes, ResizeAttrs):
        return attributes.mode == "nearest"
    return op in ("GlobalMaxPool", "DepthToSpace", "SpaceToDepth")


def global_pool(op: str) -> Callable[[ReadSite], Value]:
    """Returns the row of ``nn.global_{max,avg}_pool2d`` and of adaptive pools to 1x1."""

    def row(site: ReadSite) -> Value:
        def attributes(x: Value, y: TensorType) -> Attributes:
            del x
            if any(extent != 1 for extent in (y.shape or ())[2:]):
                raise site.refusal("it pools to several elements, with windows of unequal size")
            return NO_ATTRIBUTES

        return in_layout(site, op, attributes)

    return row


def resize(site: ReadSite) -> Value:
    """``image.resize{1,2,3}d(x; size, method, coordinate_transformation_mode, …)``."""
    return in_layout(site, "Resize", lambda x, y: _resize_attributes(site, x, y))


def _resize_attributes(site: ReadSite, x: Value, y: TensorType) -> ResizeAttrs:
    """Returns the attributes; the sizes as scales where those are whole numbers."""
    method = site.text("method", "linear")
    if method not in _METHODS:
        raise site.refusal(f"its method is {method}")
    mode, coordinates = _METHODS[method], site.text("coordinate_transformation_mode", "half_pixel")
    before, sizes = _extents(site, x, y)
    whole = all(after % extent == 0 for after, extent in zip(sizes, before, strict=True))
    factors = tuple(float(after // extent) for after, extent in zip(sizes, before, strict=True))
    crop, nearest = coordinates == "tf_crop_and_resize", mode == "nearest"
    attributes = ResizeAttrs(
        mode,
        coordinates,
        _rounding(site, coordinates) if nearest else "round_prefer_floor",
        factors if whole else None,
        None if whole else sizes,
        cubic_coeff_a=site.number("cubic_alpha", -0.75) if mode == "cubic" else -0.75,
        exclude_outside=mode == "cubic" and bool(site.integer("cubic_exclude")),
        extrapolation_value=site.number("extrapolation_value") if crop else 0.0,
        roi=_roi(site, len(sizes)) if crop else (),
    )
    return _as_stated(site, attributes, before, sizes)


def _extents(site: ReadSite, x: Value, y: TensorType) -> tuple[Ints, Ints]:
    """Returns the extents before and after; one that is kept and known at run time only is 1."""
    pairs = tuple(zip(site.shape(x), site.shape(Value(y)), strict=True))
    kept = [a == b and isinstance(a, str) for a, b in pairs]
    known = [(1, 1) if same else pair for same, pair in zip(kept, pairs, strict=True)]
    whole = all(isinstance(a, int) and isinstance(b, int) and b % a == 0 for a, b in known)
    if any(kept) and not whole:
        raise site.refusal("an extent is not known before the model runs")
    before, after = ([int(side) for side in sides] for sides in zip(*known, strict=True))
    return tuple(before), tuple(after)


def _rounding(site: ReadSite, coordinates: str) -> str:
    """Returns ONNX's nearest mode; what is not stated depends on the coordinates in Relay."""
    stated = site.text("rounding_method")
    return _ROUNDING[stated or ("round" if coordinates == "align_corners" else "floor")]


def _as_stated(site: ReadSite, attributes: ResizeAttrs, before: Ints, after: Ints) -> ResizeAttrs:
    """Returns the attributes of the span's Resize where they give every axis the same weights."""
    provenance = site.call.provenance
    given = None if provenance is None else provenance.attributes
    if provenance is None or not isinstance(given, ResizeAttrs) or given.mode != attributes.mode:
        return attributes
    if layout_of(provenance) is not None:
        given = permuted_attributes(given, first(len(before)))
        assert isinstance(given, ResizeAttrs)
    for axis, (length, size) in enumerate(zip(before, after, strict=True)):
        a, b = (axis_weights(each, axis, length, size) for each in (given, attributes))
        if not np.array_equal(a, b):
            return attributes
    return given


def _roi(site: ReadSite, rank: int) -> tuple[float, ...]:
    """Returns ONNX's region of interest from Relay's (y1, x1, y2, x2)."""
    roi = tuple(float(entry) for entry in site.call.attrs.get("roi") or ())
    half = len(roi) // 2
    keep = rank - half
    return (0.0,) * keep + roi[:half] + (1.0,) * keep + roi[half:]


def upsampling(site: ReadSite) -> Value:
    """``nn.upsampling(x; scale_h, scale_w, method, align_corners)``."""
    method = site.text("method", "nearest_neighbor")
    mode = {"nearest_neighbor": "nearest", "bilinear": "linear"}.get(method)
    if mode is None:
        raise site.refusal(f"its method is {method}")
    corners = "align_corners" if site.flag("align_corners") else "half_pixel"
    coordinates = "asymmetric" if mode == "nearest" else corners
    rounding = "floor" if mode == "nearest" else "round_prefer_floor"
    scales = (1.0, 1.0, site.number("scale_h", 1.0), site.number("scale_w", 1.0))
    attributes = ResizeAttrs(mode, coordinates, rounding, scales, None)
    return in_layout(site, "Resize", lambda x, y: attributes)


def blocks(op: str) -> Callable[[ReadSite], Value]:
    """Returns the row of ``nn.depth_to_space(x; block_size, mode)`` and its inverse."""

    def row(site: ReadSite) -> Value:
        mode = site.text("mode", "DCR") if op == "DepthToSpace" else "DCR"
        attributes = DepthSpaceAttrs(site.integer("block_size"), mode)
        return in_layout(site, op, lambda x, y: attributes)

    return row


def batch_flatten(site: ReadSite) -> Value:
    """``nn.batch_flatten(x)``."""
    return site.emit("Flatten", [site.value(0)], AxisAttrs(1))


ROWS: Mapping[str, Row] = rows_of({
    **{f"nn.global_avg_pool{n}d": global_pool("GlobalAveragePool") for n in (1, 2, 3)},
    **{f"nn.global_max_pool{n}d": global_pool("GlobalMaxPool") for n in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{n}d": global_pool("GlobalAveragePool") for n in (1, 2, 3)},
    **{f"nn.adaptive_max_pool{n}d": global_pool("GlobalMaxPool") for n in (1, 2, 3)},
    **{f"image.resize{n}d": resize for n in (1, 2, 3)},
    "nn.upsampling": upsampling,
    "nn.depth_to_space": blocks("DepthToSpace"),
    "nn.space_to_depth": blocks("SpaceToDepth"),
    "nn.batch_flatten": batch_flatten,
})  # fmt: skip
