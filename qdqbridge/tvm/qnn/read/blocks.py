"""Blocked parameters, which no call of the dialect takes: arithmetic with repeated scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import IN_FLOAT32, QuantizeAttrs
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE
from qdqbridge.core.ops.elementwise import MUL
from qdqbridge.tvm.qnn.origin import element
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.parameters import as_stated, expressed, small_float_as_stated
from qdqbridge.tvm.qnn.read.reading import Reading, tensor
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node


def dequantized(reading: Reading, call: Call, value: Value) -> Value | None:
    """``(x - repeat(zero_point)) * repeat(scale)`` in int32, then float32.

    Of 8- and 4-bit floats it is ``dequantize_minifloat(x, 1) * repeat(scale)``.
    """
    node = value.producer
    scale = None if node is None or node.op is not MUL else _repeated(reading, node.operand(1))
    if node is None or scale is None:
        return None
    small = _made_by(node.operand(0), "dequantize")
    if small is not None:
        return _small_floats(reading, call, small.operand(0), *scale)
    centred = _made(_made_by(node.operand(0), "Cast"), "Sub")
    zero = None if centred is None else _repeated(reading, centred.operand(1))
    if centred is None or zero is None:
        return None
    source = _made_by(centred.operand(0), "Cast")
    stored = centred.operand(0) if source is None else source.operand(0)
    if not stored.type.dtype.is_integer:
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


def _small_floats(
    reading: Reading, call: Call, stored: Value, scale: NDArray[Any], axis: int, size: int
) -> Value | None:
    params = None if stored.quant is None else _in_blocks(stored.quant.params, scale, axis, size)
    if params is None:
        return None
    texts = () if call.provenance is None else call.provenance.operands
    data = reading.stored(reading.plain(stored), small_float_as_stated(params, texts))
    return reading.node(DEQUANTIZE, NO_ATTRIBUTES, [data], tensor(call), call)


def quantized_small_floats(
    reading: Reading, data: Value, unit: QuantParams
) -> tuple[Value, QuantParams]:
    """``quantize_minifloat(x / repeat(scale), 1)``: returns x, and the parameters of blocks."""
    quotient = _made_by(data, "Div")
    scale = None if quotient is None else _repeated(reading, quotient.operand(1))
    params = None if scale is None else _in_blocks(unit, *scale)
    return (data, unit) if quotient is None or params is None else (_halves(quotient), params)


def _halves(quotient: Node) -> Value:
    """Returns what is divided by scales of blocks; half floats as they are, without their Cast."""
    cast = _made_by(quotient.operand(0), "Cast")
    source = None if cast is None else cast.operand(0)
    return quotient.operand(0) if source is None or not source.type.dtype.is_float else source


def _in_blocks(unit: QuantParams, scale: NDArray[Any], axis: int, size: int) -> QuantParams | None:
    """Returns parameters of 8- or 4-bit floats in blocks, None if ``unit`` is not 1."""
    if not unit.storage_dtype.is_small_float or not unit.per_tensor or unit.scale != 1:
        return None
    return QuantParams(
        unit.storage_dtype, scale.astype(np.float32), np.zeros(scale.shape, np.int32), axis=axis,
        block_size=size, saturate=unit.saturate,
    )  # fmt: skip


def quantized(reading: Reading, call: Call, data: Value, unit: QuantParams) -> Value | None:
    """``quantize(round(x / repeat(scale)) + repeat(zero_point), 1, 0)``."""
    if not unit.per_tensor or unit.scale != 1 or unit.zero_point != 0:
        return None
    total = _made_by(data, "Add")
    rounded = None if total is None else _made_by(total.operand(0), "Round")
    quotient = None if rounded is None else _made_by(rounded.operand(0), "Div")
    if total is None or quotient is None:
        return None
    scale = _repeated(reading, quotient.operand(1))
    shift = _made_by(total.operand(1), "Cast")
    zero = _repeated(reading, total.operand(1) if shift is None else shift.operand(0))
    if scale is None or zero is None:
        return None
    params = QuantParams(
        unit.storage_dtype, scale[0].astype(np.float32), zero[0], axis=scale[1],
        block_size=scale[2],
    )  # fmt: skip
    for text in () if call.provenance is None else call.provenance.results[:1]:
        params = expressed(params, text) if text else params
    data, params, attributes = divided(call, quotient.operand(0), params)
    data = _halves(quotient) if attributes is IN_FLOAT32 else data
    type_ = QuantType(params, call.result.shape)
    return reading.node(QUANTIZE, attributes, [data], type_, call)


def divided(call: Call, data: Value, unit: QuantParams) -> tuple[Value, QuantParams, QuantizeAttrs]:
    """``quantize(x / scale, 1)`` whose span says in which type it divides: x and the parameters.

    Scales of blocks are repeated there.
    """
    stated = None if call.provenance is None else call.provenance.attributes
    if not isinstance(stated, QuantizeAttrs) or stated.precision is None:
        return data, unit, IN_FLOAT32
    quotient = _made_by(_uncast(data, call), "Div")
    scale = None if quotient is None else _uncast(quotient.operand(1), call).constant
    if quotient is None or scale is None or call.provenance is None:
        return data, unit, IN_FLOAT32
    scales = scale.numpy().astype(np.float32)
    if unit.axis is not None and unit.block_size:
        scales = scales.take(range(0, scales.shape[unit.axis], unit.block_size), unit.axis)
    params = replace(unit, scale=scales.reshape(unit.scale.shape))
    for text in call.provenance.results[:1]:
        params = expressed(params, text) if text else params
    return _uncast(quotient.operand(0), call), params, stated


def _uncast(value: Value, call: Call) -> Value:
    """Returns what the Casts of a node's own calls read."""
    cast = _made_by(value, "Cast")
    while cast is not None and provenance_of_node(cast) == call.provenance:
        value = cast.operand(0)
        cast = _made_by(value, "Cast")
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


def _made_by(value: Value, name: str) -> Node | None:
    node = value.producer
    return node if node is not None and node.op.name == name else None


def _made(node: Node | None, name: str) -> Node | None:
    """Returns the node of that name behind another node's operand."""
    return None if node is None else _made_by(node.operand(0), name)
