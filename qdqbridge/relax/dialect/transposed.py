"""qnn.conv1d_transpose, conv2d_transpose and conv3d_transpose: exact integer sums.

The input is spread by the strides (zeros between its elements) and correlated with the mirrored
kernel, as ``output[y] = sum over taps of x[(y + begin - tap * dilation) / stride] * w[tap]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from qdqbridge.relax.dialect.accumulate import SIX, centred, narrow_dtype
from qdqbridge.relax.dialect.arithmetic import Prim, entry
from qdqbridge.relax.dialect.convolution import (
    Window,
    check_attributes,
    correlation,
    decode_window,
    window_attributes,
)
from qdqbridge.relax.dialect.kernel import emit_reduction, stage
from qdqbridge.relax.dialect.op import QnnOp
from qdqbridge.relax.dialect.site import Extent, Site, const, tensor_type


def _extra(site: Site, window: Window) -> tuple[int, ...]:
    extra = tuple(site.attr("output_padding"))
    if len(extra) != window.rank or min(extra) < 0:
        site.fail(f"output_padding is {extra}", f"give {window.rank} non-negative numbers")
    return extra


def _sizes(
    extents: Sequence[Extent], window: Window, kernel: Sequence[int], extra: Sequence[int]
) -> list[Extent]:
    return [
        (extent - 1) * window.strides[i] + (kernel[i] - 1) * window.dilation[i] + 1
        + extra[i] - window.begin[i] - window.end[i]
        for i, extent in enumerate(extents)
    ]


def _infer(rank: int) -> Any:
    def infer(site: Site) -> relax.TensorType:
        window = decode_window(site, rank, transposed=True)
        extra = _extra(site, window)
        x, w = site.expect_rank(0, rank + 2), site.expect_rank(1, rank + 2)
        if not all(isinstance(extent, int) for extent in w):
            site.fail(f"the weight has shape {w}", "give a weight of known shape")
        site.expect_equal(x[1], w[0], "channels of data and weight")
        if w[0] % window.groups:
            site.fail(f"{window.groups} groups do not divide {w[0]} input channels")
        out = w[1] * window.groups
        for index, dtype in ((5, "float32"), (3, "int32")):
            site.expect_vector(index, dtype, w[1], out, what="output channels")
        check_attributes(site, out, w[2:])
        sizes = _sizes(x[2:], window, w[2:], extra)
        if any(isinstance(size, int) and size < 1 for size in sizes):
            site.fail(f"the padding leaves an output of {sizes}")
        return tensor_type([x[0], out, *sizes], window.out_dtype)

    return infer


def _lower(rank: int) -> Any:
    def lower(builder: relax.BlockBuilder, site: Site) -> Any:
        window, kernel = decode_window(site, rank, transposed=True), site.shape(1)[2:]
        extra = _extra(site, window)
        dense = Window(
            (1,) * rank, window.dilation, (0,) * rank, (0,) * rank, window.groups,
            window.out_dtype,
        )

        def conv(x: te.Tensor, w: te.Tensor, zx: te.Tensor, zw: te.Tensor) -> te.Tensor:
            sizes = _sizes(x.shape[2:], window, kernel, extra)
            data = _spread_codes(x, zx, window, kernel, sizes)
            weight = _mirrored_weight(w, zw, window.groups)
            return correlation(data, weight, dense, sizes)

        args = [site.args[0], site.args[1], const(site.vector(2), "int32")]
        args.append(const(site.vector(3), "int32"))
        return emit_reduction(builder, f"qnn_conv{rank}d_transpose", conv, args, inner=1)

    return lower


def _spread_codes(
    x: te.Tensor, zero_point: te.Tensor, window: Window, kernel: Sequence[int],
    sizes: Sequence[Extent],
) -> te.Tensor:
    """Returns ``x - zero_point`` with zeros between its elements and around them."""
    spans = [(kernel[d] - 1) * window.dilation[d] for d in range(window.rank)]
    shape = [*x.shape[:2], *(size + span for size, span in zip(sizes, spans, strict=True))]
    nothing = tirx.const(0, narrow_dtype(str(x.dtype)))

    def element(*i: Prim) -> Prim:
        where, inside = list(i[:2]), []
        for d, stride in enumerate(window.strides):
            position = i[d + 2] - (spans[d] - window.begin[d])
            source = tirx.floordiv(position, stride)
            where.append(source)
            inside += [position >= 0, source < x.shape[d + 2]]
            if stride > 1:
                inside.append(tirx.floormod(position, stride) == 0)
        value = centred(x(*where), zero_point[0], str(x.dtype))
        return tirx.if_then_else(tirx.all(*inside), value, nothing)

    return stage(shape, element, name="centred_data")


def _mirrored_weight(w: te.Tensor, zero_point: te.Tensor, groups: int) -> te.Tensor:
    """Returns ``w - zero_point`` as ``(O, C / groups, kernel…)`` with the kernel reversed."""
    channels, out = (int(extent) for extent in w.shape[:2])
    per_group = channels // groups

    def element(*i: Prim) -> Prim:
        source = tirx.floordiv(i[0], out) * per_group + i[1] if groups > 1 else i[1]
        column = tirx.floormod(i[0], out) if groups > 1 else i[0]
        taps = [w.shape[d] - 1 - v for d, v in enumerate(i[2:], start=2)]
        own = entry(zero_point, (column, i[0]), 0 if int(zero_point.shape[0]) == out else 1)
        return centred(w(source, column, *taps), own, str(w.dtype))

    return stage([out * groups, per_group, *w.shape[2:]], element, name="centred_weight")


OPS = tuple(
    QnnOp(
        f"qnn.conv{rank}d_transpose", SIX, window_attributes(rank, transposed=True),
        _infer(rank), _lower(rank), "exact integer sum of (x - zx)(w - zw), transposed",
    )
    for rank in (1, 2, 3)
)
