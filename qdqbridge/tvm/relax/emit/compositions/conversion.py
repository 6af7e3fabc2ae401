"""Casts to 8- and 4-bit floats, and dynamic quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.quantization import per_tensor
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.qnn.emit.floating import unit_params
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_LAST = 255
"""The last code of the type that dynamic quantization has."""


def _cast_to_small_float(context: CompositionContext) -> Sequence[Expr]:
    target, source = context.result_dtype(), context.onnx.operand(0).type.dtype
    if not target.is_small_float or source is DType.STRING:
        raise NoRow("TVM's own operators have it")
    x = context.arg(0)
    if source.is_small_float:
        x = context.emitter.dequantize(x, unit_params(source))
    attrs = {
        "axis": -1,
        "format": target.label,
        "saturate": context.onnx.flag("saturate", default=True) or target.is_finite,
        "rounding": "nearest",
    }
    if target is DType.FLOAT8_E8M0:
        attrs["rounding"] = context.onnx.string("round_mode", "up")
    one = context.number(np.ones(()), "float32")
    return [context.emitter.qnn("quantize_minifloat", [context.cast(x, "float32"), one], attrs)]


def _dynamic_quantize(context: CompositionContext) -> Sequence[Expr]:
    """``y, scale, zero point`` of the range of ``x`` and 0, as onnxruntime has them.

    Numbers that are none do not count; of a range without extent the scale is 1 (ONNX leaves it
    open), and a zero point that is not a number is the last one.
    """
    x = context.arg(0)
    zero, one, last = (context.number(value, "float32") for value in (0, 1, _LAST))
    numbers = context("where", context("equal", x, x), x, zero)
    low = context("minimum", context("min", numbers), zero)
    high = context("maximum", context("max", numbers), zero)
    step = context("divide", context("subtract", high, low), last)
    scale = context("where", context("equal", high, low), one, step)
    place = context("subtract", zero, context("divide", low, scale))
    clipped = context("minimum", context("maximum", place, zero), last)
    shift = context("round", context("where", context("equal", place, place), clipped, last))
    scaled = context("add", context("round", context("divide", x, scale)), shift)
    y = context.emitter.quantize(scaled, per_tensor(DType.UINT8, 1.0))
    return [y, scale, context.cast(shift, "uint8")]


CONVERSION: Mapping[str, Composition] = {
    "Cast": _cast_to_small_float,
    "DynamicQuantizeLinear": _dynamic_quantize,
}
