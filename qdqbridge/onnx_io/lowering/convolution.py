"""QLinearConv (ai.onnx 10, com.microsoft 1 with ``channels_last``), ConvInteger and FusedConv."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from qdqbridge.onnx_io.lowering.activation import activated
from qdqbridge.onnx_io.lowering.layout import to_first, to_last, transposed, usual_rank
from qdqbridge.onnx_io.lowering.site import Site
from qdqbridge.onnx_io.tensors import dtype_of

_SPAN, _EXACT = 255, 1 << 24
"""The largest difference of two 8-bit integers, and the end of float32's exact ones."""


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


def conv_integer(site: Site) -> None:
    """``Cast(Conv(x - zx, DQ(w, scale 1)))`` where float32 holds every sum exactly.

    That is where ``255 * sum |w - zw| < 2^24`` for every output channel: then each partial sum is
    an integer that float32 represents, in any order of additions. Elsewhere the node stays as it
    is. TVM has no converter for the node itself, and onnxruntime 1.31 no zero points per channel.
    Against onnxruntime: bit for bit equal. Source: ONNX ConvInteger-10.
    """
    x, w, zx, zw = (site.input(i) for i in range(4))
    _same_type(site, x, zx)
    _same_type(site, w, zw)
    weight = site.known.array(w)
    zero = site.known.array(zw) if zw else np.zeros(1, np.int64)
    if weight is None or zero is None or not _exact(site, weight, zero):
        if zero is not None and zero.size > 1:
            raise site.refusal(
                "zero points per channel",
                "its sums exceed 2^24, and onnxruntime has no kernel for it",
                "quantize the weight with one zero point",
            )
        site.known.lowered.append(site.proto)
        return
    real = site.op("Cast", [x], to=TensorProto.FLOAT)
    if zx:
        real = site.op("Sub", [real, site.op("Cast", [zx], to=TensorProto.FLOAT)])
    ones = site.enter(np.ones(zero.shape if zw else (), np.float32), "unit")
    total = site.op("Conv", [real, site.dequantize(w, ones, zw, axis=0)], **site.same_attributes())
    site.op("Cast", [total], site.proto.output[0], to=TensorProto.INT32)


def _same_type(site: Site, data: str, zero_point: str) -> None:
    kinds = site.known.element_type(data), site.known.element_type(zero_point)
    if zero_point and all(kinds) and kinds[0] != kinds[1]:
        names = [dtype_of(kind, f"{site.file}, {site.describe()}") for kind in kinds]
        raise site.fault(
            "a zero point has another type than its data",
            why=f"'{data}' is {names[0]}, '{zero_point}' is {names[1]}",
            fix="give both the same element type",
        )


def _exact(site: Site, weight: NDArray[Any], zero: NDArray[Any]) -> bool:
    if weight.ndim == 0 or zero.size not in (1, len(weight)):
        raise site.fault(
            "the weight's zero point does not fit",
            why=f"it has shape {zero.shape}, the weight {weight.shape}",
        )
    if not weight.size:
        return True
    rows = weight.reshape(len(weight), -1).astype(np.int64) - zero.reshape(-1, 1).astype(np.int64)
    return int(np.abs(rows).sum(axis=1).max(initial=0)) * _SPAN < _EXACT


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
