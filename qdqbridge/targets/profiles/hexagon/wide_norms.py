"""LayerNormalization of 16 bits whose scale is not a number of 8: scaled and moved behind it.

The backend is some 10 to 30 of 65,536 steps off where the scale of a norm has 16 bits, or is float
(onnxruntime-qnn 2.7.0, host build, every architecture). With the scale 1 in uint8 it is exact, and
so are Mul and Add of 16 bits, within a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.build import constant, result
from qdqbridge.core.ops.elementwise import ADD, MUL
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION
from qdqbridge.core.rewrite.rule import Proposal, Replace, RuleContext, rule
from qdqbridge.targets.profiles.hexagon.norms import as_uint8

Array = NDArray[Any]
_WIDE = (DType.UINT16, DType.INT16)
_MIDDLE = 1 << 15


@rule("norm-scaled-behind", LAYER_NORMALIZATION)
def wide_norms(node: Node, context: RuleContext) -> Proposal:
    """``LayerNormalization(x, g, b) -> Add(Mul(LayerNormalization(x, 1), g), b)`` of 16 bits."""
    del context
    attributes, shape = LAYER_NORMALIZATION.of(node), node.output.type.shape or ()
    sides = [value.quant for value in (*node.inputs[:1], node.output) if value is not None]
    if attributes is None or not all(q and q.params.storage_dtype in _WIDE for q in sides):
        return None
    gain, bias, extent = node.optional(1), node.optional(2), shape[-1] if shape else None
    along = attributes.axis in (-1, len(shape) - 1) and isinstance(extent, int)
    if gain is None or gain.constant is None or as_uint8(gain) is not None or not along:
        return None
    if bias is not None and bias.constant is None:
        return None
    assert isinstance(extent, int)
    text = "it is scaled and moved behind it, and rounded three times"
    value = _apart(node, gain, bias, extent)
    return Replace({node.output: value}, (Note("wide-arithmetic", node.name, text),))


def _apart(node: Node, gain: Value, bias: Value | None, extent: int) -> Value:
    shape, name, output = node.output.type.shape, node.output.name, node.output
    assert output.quant is not None
    factors, terms = (
        _flat_norm_constant(gain),
        np.zeros(1) if bias is None else _flat_norm_constant(bias),
    )
    most = _most(output.quant.params, factors, terms, extent)
    one = constant(np.ones(extent, np.uint8), per_tensor(DType.UINT8, np.float32(1)), f"{name}_one")
    types = [QuantType(_around_zero(top), shape) for top in (most, most * np.abs(factors).max())]
    norm = result(
        LAYER_NORMALIZATION, node.attributes, [node.operand(0), one], types[0], node.origin,
        f"{name}_norm",
    )  # fmt: skip
    if bias is None:
        return result(
            MUL, NO_ATTRIBUTES, [norm, _as_16bit_constant(gain)], output.type, node.origin, name
        )
    scaled = result(
        MUL,
        NO_ATTRIBUTES,
        [norm, _as_16bit_constant(gain)],
        types[1],
        node.origin,
        f"{name}_scaled",
    )
    return result(
        ADD, NO_ATTRIBUTES, [scaled, _as_16bit_constant(bias)], output.type, node.origin, name
    )


def _flat_norm_constant(value: Value) -> Array:
    assert value.constant is not None
    array = value.constant.numpy()
    array = array if value.quant is None else dequantize(array, value.quant.params)
    return array.astype(np.float64).reshape(-1)


def _most(own: QuantParams, factors: Array, terms: Array, extent: int) -> float:
    """Returns the largest normalized number that a result can tell from larger ones."""
    scale, zero = float(own.scale.reshape(-1)[0]), int(own.zero_point.reshape(-1)[0])
    ends = [scale * (int(end) - zero) for end in (own.storage_dtype.qmin, own.storage_dtype.qmax)]
    reach = np.maximum(np.abs(ends[0] - terms), np.abs(ends[1] - terms))
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(factors == 0, 0, reach / np.abs(factors)).max(initial=0)
    # no number of a row is further from its mean than this many deviations
    return float(min(needed, np.sqrt(extent))) or 1.0


def _around_zero(top: float) -> QuantParams:
    step = max(top / (_MIDDLE - 1), float(np.finfo(np.float32).tiny))
    return per_tensor(DType.UINT16, np.float32(step), _MIDDLE)


def _as_16bit_constant(value: Value) -> Value:
    """Returns a constant in 16 bits: as it is, or around zero."""
    params = None if value.quant is None else value.quant.params
    if params is not None and params.per_tensor and params.storage_dtype in _WIDE:
        return value
    real = _flat_norm_constant(value)
    own = _around_zero(float(np.abs(real).max(initial=0)) or 1.0)
    return constant(quantize(real.astype(np.float32), own), own, value.name)
