"""Blocked parameters, which no call of the dialect takes: arithmetic with repeated scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import IN_FLOAT32, QuantizeAttrs
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.core.rewrite import Rule
from qdqbridge.tvm.qnn.origin import element
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.parameters import as_stated, expressed, result, small_float_as_stated
from qdqbridge.tvm.qnn.read.reading import Reading, call_rule, tensor
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node
from qdqbridge.tvm.qnn.signatures import QUANTIZE as QUANTIZE_CALL

_IN_BLOCKS = ("multiply", ("Cast", ("Sub", "codes", "zero")), "scale")


@call_rule("dequantize-in-blocks", _IN_BLOCKS)
def dequantize_in_blocks(reading: Reading, call: Call, match: PatternMatch) -> Value | None:
    """``Cast(Cast(x) - repeat(zero)) * repeat(scale) -> dequantize(x)``."""
    scale, zero = (_repeated(reading, match[name]) for name in ("scale", "zero"))
    stored = _behind_cast(match["codes"])
    if scale is None or zero is None or not stored.type.dtype.is_integer:
        return None
    params = QuantParams(
        stored.type.dtype, scale[0].astype(np.float32), zero[0], axis=scale[1], block_size=scale[2]
    )
    for text in () if call.provenance is None else call.provenance.operands:
        if text and _same_kind(text, stored):
            params = as_stated(params, text, stored)
            break
    data = reading.stored(stored, params)
    return reading.node(DEQUANTIZE, NO_ATTRIBUTES, [data], tensor(call), call)


@call_rule("dequantize-small-floats-in-blocks", ("multiply", ("dequantize", "x"), "scale"))
def small_floats_in_blocks(reading: Reading, call: Call, match: PatternMatch) -> Value | None:
    """``dequantize(x) * repeat(scale) -> dequantize(x)`` of floats of 8 and 4 bits."""
    stored, scale = match["x"], _repeated(reading, match["scale"])
    if scale is None or stored.quant is None:
        return None
    params = _in_blocks(stored.quant.params, *scale)
    if params is None:
        return None
    texts = () if call.provenance is None else call.provenance.operands
    data = reading.stored(reading.plain(stored), small_float_as_stated(params, texts))
    return reading.node(DEQUANTIZE, NO_ATTRIBUTES, [data], tensor(call), call)


def quantized_small_floats(
    reading: Reading, data: Value, unit: QuantParams
) -> tuple[Value, QuantParams]:
    """``quantize_minifloat(x / repeat(scale), 1)``: returns x, and the parameters of blocks."""
    quotient = PatternMatch()
    if not match_value_pattern(data, ("Div", "x", "scale"), quotient):
        return data, unit
    scale = _repeated(reading, quotient["scale"])
    params = None if scale is None else _in_blocks(unit, *scale)
    return (data, unit) if params is None else (_halves(quotient["x"]), params)


def _halves(value: Value) -> Value:
    """Returns what is divided by scales of blocks; half floats as they are, without their Cast."""
    source = _behind_cast(value)
    return source if source.type.dtype.is_float else value


def _behind_cast(value: Value) -> Value:
    found = PatternMatch()
    return found["x"] if match_value_pattern(value, ("Cast", "x"), found) else value


def _in_blocks(unit: QuantParams, scale: NDArray[Any], axis: int, size: int) -> QuantParams | None:
    """Returns parameters of 8- or 4-bit floats in blocks, None if ``unit`` is not 1."""
    if not unit.storage_dtype.is_small_float or not unit.per_tensor or unit.scale != 1:
        return None
    return QuantParams(
        unit.storage_dtype, scale.astype(np.float32), np.zeros(scale.shape, np.int32), axis=axis,
        block_size=size, saturate=unit.saturate,
    )  # fmt: skip


_ROUNDED = ("Add", ("Round", ("Div", "x", "scale")), "zero")


@call_rule("quantize-in-blocks", (("qnn.quantize", "quantize"), _ROUNDED, "unit", "shift"))
def quantize_in_blocks(reading: Reading, call: Call, match: PatternMatch) -> Value | None:
    """``quantize(round(x / repeat(scale)) + repeat(zero), 1, 0) -> quantize(x)``."""
    unit = result(reading, call, QUANTIZE_CALL, axis=call.integer("axis", -1))
    if not unit.per_tensor or unit.scale != 1 or unit.zero_point != 0:
        return None
    scale = _repeated(reading, match["scale"])
    zero = _repeated(reading, _behind_cast(match["zero"]))
    if scale is None or zero is None:
        return None
    params = QuantParams(
        unit.storage_dtype, scale[0].astype(np.float32), zero[0], axis=scale[1],
        block_size=scale[2],
    )  # fmt: skip
    for text in () if call.provenance is None else call.provenance.results[:1]:
        params = expressed(params, text) if text else params
    data, params, attributes = divided(call, match["x"], params)
    data = _halves(match["x"]) if attributes is IN_FLOAT32 else data
    type_ = QuantType(params, call.result.shape)
    return reading.node(QUANTIZE, attributes, [data], type_, call)


def divided(call: Call, data: Value, unit: QuantParams) -> tuple[Value, QuantParams, QuantizeAttrs]:
    """``quantize(x / scale, 1)`` whose span says in which type it divides: x and the parameters.

    Scales of blocks are repeated there.
    """
    stated = None if call.provenance is None else call.provenance.attributes
    if not isinstance(stated, QuantizeAttrs) or stated.precision is None:
        return data, unit, IN_FLOAT32
    quotient = PatternMatch()
    if not match_value_pattern(_uncast(data, call), ("Div", "x", "scale"), quotient):
        return data, unit, IN_FLOAT32
    scale = _uncast(quotient["scale"], call).constant
    if scale is None or call.provenance is None:
        return data, unit, IN_FLOAT32
    scales = scale.numpy().astype(np.float32)
    if unit.axis is not None and unit.block_size:
        scales = scales.take(range(0, scales.shape[unit.axis], unit.block_size), unit.axis)
    params = replace(unit, scale=scales.reshape(unit.scale.shape))
    for text in call.provenance.results[:1]:
        params = expressed(params, text) if text else params
    return _uncast(quotient["x"], call), params, stated


def _uncast(value: Value, call: Call) -> Value:
    """Returns what the Casts of a node's own calls read."""
    behind = _behind_cast(value)
    while behind is not value and provenance_of_node(value.producer) == call.provenance:
        value, behind = behind, _behind_cast(behind)
    return value


def _same_kind(text: str, stored: Value) -> bool:
    storage = element(text)[0]
    return storage.is_integer and storage.is_signed == stored.type.dtype.is_signed


def _repeated(reading: Reading, value: Value) -> tuple[NDArray[Any], int, int] | None:
    """Returns the array, the axis and the count of what was repeated to ``value``."""
    found = reading.memory.get(("repeated", value))
    if found is None:
        return None
    data, axis, count = found
    return data.constant.numpy(), axis, count


RULES: tuple[Rule, ...] = (dequantize_in_blocks, small_floats_in_blocks, quantize_in_blocks)
