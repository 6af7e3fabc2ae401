"""Casts to 8- and 4-bit floats, and dynamic quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.quantization import per_tensor
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.floating import unit_params
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

_LAST = 255
"""The last code of the type that dynamic quantization has."""


def _cast(site: CompositionSite) -> Sequence[Expr]:
    target, source = site.result_dtype(), site.onnx.operand(0).type.dtype
    if not target.is_small_float or source is DType.STRING:
        raise NoRow("TVM's own operators have it")
    x = site.arg(0)
    if source.is_small_float:
        x = site.scope.dequantize(x, unit_params(source))
    attrs = {
        "axis": -1,
        "format": target.label,
        "saturate": site.onnx.flag("saturate", default=True) or target.is_finite,
        "rounding": "nearest",
    }
    if target is DType.FLOAT8_E8M0:
        attrs["rounding"] = site.onnx.string("round_mode", "up")
    one = site.number(np.ones(()), "float32")
    return [site.scope.qnn("quantize_minifloat", [site.cast(x, "float32"), one], attrs)]


def _dynamic_quantize(site: CompositionSite) -> Sequence[Expr]:
    """``y, scale, zero point`` of the range of ``x`` and 0, as onnxruntime has them.

    Numbers that are none do not count; of a range without extent the scale is 1 (ONNX leaves it
    open), and a zero point that is not a number is the last one.
    """
    x = site.arg(0)
    zero, one, last = (site.number(value, "float32") for value in (0, 1, _LAST))
    numbers = site("where", site("equal", x, x), x, zero)
    low = site("minimum", site("min", numbers), zero)
    high = site("maximum", site("max", numbers), zero)
    step = site("divide", site("subtract", high, low), last)
    scale = site("where", site("equal", high, low), one, step)
    place = site("subtract", zero, site("divide", low, scale))
    clipped = site("minimum", site("maximum", place, zero), last)
    shift = site("round", site("where", site("equal", place, place), clipped, last))
    scaled = site("add", site("round", site("divide", x, scale)), shift)
    y = site.scope.quantize(scaled, per_tensor(DType.UINT8, 1.0))
    return [y, scale, site.cast(shift, "uint8")]


CONVERSION: Mapping[str, Composition] = {
    "Cast": _cast,
    "DynamicQuantizeLinear": _dynamic_quantize,
}
