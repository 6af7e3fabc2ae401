"""QLinearConv (ai.onnx 10, com.microsoft 1 with ``channels_last``) and FusedConv."""

from __future__ import annotations

from qdqbridge.onnx_io.lowering.activation import activated
from qdqbridge.onnx_io.lowering.layout import to_first, to_last, transposed, usual_rank
from qdqbridge.onnx_io.lowering.site import Site


def qlinear_conv(site: Site) -> None:
    """``Q(Conv(DQ(x), DQ(w), DQ(bias)))``; the int32 bias is in units of ``sx * sw``.

    Against onnxruntime 1.31's kernel: bit for bit equal (the numeric contract is that kernel's).
    Source: ONNX QLinearConv-10; onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, w, sw, zw, sy, zy, bias = (site.input(i) for i in range(9))
    last = site.flag("channels_last")
    rank = usual_rank(site, w)
    if last:
        x = transposed(site, x, to_first(rank))
    operands = [site.dequantize(x, sx, zx), site.dequantize(w, sw, zw, axis=0)]
    if bias:
        operands.append(site.dequantize(bias, site.product([sx, sw]), axis=0))
    y = site.op("Conv", operands, **site.same_attributes("channels_last"))
    output = site.proto.output[0]
    stored = site.quantize(y, sy, zy, x, "" if last else output)
    if last:
        transposed(site, stored, to_last(rank), output)


def fused_conv(site: Site) -> None:
    """``activation(Conv(x, w, bias) + z)``.

    onnxruntime adds ``z`` inside the convolution's sum, so float results may differ in the last
    bit. Source: onnxruntime docs/ContribOperators.md, core/optimizer/conv_activation_fusion.cc.
    """
    own = ("activation", "activation_params")
    skip = site.input(3)
    kind = site.string("activation", "")
    output = site.proto.output[0]
    result = "" if skip or kind else output
    y = site.op("Conv", [site.input(i) for i in range(3)], result, **site.same_attributes(*own))
    if skip:
        y = site.op("Add", [y, skip], "" if kind else output)
    if kind:
        activated(site, kind, site.floats("activation_params", ()), y, output)
