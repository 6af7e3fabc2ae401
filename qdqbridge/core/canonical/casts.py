"""Casts between float types next to quantized values: precision, not quantization (idiom J5).

``DQ -> Cast(float16) -> Conv -> Cast(float32) -> Q`` is a convolution of quantized values that the
file computes in float16. Its integer form rounds nothing in between, as that of a file whose scales
are float16; the node remembers the float type (``Origin.computed``), so that an exported file
computes what the original does. Casts whose result is read as float stay, unless they are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Note, Value
from qdqbridge.core.graph.numerics import codes, dequantize
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.build import dequantized, result, retyped
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.conversion import QUANTIZE
from qdqbridge.core.rewrite.rule import (
    Proposal,
    Replace,
    RuleContext,
    made_by,
    rule,
    stored_behind,
)

_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)


def before_cast(value: Value, context: RuleContext) -> Value:
    """Returns ``x`` where ``value`` is a Cast of a float x that one node reads, else ``value``."""
    cast = _producing_float_cast(value)
    if cast is None or context.is_output(value) or len(value.users) != 1:
        return value
    return cast.operand(0)


def stored_before_cast(value: Value | None) -> Value | None:
    """Returns ``q`` where ``value`` is ``dequantize(q)`` or a Cast of it to another float type."""
    cast = None if value is None else _producing_float_cast(value)
    return stored_behind(value if cast is None else cast.operand(0))


def _producing_float_cast(value: Value) -> Node | None:
    cast = made_by(value, CAST)
    if cast is None or value.type.dtype not in _FLOATS:
        return None
    return cast if cast.operand(0).type.dtype in _FLOATS else None


def taken_in(node: Node, operands: Sequence[Value | None], target: Value) -> Replace:
    """Returns ``node`` on stored operands or with a stored result, in the place of ``target``.

    Args:
        node: An operator that computes in a float type.
        operands: Its operands, as many of them stored as can be.
        target: The value that it makes.
    """
    running = [v for v in operands if v is not None and v.quant and v.constant is None]
    computed = node.output.type.dtype
    own = {v.quant.params.expressed_dtype for v in running if v.quant}
    origin, notes = node.origin, ()
    if computed in _FLOATS and node.output.quant is None and own and own != {computed}:
        origin = replace(origin, computed=computed)
        reason = (
            f"the file computes it in {computed} between Casts; its integer form rounds nothing in "
            "between, and an exported file computes as this one does"
        )
        notes = (Note("computed-type", node.name, reason, tuple(v.name for v in running)),)
    value = result(node.op, node.attributes, operands, target.type, origin, target.name)
    return Replace({target: value}, notes)


@rule("cast-dequantized", CAST)
def cast_dequantized(node: Node, context: RuleContext) -> Proposal:
    """``Cast(dequantize(q)) -> dequantize(q)`` to the Cast's type, where that is the same number.

    From float32 it always is: the real value is rounded once either way. From a narrower type it is
    where every stored value has an exact real one in that type.
    """
    del context
    source, dtype = node.operand(0), node.output.type.dtype
    stored = stored_behind(source)
    if stored is None or stored.quant is None or not isinstance(source.type, TensorType):
        return None
    if dtype not in _FLOATS or source.type.dtype not in _FLOATS:
        return None
    narrow = source.type.dtype is not DType.FLOAT32
    if narrow and not _exact(stored, stored.quant.params, source.type.dtype):
        return None
    return Replace({node.output: dequantized(stored, dtype, node.origin, node.output.name)})


def _exact(stored: Value, params: QuantParams, dtype: DType) -> bool:
    """True where the real values of all stored ones are numbers of ``dtype``."""
    if not params.per_tensor or not params.storage_dtype.is_integer:
        return False
    if params.storage_dtype.bits > 16:
        return False
    held = codes(params)
    held = held[(held >= params.qmin) & (held <= params.qmax)]
    real = dequantize(held, params)
    with np.errstate(over="ignore"):
        return bool((real.astype(dtype.numpy).astype(np.float32) == real).all())


@rule("cast-before-quantize", QUANTIZE)
def cast_before_quantize(node: Node, context: RuleContext) -> Proposal:
    """``quantize(Cast(x)) -> quantize(x)`` where the Cast only widens: no number changes."""
    del context
    cast = _producing_float_cast(node.operand(0))
    if cast is None or node.output.quant is None:
        return None
    x = cast.operand(0)
    if cast.output.type.dtype is not DType.FLOAT32 or x.type.dtype is DType.FLOAT32:
        return None
    return Replace({node.output: retyped(node, [x], node.output.type, node.output.name)})
