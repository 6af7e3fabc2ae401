"""Quantization that a file writes as float arithmetic (idioms L2, L3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Operator
from qdqbridge.core.graph.patterns import AnyOf, Part, PatternMatch
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType
from qdqbridge.core.ops.attributes import ClipAttrs
from qdqbridge.core.ops.build import constant, dequantized, quantized, result
from qdqbridge.core.ops.conversion import REINTERPRET
from qdqbridge.core.ops.elementwise import ADD, DIV, MAX, MIN, MUL, SUB
from qdqbridge.core.ops.unary import ROUND
from qdqbridge.core.rewrite import (
    Proposal,
    Reject,
    Replace,
    RuleContext,
    made_by,
    pattern_rule,
    rule,
)

_STORED = (
    DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32,
    DType.INT4, DType.UINT4, DType.INT2, DType.UINT2, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2,
)  # fmt: skip
_REAL = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_GRIDS = (DType.UINT8, DType.INT8, DType.UINT16, DType.INT16)


_INTEGERS = ("Cast", "q")
_ZERO = Part("zero", constant=True)


@pattern_rule(
    "cast-scale-is-dequantize",
    (
        "Mul",
        AnyOf((("Sub", _INTEGERS, AnyOf((_ZERO, ("Cast", _ZERO)))), _INTEGERS)),
        Part("scale", constant=True),
    ),
)
def cast_scale_is_dequantize(node: Node, match: PatternMatch, context: RuleContext) -> Proposal:
    """``Mul(Sub(Cast(q), z), s) -> dequantize(q)``: the same float operations.

    q are the codes of a constant or of a quantize; other integers may be no stored values. Scales
    that vary along all axes but one are those of blocks along it.
    """
    del context
    stored, scale, zero = match["q"], match["scale"], match.values.get("zero")
    if not (is_stored(stored) or _from_quantize(stored)):
        return None
    constant_zero = None if zero is None or zero.quant is not None else zero.constant
    zero_point = None if constant_zero is None else constant_zero.numpy()
    if zero is not None and (zero_point is None or stored.type.dtype.bits > 16):
        return None
    params = _broadcast_qparams(stored.type.dtype, scale, zero_point, stored.type.shape or ())
    dtype = node.output.type.dtype
    if params is None or params.expressed_dtype is not dtype:
        return None
    source = _typed(stored, params)
    return Replace({node.output: dequantized(source, dtype, node.origin, node.output.name)})


def is_stored(value: Value) -> bool:
    """True for constant integers that may be stored values: several, or any of 8 bits or less."""
    data = value.constant
    if data is None or value.quant is not None or data.dtype not in _STORED:
        return False
    return data.size > 1 or data.dtype.bits <= 8


def _from_quantize(value: Value) -> bool:
    made = made_by(value, REINTERPRET)
    return made is not None and made.operand(0).quant is not None and value.quant is None


def _typed(stored: Value, params: QuantParams) -> Value:
    if stored.constant is not None:
        return constant(stored.constant, params, stored.name)
    made = made_by(stored, REINTERPRET)
    source = None if made is None else made.operand(0)
    if source is not None and source.quant is not None:
        if source.quant.params.same_mapping(params):
            return source
        # What clamped the integers before has done so whatever they mean now.
        params = params.with_range(source.quant.params.qmin, source.quant.params.qmax)
    type_ = QuantType(params, stored.type.shape)
    return result(REINTERPRET, NO_ATTRIBUTES, [stored], type_, name=stored.name)


@rule("fake-quantize", MUL)
def fake_quantize(node: Node, context: RuleContext) -> Proposal:
    """``Mul(Sub(Clip(Add(Round(Div(x, s)), z)), z), s) -> dequantize(quantize(x))``.

    Only with the option ``decomposed``: the file computes these floats whatever they stand for. A
    multiplication by the reciprocal of s in the place of Div differs on ties, and is read as Div.
    """
    del context
    for value, scale in _sides(node):
        found = _FakeQuantize.behind(value, scale)
        if isinstance(found, Reject):
            return found
        if found is not None:
            stored = quantized(found.x, found.params, node.origin)
            dtype = node.output.type.dtype
            return Replace({node.output: dequantized(stored, dtype, node.origin, node.output.name)})
    return None


@dataclass(frozen=True, slots=True)
class _FakeQuantize:
    x: Value
    params: QuantParams

    @staticmethod
    def behind(value: Value, scale: Value) -> _FakeQuantize | Reject | None:
        value, subtracted = _without(value, SUB)
        value, low, high = _without_clamps(value)
        if not math.isfinite(low) or not math.isfinite(high):
            return None
        value, added = _without(value, ADD)
        rounding = made_by(value, ROUND)
        divided = None if rounding is None else rounding.operand(0)
        if divided is None:
            return None
        x = _divided(divided, scale)
        if x is None or not isinstance(x.type, TensorType):
            return None
        # Such steps move numbers besides rounding them: no type of a value says that.
        if not _equal_flat_constants(added, subtracted):
            return Reject("the zero points added and subtracted around a rounding differ")
        storage = _grid(low, high)
        if storage is None:
            return Reject(f"it clips to {low} .. {high}, which no storage type holds")
        params = _broadcast_qparams(storage, scale, added, x.type.shape or ())
        if params is None or params.expressed_dtype is not x.type.dtype:
            return Reject("its scale or zero point is not constant per tensor or per channel")
        if not _inside(params):
            return Reject(f"its zero point is outside of {storage}")
        return _FakeQuantize(x, params.with_range(int(low), int(high)))


def _sides(node: Node) -> list[tuple[Value, Value]]:
    """Returns the pairs ``(anything, constant)`` that a commutative node may multiply."""
    a, b = node.operand(0), node.operand(1)
    pairs = [(a, b)] if _float_constant(b) is not None else []
    return pairs + ([(b, a)] if _float_constant(a) is not None else [])


def _float_constant(value: Value) -> NDArray[Any] | None:
    if value.constant is None or value.quant is not None or value.type.dtype not in _REAL:
        return None
    return value.constant.numpy()


def _without(value: Value, op: Operator) -> tuple[Value, NDArray[Any] | None]:
    """Returns the operand and the constant of an Add or Sub behind ``value``, if it is one."""
    node = made_by(value, op)
    if node is None:
        return value, None
    number = _float_constant(node.operand(1))
    if number is None and op is ADD:
        number = _float_constant(node.operand(0))
        return (value, None) if number is None else (node.operand(1), number)
    return (value, None) if number is None else (node.operand(0), number)


def _without_clamps(value: Value) -> tuple[Value, float, float]:
    low, high = -math.inf, math.inf
    # Both ends may be one Clip, or a Min and a Max in either order.
    for _ in range(2):
        node = value.producer
        if node is not None and isinstance(node.attributes, ClipAttrs):
            low = low if node.attributes.low is None else max(low, node.attributes.low)
            high = high if node.attributes.high is None else min(high, node.attributes.high)
            value = node.operand(0)
        elif node is not None and node.op in (MIN, MAX) and len(node.inputs) == 2:
            bounds = _sides(node)
            number = None if not bounds else _float_constant(bounds[0][1])
            if number is None or number.size != 1:
                break
            bound = float(number.reshape(-1)[0])
            low, high = (max(low, bound), high) if node.op is MAX else (low, min(high, bound))
            value = bounds[0][0]
    return value, low, high


def _divided(value: Value, scale: Value) -> Value | None:
    """Returns x where ``value`` is ``x / scale`` or ``x * (1 / scale)``."""
    node, own = value.producer, _float_constant(scale)
    if node is None or own is None:
        return None
    if node.op is DIV:
        return (
            node.operand(0)
            if _equal_flat_constants(_float_constant(node.operand(1)), own)
            else None
        )
    if node.op is MUL:
        with np.errstate(divide="ignore", over="ignore"):
            # In the file's own type, so that the rounded reciprocal is the number that it holds.
            inverse = np.asarray(np.ones((), own.dtype) / own)
        return next(
            (x for x, c in _sides(node) if _equal_flat_constants(_float_constant(c), inverse)), None
        )
    return None


def _equal_flat_constants(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    if a is None or b is None:
        other = a if b is None else b
        return other is None or not other.any()
    if a.size != b.size:
        return False
    return bool(np.array_equal(a.reshape(-1), b.reshape(-1)))


def _grid(low: float, high: float) -> DType | None:
    # Codes are whole numbers: a grid that ends between two has no storage type.
    if low != int(low) or high != int(high) or low >= high:
        return None
    return next((d for d in _GRIDS if d.qmin <= low and high <= d.qmax), None)


def _inside(params: QuantParams) -> bool:
    storage, zero_point = params.storage_dtype, params.zero_point
    return bool((zero_point >= storage.qmin).all() and (zero_point <= storage.qmax).all())


def _broadcast_qparams(
    storage: DType,
    scale: Value,
    zero_point: NDArray[Any] | None,
    shape: tuple[int | str, ...],
) -> QuantParams | None:
    """Returns parameters of a scale and zero point that broadcast against data of ``shape``."""
    numbers = _float_constant(scale)
    # A zero point that is no integer shifts the grid: no stored code stands for it.
    if numbers is None or (zero_point is not None and (zero_point != np.rint(zero_point)).any()):
        return None
    wide = numbers.astype(np.float64)
    if not (np.isfinite(wide) & (wide > 0)).all():
        return None
    offset = np.zeros((), np.int32) if zero_point is None else zero_point.astype(np.int32)
    axis = block_size = None
    target: tuple[int, ...] = ()
    if numbers.size > 1:
        padded = (1,) * (len(shape) - numbers.ndim) + numbers.shape
        varying = [i for i, extent in enumerate(padded) if extent > 1]
        along = [i for i, extent in enumerate(padded) if extent == 1]
        if len(padded) != len(shape) or any(shape[i] != padded[i] for i in varying):
            return None
        target = (numbers.size,) if len(varying) == 1 else padded
        axis = varying[0]
        if len(varying) > 1:
            extent = shape[along[0]] if len(along) == 1 else None
            if not isinstance(extent, int):
                return None
            axis, block_size = along[0], extent
    if offset.size not in (1, numbers.size):
        return None
    offset = np.broadcast_to(offset.reshape(target if offset.size > 1 else ()), target)
    return QuantParams(
        storage, numbers.reshape(target), offset, axis=axis, block_size=block_size,
        expressed_dtype=DType.of(numbers.dtype),
    )  # fmt: skip


def is_fake_quantize(node: Node) -> bool:
    """True where :func:`fake_quantize` would read ``node`` as the end of a quantization."""
    if node.op is not MUL or len(node.inputs) != 2:
        return False
    found = (_FakeQuantize.behind(value, scale) for value, scale in _sides(node))
    return any(isinstance(item, _FakeQuantize) for item in found)
