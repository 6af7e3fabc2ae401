"""Operators over windows: strides, dilations and pads made explicit; convolutions; Resize."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, ResizeAttrs
from qdqbridge.core.ops.resize import COORDINATES, OF_OPSET_11, with_defaults
from qdqbridge.core.ops.shapes import same_padding, span, split_padding
from qdqbridge.onnx_io.codecs.codec import Decode, Decoded, decoded
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow

# ---- Strides, dilations and pads of sliding windows, made explicit -------------------------------


_AUTO = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class ResolvedWindow:
    """A resolved sliding window over the spatial axes."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads: Ints
    auto_pad: str

    @property
    def same(self) -> bool:
        """True where the pads came from ``auto_pad`` SAME_UPPER or SAME_LOWER."""
        return self.auto_pad.startswith("SAME")

    def spans(self) -> Ints:
        """Returns the elements that the dilated kernel covers along every axis."""
        pairs = zip(self.kernel, self.dilations, strict=True)
        return tuple(span(k, d) for k, d in pairs)


def kernel_of(node: NodeView, weight: int | None) -> Ints:
    """Returns the kernel extents from ``kernel_shape`` and the weight (axes 2 and on).

    Raises:
        InvalidModelError: The two disagree, or an extent is not positive.
        NoRow: Neither is known.
    """
    given = node.ints("kernel_shape", None)
    shape = None if weight is None else node.shape(weight)
    if given is None and shape is None:
        raise NoRow("the extents of the kernel are unknown")
    if shape is not None:
        spatial = shape[2:]
        clash = given is not None and (
            len(given) != len(spatial)
            or any(isinstance(b, int) and a != b for a, b in zip(given, spatial, strict=True))
        )
        if clash or len(shape) < 3:
            raise node.fault(
                "kernel_shape and the weight disagree" if clash else "the weight has too few axes",
                why=f"kernel_shape is {given}, the weight's shape is {list(shape)}",
                fix="drop kernel_shape, or export the right weight",
            )
        if given is None:
            given = tuple(d for d in spatial if isinstance(d, int))
            if len(given) != len(spatial):
                raise NoRow("the extents of the kernel are unknown")
    assert given is not None
    return _checked(node, "kernel_shape", given, len(given), 1)


def open_kernel_of(node: NodeView, weight: int) -> Ints:
    """Returns the kernel extents as :func:`kernel_of`, and 1 for each that only the run knows.

    Only where nothing is computed from them: neither pads nor a wanted output shape. What
    ``kernel_shape`` says of such a weight is no more than a check, which the row does not keep.

    Raises:
        InvalidModelError: ``kernel_shape`` and the weight disagree, or an extent is not positive.
        NoRow: The extents are needed and not known.
    """
    shape = node.shape(weight)
    # Then pads follow from the kernel, and 1 in its place would give wrong ones.
    computed = node.has("output_shape") or "SAME" in (node.string("auto_pad", "") or "")
    if node.has("kernel_shape") or computed:
        return kernel_of(node, weight)
    if shape is None and node.has("strides"):
        return (1,) * len(node.ints("strides", ()))
    if shape is None or len(shape) < 3 or all(isinstance(dim, int) for dim in shape[2:]):
        return kernel_of(node, weight)
    return tuple(dim if isinstance(dim, int) else 1 for dim in shape[2:])


def window_of(node: NodeView, kernel: Ints, *, pad_now: bool = True) -> ResolvedWindow:
    """Returns the window of a convolution or pool, with ``auto_pad`` resolved.

    Args:
        node: The node; operand 0 is ``(N, C, spatial…)``.
        kernel: The kernel's extents.
        pad_now: False where SAME means something else (ConvTranspose): pads stay 0.

    Raises:
        NoRow: The pads depend on unknown extents of the input.
    """
    rank = len(kernel)
    shape = node.shape(0)
    if shape is not None and len(shape) != rank + 2:
        raise node.fault(
            f"the kernel has {rank} axes and the input {len(shape)}",
            why="the input needs two axes more than the kernel",
        )
    auto_pad = node.string("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in _AUTO:
        raise node.fault(f"auto_pad is '{auto_pad}'", why=f"it is one of {', '.join(_AUTO)}")
    strides = _checked(node, "strides", node.ints("strides", (1,) * rank), rank, 1)
    dilations = _checked(node, "dilations", node.ints("dilations", (1,) * rank), rank, 1)
    pads = (0,) * (2 * rank)
    if auto_pad == "NOTSET":
        pads = _checked(node, "pads", node.ints("pads", pads), 2 * rank, 0)
    window = ResolvedWindow(kernel, strides, dilations, pads, auto_pad)
    if window.same and pad_now:
        return ResolvedWindow(kernel, strides, dilations, _same_pads(node, window), auto_pad)
    return window


def _same_pads(node: NodeView, window: ResolvedWindow) -> Ints:
    totals: list[int] = []
    for i, (covered, stride) in enumerate(zip(window.spans(), window.strides, strict=True)):
        # With stride 1 the pads do not depend on the extent, which may be open.
        extent = 1 if stride == 1 else node.known_extent(i + 2)
        # A kernel that is smaller than the stride would need to crop, which pads of SAME never do.
        totals.append(max(same_padding(extent, covered, stride), 0))
    return split_padding(totals, upper=window.auto_pad == "SAME_UPPER")


def _checked(node: NodeView, name: str, entries: Ints, count: int, least: int) -> Ints:
    if len(entries) != count or any(entry < least for entry in entries):
        raise node.fault(
            f"{name} does not fit the kernel",
            why=f"it is {list(entries)}; {count} entries of at least {least} are needed",
            fix=f"correct {name}",
        )
    return entries


# ---- Conv and ConvTranspose ----------------------------------------------------------------------


def _read_conv(node: NodeView) -> Decoded:
    window = window_of(node, open_kernel_of(node, 1))
    group = node.int_("group", 1)
    weight = node.shape(1) or ()
    _check_group(node, group, node.extent(1), weight[0] if weight else None)
    if len(weight) > 1 and isinstance(weight[1], int):
        channels = node.extent(1)
        if channels is not None and channels != weight[1] * group:
            raise node.fault(
                "the weight does not fit the input's channels",
                why=f"the input has {channels} channels, the weight takes {weight[1]} × {group}",
                fix="correct group or the weight",
            )
    attributes = ConvAttrs(window.strides, window.dilations, window.pads, group)
    return decoded("Conv", attributes, node.operands)


def _check_group(node: NodeView, group: int, *channels: object) -> None:
    if group < 1 or any(isinstance(c, int) and c % group for c in channels):
        raise node.fault(
            "group does not divide the channels",
            why=f"group is {group}, the channels are {list(channels)}",
            fix="correct group",
        )


def _read_transpose(node: NodeView) -> Decoded:
    window = window_of(node, open_kernel_of(node, 1), pad_now=False)
    rank = len(window.kernel)
    group = node.int_("group", 1)
    weight = node.shape(1) or ()
    _check_group(node, group, node.extent(1), weight[0] if weight else None)
    extra = node.ints("output_padding", (0,) * rank) or (0,) * rank
    if len(extra) != rank or any(entry < 0 for entry in extra):
        raise node.fault(
            "output_padding does not fit the kernel",
            why=f"it is {list(extra)} for {rank} spatial axes",
            fix="correct output_padding",
        )
    shape = node.ints("output_shape", ())
    pads = window.pads
    if shape or window.same:
        pads, extra = _pads_for(node, window, extra, shape[-rank:] if shape else None)
    attributes = ConvTransposeAttrs(window.strides, window.dilations, pads, extra, group)
    return decoded("ConvTranspose", attributes, node.operands)


def _pads_for(
    node: NodeView, window: ResolvedWindow, extra: Ints, shape: Ints | None
) -> tuple[Ints, Ints]:
    """Returns pads and output padding that give a wanted output shape (ONNX ConvTranspose).

    SAME makes the output the input times the stride where that crops. ONNX's text says so where the
    kernel is smaller than the stride as well; its shape inference and onnxruntime (1.32) then leave
    the output as it is, and files are made for that shape.
    """
    totals: list[int] = []
    extras: list[int] = []
    for i, (covered, stride) in enumerate(zip(window.spans(), window.strides, strict=True)):
        if shape is None:
            totals.append(max(extra[i] + covered - stride, 0))
            extras.append(extra[i])
            continue
        total = stride * (node.known_extent(i + 2) - 1) + extra[i] + covered - shape[i]
        totals.append(max(total, 0))
        # A wanted shape beyond what the kernel reaches cannot come from negative pads: the output
        # is padded.
        extras.append(extra[i] + max(-total, 0))
        if total < 0 and extras[-1] >= max(stride, window.dilations[i]):
            raise NoRow("output_shape is larger than the operator reaches")
    return split_padding(totals, upper=window.auto_pad == "SAME_UPPER"), tuple(extras)


READ: Mapping[str, Decode] = {"Conv": _read_conv, "ConvTranspose": _read_transpose}


# ---- Resize in every version, and Upsample, its older name ---------------------------------------


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
    # onnxruntime holds scales as float32, and sizes follow from the rounded one.
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


RESIZE_READ: Mapping[str, Decode] = {"Resize": _decode_resize, "Upsample": _read_old}
