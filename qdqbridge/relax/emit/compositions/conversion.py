"""Casts to 8- and 4-bit floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.qnn.emit.floating import unit_params
from qdqbridge.qnn.emit.scope import Expr
from qdqbridge.relax.emit.compositions.site import Composition, Site


def _cast(site: Site) -> Sequence[Expr]:
    target, source = site.result_dtype(), site.onnx.operand(0).type.dtype
    if not target.is_small_float or source is DType.STRING:
        raise NoRow("TVM's own operators have it")
    x = site.arg(0)
    if source.is_small_float:
        x = site.scope.dequantize(x, unit_params(source))
    attrs = {
        "axis": -1,
        "format": target.label,
        "saturate": site.onnx.flag("saturate", default=True) or target is DType.FLOAT4_E2M1,
        "rounding": "nearest",
    }
    if target is DType.FLOAT8_E8M0:
        attrs["rounding"] = site.onnx.string("round_mode", "up")
    one = site.number(np.ones(()), "float32")
    return [site.scope.qnn("quantize_minifloat", [site.cast(x, "float32"), one], attrs)]


CONVERSION: Mapping[str, Composition] = {"Cast": _cast}
