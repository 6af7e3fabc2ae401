"""qnn operators that change the type of a value, and tables over codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.numerics import quantize as rounded
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.patterns import PatternMatch, match_value_pattern
from qdqbridge.core.graph.types import QuantParams, QuantType
from qdqbridge.core.ops.attributes import IN_FLOAT32, ClipAttrs, QuantizeAttrs
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs, table
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.rewrite import Rule
from qdqbridge.tvm.qnn.origin import element, function_of, may_be_operand, provenance_of
from qdqbridge.tvm.qnn.ranges import DEQUANTIZE as DEQUANTIZE_CALL
from qdqbridge.tvm.qnn.ranges import QUANTIZE as QUANTIZE_CALL
from qdqbridge.tvm.qnn.ranges import REQUANTIZE as REQUANTIZE_CALL
from qdqbridge.tvm.qnn.read import parameters
from qdqbridge.tvm.qnn.read.call import Call
from qdqbridge.tvm.qnn.read.gather_concat import hinted, type_like
from qdqbridge.tvm.qnn.read.parameters import (
    as_stated,
    changed,
    expressed,
    holds,
    result,
    small_float_as_stated,
)
from qdqbridge.tvm.qnn.read.reading import Reading, call_rule, tensor
from qdqbridge.tvm.qnn.read.rules.recorded import provenance_of_node

# ---- Blocked parameters, which no call of the dialect takes: arithmetic with repeated scales -----


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
    # Hosts hold 4 bits in bytes: the span says which operand was stored so.
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
    # A Cast of the model's own has another span, and stays.
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


# ---- qnn.unpack of a constant: a constant that is unpacked when somebody looks at it -------------


def unpack(reading: Reading, call: Call) -> Value:
    """``qnn.unpack(bytes)``."""
    source, shape = reading.plain(call.args[0]).constant, call.result.shape
    bits, signed = call.integer("bits", 0), bool(call.get("signed", False))
    if source is None or shape is None or not all(isinstance(extent, int) for extent in shape):
        raise reading.refused("its bytes are no constant")
    extents = tuple(int(extent) for extent in shape)
    data = source.map(
        lambda array: _unpack_sub_byte(array, bits, signed=signed), dtype=call.dtype, shape=extents
    )
    # Not kept: unpacked codes take two to four times the memory of the packed ones.
    return Value(tensor(call), call.name, constant=data.fleeting())


def _unpack_sub_byte(packed: NDArray[Any], bits: int, *, signed: bool) -> NDArray[Any]:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    codes = codes.reshape(*packed.shape[:-1], -1)
    if not signed:
        return codes
    half = np.uint8(1 << (bits - 1))
    # Extends the sign: flips its bit, and takes the weight of the bit off again.
    return ((codes ^ half) - half).view(np.int8)


def quantize(reading: Reading, call: Call) -> Value:
    """``qnn.quantize(data, scale, zero_point)``."""
    axis = call.integer("axis", -1)
    params = parameters.result(reading, call, QUANTIZE_CALL, axis=axis)
    type_ = QuantType(params, call.result.shape)
    data = reading.plain(call.args[0])
    data, params = _sub_byte(reading, call, data, params)
    data, params, attributes = divided(call, data, params)
    return reading.node(QUANTIZE, attributes, [data], type_.with_params(params), call)


def _sub_byte(
    reading: Reading, call: Call, data: Value, params: QuantParams
) -> tuple[Value, QuantParams]:
    """Returns what is quantized and how: into a span's sub-byte type where a clip keeps to it."""
    provenance, clip = call.provenance, data.producer
    if provenance is None or clip is None or provenance_of_node(clip) != provenance:
        return data, params
    bounds, storage = (
        clip.attributes,
        element(provenance.results[0] or params.storage_dtype.label)[0],
    )
    if not isinstance(bounds, ClipAttrs) or not parameters.holds(params.storage_dtype, storage):
        return data, params
    # A clip in front of the rounding keeps to the narrower type; as codes its bounds are that
    # type's range.
    ends = np.array([bounds.low, bounds.high], np.float32)  # None is NaN
    if not params.per_tensor or np.isnan(ends).any():
        return data, params
    qmin, qmax = (int(end) for end in rounded(ends, params))
    if qmin < storage.qmin or qmax > storage.qmax:
        return data, params
    return clip.operand(0), parameters.changed(params, storage, qmin, qmax)


def dequantize(reading: Reading, call: Call) -> Value:
    """``qnn.dequantize(data, scale, zero_point)``."""
    position = _position(call, call.args[0])
    data = parameters.operand(reading, call, DEQUANTIZE_CALL.operands[0], position=position)
    return reading.node(DEQUANTIZE, NO_ATTRIBUTES, [data], tensor(call), call)


def quantize_minifloat(reading: Reading, call: Call) -> Value:
    """``qnn.quantize_minifloat(data, scale)``."""
    data = reading.plain(call.args[0])
    data, params = quantized_small_floats(reading, data, _minifloat(reading, call))
    data, params, attributes = divided(call, data, params)
    records = () if call.provenance is None else call.provenance.results
    type_ = QuantType(parameters.small_float_as_stated(params, records), call.result.shape)
    return reading.node(QUANTIZE, attributes, [data], type_, call)


def dequantize_minifloat(reading: Reading, call: Call) -> Value:
    """``qnn.dequantize_minifloat(data, scale)``."""
    records = () if call.provenance is None else call.provenance.operands
    params = parameters.small_float_as_stated(_minifloat(reading, call), records)
    data = reading.stored(call.args[0], params)
    return reading.node(DEQUANTIZE, NO_ATTRIBUTES, [data], tensor(call), call)


def _minifloat(reading: Reading, call: Call) -> QuantParams:
    """Returns the parameters that a call gives."""
    name, scale = str(call.get("format", "")), parameters.array(reading, call.args[1], "scale")
    storage = next((dtype for dtype in DType if dtype.label == name), None)
    if storage is None or not storage.is_small_float:
        raise reading.refused(f"its format is {name!r}")
    saturate = bool(call.get("saturate", True))
    zero, axis = np.zeros((), np.int32), call.integer("axis", -1)
    if scale.size == 1:
        return QuantParams(storage, scale.reshape(()), zero, saturate=saturate)
    if axis < 0:
        axis += len(call.result.shape or ())
    return QuantParams(storage, scale, zero, axis=axis, saturate=saturate)


def requantize(reading: Reading, call: Call) -> Value:
    """``qnn.requantize(data, s_in, z_in, s_out, z_out)``."""
    (data,) = parameters.operands(reading, call, REQUANTIZE_CALL)
    params = parameters.result(reading, call, REQUANTIZE_CALL)
    provenance = call.provenance
    single = (
        provenance is not None and provenance.op in ("Min", "Max") and len(provenance.operands) == 1
    )
    return reading.node(
        provenance.op if provenance is not None and single else REQUANTIZE,
        NO_ATTRIBUTES,
        [data],
        QuantType(params, call.result.shape),
        call,
    )


def _position(call: Call, entry: Any) -> int:
    """Returns which operand of the recorded node a dequantized tensor is: one of its type.

    The first one of those that are constants as it is; failing that, any.
    """
    provenance = call.provenance
    if provenance is None or not isinstance(entry, Value):
        return 0
    fixed, dtype = entry.is_constant, entry.type.dtype
    places = sorted(
        enumerate(provenance.operands),
        key=lambda at: not may_be_operand(provenance, at[0], constant=fixed),
    )
    for index, text in places:
        storage = text.partition(":")[0]
        if storage and (
            storage == dtype.label or (storage.rstrip("24") == dtype.label.rstrip("8"))
        ):
            return index
    return len(provenance.operands)


def lookup(reading: Reading, call: Call) -> Value:
    """``qnn.lookup(data, table)`` whose attribute says which function the table holds."""
    provenance = provenance_of(str(call.get("function", ""))) or call.provenance
    function = None if provenance is None else function_of(provenance)
    if (
        provenance is None
        or function is None
        or not isinstance(provenance.attributes, CompositionAttrs)
    ):
        raise reading.refused("nothing says which function its table holds")
    source, result, scalars = function
    entries = parameters.array(reading, call.args[1], "table")
    if not np.array_equal(table(provenance.attributes, source, result, scalars), entries):
        raise reading.refused("its table is not that of the function that it names")
    data = reading.stored(call.args[0], source)
    constants = [reading.constant(scalar) for scalar in scalars]
    type_ = QuantType(result, call.result.shape)
    return reading.node(COMPOSITION, provenance.attributes, [data, *constants], type_, call)


# ---- clips of stored integers: a narrower range


def clip(reading: Reading, call: Call) -> Value:
    """``clip(x, a_min, a_max)`` of floats, and of stored integers: a narrower range."""
    data = reading.value(call.args[0])
    low, high = float(call.attrs["a_min"]), float(call.attrs["a_max"])
    if data.type.dtype.is_float:
        attributes = ClipAttrs(low, high)
        return reading.node("Clip", attributes, [data], type_like(data, call), call)
    if data.quant is None:
        return _clip_of_integers(reading, call, low, high)
    params = data.quant.params
    qmin, qmax = max(int(low), params.qmin), min(int(high), params.qmax)
    storage = _stated_storage(call, data, qmin, qmax)
    if storage is not None and (params.per_tensor or (qmin, qmax) == (storage.qmin, storage.qmax)):
        type_ = QuantType(changed(params, storage, qmin, qmax), data.type.shape)
        return reading.retyped(data, type_, call)
    if not params.per_tensor:
        return _clip_of_integers(reading, call, low, high)
    return reading.narrowed(data, params.with_range(qmin, qmax), call)


def _clip_of_integers(reading: Reading, call: Call, low: float, high: float) -> Value:
    plain = reading.plain(call.args[0])
    value = reading.node("Clip", ClipAttrs(low, high), [plain], type_like(plain, call), call)
    return hinted(reading, call, value)


def _stated_storage(call: Call, data: Value, qmin: int, qmax: int) -> DType | None:
    """Returns the sub-byte type that a clamped result has where its span says so."""
    records = () if call.provenance is None else call.provenance.results
    if not records or not records[0] or data.producer is None:
        return None
    storage = element(records[0])[0]
    fits = holds(data.type.dtype, storage) and storage.qmin <= qmin and qmax <= storage.qmax
    return storage if fits and data.producer.op is not REINTERPRET else None
