"""Resize in every version, and Upsample, its older name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.core.ops.resize import COORDINATES, OF_OPSET_11, with_defaults
from qdqbridge.onnx_io.codecs.codec import Decode, Decoded, decoded
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow

_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
Scales = tuple[float, ...]


def _read_old(node: NodeView) -> Decoded:
    """Upsample 7 and 9, Resize 10: asymmetric coordinates, scales only."""
    scales = node.floats("scales", None) if node.opset < 9 else _scales(node, 1)
    if scales is None:
        raise node.fault("scales are missing")
    _check_count(node, "scales", scales, 1)
    mode = node.string("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    nearest = "round_prefer_floor"
    if mode == "nearest":
        # onnxruntime's reading of the opset-10 text: truncate going up, round up going down.
        down = [scale < 1 for scale in scales if scale != 1]
        if any(down) and not all(down):
            raise NoRow("it makes one axis longer and another shorter by an old rounding rule")
        nearest = "ceil" if any(down) else "floor"
    elif mode != "linear":
        raise node.fault(f"the mode is '{mode}'")
    attributes = ResizeAttrs(mode, "asymmetric", nearest, scales, None)
    return decoded("Resize", attributes, node.operands[:1])


def _decode_resize(node: NodeView) -> Decoded:
    if node.opset < 11:
        return _read_old(node)
    mode = node.string("mode", "nearest")
    coordinates = node.string("coordinate_transformation_mode", "half_pixel")
    nearest = node.string("nearest_mode", "round_prefer_floor")
    if mode not in ("nearest", "linear", "cubic") or nearest not in _NEAREST:
        raise node.fault(f"Resize has mode '{mode}' and nearest_mode '{nearest}'")
    if coordinates not in COORDINATES:
        raise NoRow(f"coordinate_transformation_mode is '{coordinates}'")
    if mode != "nearest" and node.flag("antialias"):
        raise NoRow("it smooths before it shrinks (antialias)")
    axes = node.ints("axes", None)
    axes = None if axes is None else node.wrap_all(axes)
    scales, sizes = _full_resize_extents(node, axes)
    exact = mode == "nearest" and nearest == "floor" and _powers_of_two(node, scales, sizes)
    if coordinates == OF_OPSET_11 and exact:
        coordinates, nearest = "half_pixel", "round_prefer_ceil"  # the same, without rounding
    attributes = ResizeAttrs(
        mode,
        coordinates,
        nearest,
        scales,
        sizes,
        cubic_coeff_a=node.float_("cubic_coeff_a", -0.75),
        exclude_outside=node.flag("exclude_outside"),
        extrapolation_value=node.float_("extrapolation_value", 0.0),
        roi=_roi(node, axes) if coordinates == "tf_crop_and_resize" else (),
    )
    return decoded("Resize", with_defaults(attributes), node.operands[:1])


def _scales(node: NodeView, index: int) -> Scales | None:
    array = node.constant(index)
    if array is None or array.size == 0:
        return None
    scales = tuple(float(scale) for scale in np.asarray(array, np.float32).reshape(-1))
    if not all(math.isfinite(scale) and scale > 0 for scale in scales):
        raise node.fault("a scale is not a positive number", why=f"the scales are {list(scales)}")
    return scales


def _full_resize_extents(node: NodeView, axes: Ints | None) -> tuple[Scales | None, Ints | None]:
    """Returns scales or sizes of every axis."""
    scales, sizes = _scales(node, 2), node.constant_ints(3) or None
    if (scales is None) == (sizes is None):
        raise node.fault(
            "Resize needs either scales or sizes", why=f"scales {scales}, sizes {sizes}"
        )
    if scales is not None:
        _check_count(node, "scales", scales, 1, axes)
        if axes is None:
            return scales, None
        full = dict.fromkeys(range(node.rank()), 1.0) | dict(zip(axes, scales, strict=True))
        return tuple(full.values()), None
    assert sizes is not None
    _check_count(node, "sizes", sizes, 1, axes)
    policy = node.string("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return _kept_ratio(node, axes or tuple(range(len(sizes))), sizes, policy)
    if axes is None:
        return None, sizes
    wanted = dict(zip(axes, sizes, strict=True))
    return None, tuple(
        wanted[i] if i in wanted else node.known_extent(i) for i in range(node.rank())
    )


def _powers_of_two(node: NodeView, scales: Scales | None, sizes: Ints | None) -> bool:
    if scales is None:
        assert sizes is not None
        scales = tuple(size / (node.extent(i) or math.nan) for i, size in enumerate(sizes))
    return all(math.frexp(scale)[0] == 0.5 for scale in scales)


def _kept_ratio(
    node: NodeView, axes: Ints, sizes: Ints, policy: str
) -> tuple[Scales | None, Ints | None]:
    """Returns what ``keep_aspect_ratio_policy`` means: one scale, sizes rounded half up."""
    choose = {"not_larger": min, "not_smaller": max}.get(policy)
    if choose is None:
        raise node.fault(f"keep_aspect_ratio_policy is '{policy}'")
    shape = [node.known_extent(i) for i in range(node.rank())]
    if 0 in shape:
        raise NoRow("the input is empty")
    scale = float(np.float32(choose(s / shape[a] for a, s in zip(axes, sizes, strict=True))))
    scales = tuple(scale if i in axes else 1.0 for i in range(len(shape)))
    out = tuple(
        int(scale * extent + 0.5) if i in axes else extent for i, extent in enumerate(shape)
    )
    if all(np.float32(o / e) == np.float32(s) for o, e, s in zip(out, shape, scales, strict=True)):
        return None, out
    if all(int(e * s) == o for o, e, s in zip(out, shape, scales, strict=True)):
        return scales, None
    raise NoRow("the aspect ratio cannot be kept with plain scales or sizes")


def _check_count(
    node: NodeView, name: str, entries: Sequence[float], per_axis: int, axes: Ints | None = None
) -> None:
    shape = node.shape(0)
    count = len(axes) if axes is not None else None if shape is None else len(shape)
    if count is not None and len(entries) != per_axis * count:
        raise node.fault(
            f"{name} does not fit the input", why=f"{len(entries)} entries for {count} axes"
        )


def _roi(node: NodeView, axes: Ints | None) -> tuple[float, ...]:
    array = node.constant(1)
    roi = () if array is None else tuple(float(r) for r in np.asarray(array).reshape(-1))
    _check_count(node, "roi", roi, 2, axes)
    if axes is None:
        return roi
    rank = node.rank()
    full = [0.0] * rank + [1.0] * rank
    for i, axis in enumerate(axes):
        full[axis], full[axis + rank] = roi[i], roi[i + len(axes)]
    return tuple(full)


READ: Mapping[str, Decode] = {"Resize": _decode_resize, "Upsample": _read_old}
