"""QLinearConv (ai.onnx 10, com.microsoft 1 with ``channels_last``), ConvInteger and FusedConv."""

from __future__ import annotations

from qdqbridge.onnx_io.lowering.activation import activated
from qdqbridge.onnx_io.lowering.integer_products import (
    along_channels,
    conv_sum,
    of_run_time,
    rounded,
)
from qdqbridge.onnx_io.lowering.layout import to_first, to_last, transposed, usual_rank
from qdqbridge.onnx_io.lowering.site import LoweringSite
from qdqbridge.onnx_io.tensors import dtype_of


def qlinear_conv(site: LoweringSite) -> None:
    """``Q(Conv(DQ(x), DQ(w), DQ(bias)))``; the int32 bias is in units of ``sx * sw``.

    With parameters of run time the same in integers. Against onnxruntime 1.31's kernel: bit for bit
    equal (the numeric contract is that kernel's), of run time 1.32's.
    Source: ONNX QLinearConv-10; onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, w, sw, zw, sy, zy, bias = (site.input(i) for i in range(9))
    last = site.flag("channels_last")
    rank = usual_rank(site, w)
    if last:
        x = transposed(site, x, to_first(rank))
    output = site.proto.output[0]
    result = "" if last else output
    if of_run_time(site, [sx, zx, sw, zw, sy, zy], [x, w]):
        total = conv_sum(site, (x, zx), (w, zw))
        if bias:
            total = site.op("Add", [total, along_channels(site, bias, w)])
        stored = rounded(site, total, (sx, along_channels(site, sw, w), sy), zy, result)
    else:
        operands = [site.dequantize(x, sx, zx), site.dequantize(w, sw, zw, axis=0)]
        if bias:
            operands.append(site.dequantize(bias, site.product([sx, sw]), axis=0))
        y = site.op("Conv", operands, **site.same_attributes("channels_last"))
        stored = site.quantize(y, sy, zy, x, result)
    if last:
        transposed(site, stored, to_last(rank), output)


def conv_integer(site: LoweringSite) -> None:
    """An exact float convolution, where float32 holds every sum; elsewhere it stays as it is.

    Against onnxruntime: bit for bit equal. Source: ONNX ConvInteger-10.
    """
    x, w, zx, zw = (site.input(i) for i in range(4))
    _same_type(site, x, zx)
    _same_type(site, w, zw)
    conv_sum(site, (x, zx), (w, zw), site.proto.output[0])


def _same_type(site: LoweringSite, data: str, zero_point: str) -> None:
    kinds = site.known.element_type(data), site.known.element_type(zero_point)
    if zero_point and all(kinds) and kinds[0] != kinds[1]:
        names = [dtype_of(kind, f"{site.file}, {site.describe()}") for kind in kinds]
        raise site.fault(
            "a zero point has another type than its data",
            why=f"'{data}' is {names[0]}, '{zero_point}' is {names[1]}",
            fix="give both the same element type",
        )


def fused_conv(site: LoweringSite) -> None:
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
