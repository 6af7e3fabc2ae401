"""Strides, dilations and pads of sliding windows, made explicit."""

from __future__ import annotations

from dataclasses import dataclass

from qdqbridge.core.ops.shapes import same_padding, span, split_padding
from qdqbridge.onnx_io.codecs.view import Ints, NodeView, NoRow

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
