"""com.microsoft's QLinearAveragePool, QLinearGlobalAveragePool and NhwcMaxPool."""

from __future__ import annotations

from qdqbridge.onnx_io.lowering.layout import to_first, to_last, transposed, usual_rank
from qdqbridge.onnx_io.lowering.site import LoweringSite


def _average(site: LoweringSite, op_type: str) -> None:
    x, sx, zx, sy, zy = (site.input(i) for i in range(5))
    last = site.flag("channels_last")
    kernel = site.ints("kernel_shape", None)
    rank = usual_rank(site, x) if kernel is None else len(kernel) + 2
    like = x
    if last:
        x = transposed(site, x, to_first(rank))
    real = site.op(op_type, [site.dequantize(x, sx, zx)], **site.same_attributes("channels_last"))
    output = site.proto.output[0]
    stored = site.quantize(real, sy, zy, like, "" if last else output)
    if last:
        transposed(site, stored, to_last(rank), output)


def average_pool(site: LoweringSite) -> None:
    """``Q(AveragePool(DQ(x)))``.

    Against onnxruntime 1.31's kernel, which rounds ``v + zy`` instead of ``v``: 1 LSB at midpoints
    where zy is odd (scales that are powers of two: 2.5 % of the results; others 0 of 36,000).
    Source: onnxruntime docs/ContribOperators.md,
    contrib_ops/cpu/quantization/qlinear_pool.cc.
    """
    _average(site, "AveragePool")


def global_average_pool(site: LoweringSite) -> None:
    """``Q(GlobalAveragePool(DQ(x)))``.

    Against onnxruntime 1.31's kernel, which sums integers too: 0 of 20,000 differ.
    Source: onnxruntime docs/ContribOperators.md, core/mlas/lib/qlgavgpool.cpp.
    """
    _average(site, "GlobalAveragePool")


def nhwc_max_pool(site: LoweringSite) -> None:
    """``MaxPool`` of stored integers between transpositions. Exact.

    Source: onnxruntime docs/ContribOperators.md.
    """
    rank = len(site.ints("kernel_shape", ())) + 2
    x = transposed(site, site.input(0), to_first(rank))
    y = site.op("MaxPool", [x], **site.same_attributes())
    transposed(site, y, to_last(rank), site.proto.output[0])
