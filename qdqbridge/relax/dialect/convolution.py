"""qnn.conv1d, conv2d and conv3d: exact integer sums.

Data is ``(N, C, spatial…)``, the weight ``(O, C / groups, kernel…)``. Padding contributes
nothing, that is, the stored zero point is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te

from qdqbridge.relax.dialect.accumulate import (
    OUT_DTYPE,
    SIX,
    centred,
    check_operands,
    padded_codes,
)
from qdqbridge.relax.dialect.arithmetic import Prim, entry
from qdqbridge.relax.dialect.kernel import BLOCK, emit_reduction, stage
from qdqbridge.relax.dialect.op import Attribute, QnnOp
from qdqbridge.relax.dialect.site import Extent, Site, const, tensor_type

LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}


@dataclass(frozen=True, slots=True)
class Window:
    """The decoded attributes of a convolution with ``rank`` spatial axes."""

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    groups: int
    out_dtype: str

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.strides)


def spread(site: Site, name: str, rank: int) -> tuple[int, ...]:
    """Returns an attribute with one positive entry per spatial axis; one entry serves all."""
    value = site.attr(name)
    values = (value,) if isinstance(value, int) else tuple(value)
    values = values * rank if len(values) == 1 else values
    if len(values) != rank or min(values) < 1:
        site.fail(f"{name} is {values}", f"give {rank} positive numbers")
    return values


def padding(site: Site, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding before and after; Relay's forms (1, ``rank`` or 2 ``rank`` entries)."""
    value = site.attr("padding")
    values = (value,) if isinstance(value, int) else tuple(value)
    values = values * rank if len(values) == 1 else values
    values = values * 2 if len(values) == rank else values
    if len(values) != 2 * rank or min(values) < 0:
        site.fail(f"padding is {values}", f"give {2 * rank} non-negative numbers, begins first")
    return values[:rank], values[rank:]


def decode_window(site: Site, rank: int, *, transposed: bool) -> Window:
    """Returns the checked attributes of a convolution with ``rank`` spatial axes."""
    data_layout, straight, swapped = LAYOUTS[rank]
    kernel_layout = swapped if transposed else straight
    for name, wanted in (("data_layout", data_layout), ("kernel_layout", kernel_layout)):
        if site.attr(name) != wanted:
            site.fail(f"{name} is {site.attr(name)}", f"only {wanted} has a legalization")
    out_dtype = check_operands(site)
    begin, end = padding(site, rank)
    window = Window(
        spread(site, "strides", rank), spread(site, "dilation", rank), begin, end,
        site.attr("groups"), out_dtype,
    )
    if window.groups < 1:
        site.fail(f"groups is {window.groups}")
    return window


def check_attributes(site: Site, channels: Extent, kernel: Sequence[Extent]) -> None:
    """Checks Relay's redundant attributes (empty or 0 where they are left out)."""
    stated = site.attr("kernel_size")
    if stated:
        for a, b in zip(stated, kernel, strict=True):
            site.expect_equal(a, b, "kernel_size and the weight")
    if site.attr("channels"):
        site.expect_equal(site.attr("channels"), channels, "channels and the weight")


def _sizes(extents: Sequence[Extent], window: Window, kernel: Sequence[int]) -> list[Extent]:
    return [
        (extent + window.begin[i] + window.end[i] - (kernel[i] - 1) * window.dilation[i] - 1)
        // window.strides[i] + 1
        for i, extent in enumerate(extents)
    ]


def _infer_conv(rank: int) -> Any:
    def infer(site: Site) -> relax.TensorType:
        window = decode_window(site, rank, transposed=False)
        x, w = site.expect_rank(0, rank + 2), site.expect_rank(1, rank + 2)
        if not all(isinstance(extent, int) for extent in w):
            site.fail(f"the weight has shape {w}", "give a weight of known shape")
        site.expect_equal(x[1], w[1] * window.groups, "channels of data and weight")
        if w[0] % window.groups:
            site.fail(f"{window.groups} groups do not divide {w[0]} output channels")
        site.expect_params(5, 3, w[0], what="output channels")
        check_attributes(site, w[0], w[2:])
        sizes = _sizes(x[2:], window, w[2:])
        if any(isinstance(size, int) and size < 1 for size in sizes):
            site.fail(f"the kernel {w[2:]} is larger than the padded input {x[2:]}")
        return tensor_type([x[0], w[0], *sizes], window.out_dtype)

    return infer


def _lower_conv(rank: int) -> Any:
    def lower(builder: relax.BlockBuilder, site: Site) -> Any:
        window = decode_window(site, rank, transposed=False)
        shape, kernel = site.shape(0), site.shape(1)[2:]
        zero_points = site.vector(3)
        shifted = bool(zero_points.any())

        def conv(x: te.Tensor, w: te.Tensor, zx: te.Tensor, *zw: te.Tensor) -> te.Tensor:
            data = padded_codes(x, zx, list(zip(window.begin, window.end, strict=True)))
            weight = _centred_weight(w, zw[0], 0) if shifted else w
            return correlation(data, weight, window, _sizes(x.shape[2:], window, kernel))

        args = [site.args[0], site.args[1], const(site.vector(2), "int32")]
        args += [const(zero_points, "int32")] if shifted else []
        flat = _pointwise(window, kernel) and all(isinstance(e, int) for e in shape[2:])
        return emit_reduction(
            builder, f"qnn_conv{rank}d", conv, args, inner=rank if flat else 1
        )

    return lower


def _pointwise(window: Window, kernel: Sequence[int]) -> bool:
    """True where output pixels lie in memory as the input pixels they come from."""
    return all(
        values == (1,) * window.rank for values in (window.strides, tuple(kernel))
    ) and not any(window.begin + window.end)


def _centred_weight(w: te.Tensor, zero_point: te.Tensor, axis: int) -> te.Tensor:
    return stage(
        w.shape,
        lambda *i: centred(w(*i), entry(zero_point, i, axis), str(w.dtype)),
        name="centred_weight",
    )


def correlation(
    data: te.Tensor, weight: te.Tensor, window: Window, sizes: Sequence[Extent]
) -> te.Tensor:
    """Returns the sums of padded, centred ``data`` with ``(O, C / groups, kernel…)`` weights."""
    out, per_group = weight.shape[0], weight.shape[1]
    taps = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(weight.shape[1:])]
    dtype = window.out_dtype

    def element(*i: Prim) -> Prim:
        group = i[1] // (out // window.groups) if window.groups > 1 else 0
        channel = group * per_group + taps[0].var if window.groups > 1 else taps[0].var
        pixel = [
            v * window.strides[d] + taps[d + 1].var * window.dilation[d]
            for d, v in enumerate(i[2:])
        ]
        product = data(i[0], channel, *pixel).astype(dtype) * weight(
            i[1], *(tap.var for tap in taps)
        ).astype(dtype)
        return te.sum(product, axis=taps)

    return stage([data.shape[0], out, *sizes], element, name=BLOCK)


def window_attributes(rank: int, *, transposed: bool) -> tuple[Attribute, ...]:
    """Returns the attributes of a convolution, with Relay's names."""
    data_layout, straight, swapped = LAYOUTS[rank]
    common = (
        Attribute("strides", [1] * rank, "one per spatial axis"),
        Attribute("padding", [0] * (2 * rank), "begins of all spatial axes, then ends"),
        Attribute("dilation", [1] * rank, "one per spatial axis"),
        Attribute("groups", 1, "number of groups"),
        Attribute("channels", 0, "output channels; 0 takes the weight's"),
        Attribute("kernel_size", [], "empty takes the weight's"),
        Attribute("data_layout", data_layout, f"only {data_layout}"),
        Attribute("kernel_layout", swapped if transposed else straight, "layout of the weight"),
        OUT_DTYPE,
    )
    if not transposed:
        return common
    return (*common, Attribute("output_padding", [0] * rank, "added to each end"))


def _conv(rank: int) -> QnnOp:
    return QnnOp(
        f"qnn.conv{rank}d", SIX, window_attributes(rank, transposed=False), _infer_conv(rank),
        _lower_conv(rank), "exact integer sum of (x - zx)(w - zw)",
    )


OPS = tuple(_conv(rank) for rank in (1, 2, 3))
