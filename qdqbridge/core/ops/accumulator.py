"""Exact integer accumulators, and the one rounding that ends them.

Dot products of centred codes are computed in the fastest type that is exact for them: float32
below 2**24, float64 below 2**53, else int64. The order of additions cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import dequantize, multiplier, quantize, requantize
from qdqbridge.core.graph.operator import Array, geometry_of
from qdqbridge.core.graph.types import QuantParams, QuantType, ValueType, static_shape
from qdqbridge.core.ops.stored import broadcast_into

Lost: TypeAlias = "Callable[[Array, Array], Array]"
"""What simulated hardware adds to the exact sums of ``codes[..., M, K] @ w[..., K, N]``, for
codes of unsigned bytes and stored signed weights."""
_LOST: ContextVar[Lost | None] = ContextVar("lost", default=None)
LIMIT = 1 << 31
"""The first number beyond int32."""
BIAS_MOVES = 2.0**-4
"""What rounding a bias to the accumulator may move a result by, before that is rounded, in LSB.

Up to this the rounding is a form of the same network, beyond it the bias is float.
"""


def integer_params(type_: ValueType | None) -> QuantParams | None:
    """Returns the parameters of a value that integer arithmetic can take: at most 16 bits."""
    if not isinstance(type_, QuantType) or type_.params.blocked:
        return None
    dtype = type_.params.storage_dtype
    return type_.params if dtype.is_integer and dtype.bits <= 16 else None


def centered(stored: Array, params: QuantParams) -> Array:
    """Returns ``stored - zero_point`` as int32."""
    zero_point: Array = params.aligned(params.zero_point, stored.shape)
    return stored.astype(np.int32) - zero_point


def exact_dtype(a: Array, b: Array, count: int) -> Any:
    """Returns the fastest dtype that holds every sum of ``count`` products ``a * b`` exactly."""
    largest = [max(abs(int(v.min())), abs(int(v.max()))) if v.size else 0 for v in (a, b)]
    bound = largest[0] * largest[1] * max(count, 1)
    if bound < 1 << 24:
        return np.float32
    return np.float64 if bound < 1 << 53 else np.int64


@contextmanager
def simulated(lost: Lost) -> Generator[None, None, None]:
    """Products of bytes give here what hardware gives whose sums lose something.

    Everything else keeps the contract: depthwise convolutions, unsigned weights, other widths.
    """
    token = _LOST.set(lost)
    try:
        yield
    finally:
        _LOST.reset(token)


def lost_of_bytes(x: DType, w: DType) -> Lost | None:
    """Returns what is simulated of products of values of two types; None where sums are exact.

    The codes of signed activations are larger by 128 then, as where they become unsigned.
    """
    if w is not DType.INT8 or x not in (DType.INT8, DType.UINT8):
        return None
    lost = _LOST.get()
    if lost is None or x is DType.UINT8:
        return lost
    return lambda codes, weights: lost(codes.astype(np.int32) + 128, weights)


def accumulation_dtype(array: Array) -> Any:
    """Returns the dtype in which sums of plain values are formed: float64 for every float."""
    return array.dtype if array.dtype.kind in "iub" else np.float64


def leaves_int32(node: Node) -> bool:
    """True where a product of stored numbers has sums, its bias included, that int32 does not hold.

    Integer engines add in 32 bits, and wrap: a large positive number becomes a large negative one.
    Every term lies in an interval around zero, so that the sums of all lower and of all upper ends
    bound every partial sum, in any order.
    """
    x, w = integer_params(node.operand(0).type), integer_params(node.operand(1).type)
    weight, shape = node.operand(1).constant, static_shape(node.operand(1).type.shape)
    geometry = geometry_of(node)
    if x is None or w is None or shape is None or geometry is None or 0 in shape:
        return False
    bias = np.abs(_bias_codes(node, x, w))
    reach = [_reach(params) for params in (x, w)]
    if geometry.terms(shape) * reach[0] * reach[1] + bias.max(initial=0.0) < LIMIT:
        return False
    if weight is None or not x.per_tensor:
        return True
    rows = geometry.rows(centered(weight.numpy(), w).astype(np.int64))
    zero = int(x.zero_point.reshape(()))
    low, high = min(x.qmin - zero, 0), max(x.qmax - zero, 0)
    up = np.maximum(rows * low, rows * high).sum(axis=1)
    down = np.minimum(rows * low, rows * high).sum(axis=1)
    return bool((np.maximum(up, -down) + bias).max(initial=0.0) >= LIMIT)


def _reach(params: QuantParams) -> int:
    ends = np.array([params.qmin, params.qmax], np.int64) - params.zero_point.reshape(-1, 1)
    return int(np.abs(ends).max(initial=0))


def _bias_codes(node: Node, x: QuantParams, w: QuantParams) -> Array:
    """Returns a constant bias in units of ``scale x * scale w``, of a float one not rounded."""
    bias = node.optional(2) if node.op.bias else None
    if bias is None or bias.constant is None:
        return np.zeros(1)
    stored = bias.constant.numpy().reshape(-1).astype(np.float64)
    if bias.quant is not None:
        return stored
    units = x.scale.astype(np.float64).reshape(-1)[:1] * w.scale.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):  # of scales that are no numbers nothing is known
        codes = stored / (units if units.size in (1, stored.size) else units.min())
    return np.nan_to_num(codes)


def with_bias(
    accumulator: Array, scale: Array, bias: Array | None, type_: ValueType | None
) -> tuple[Array, Array | None]:
    """Adds a bias to the accumulator where it is an integer of the accumulator's own scale.

    Args:
        accumulator: int64 sums.
        scale: float32 scale of the accumulator, broadcastable against it.
        bias: Stored bias, broadcastable against the accumulator.

    Returns:
        The accumulator, and the bias in float32 where it could not be added.
    """
    if bias is None:
        return accumulator, None
    bias = broadcast_into(bias, accumulator.shape)
    if not isinstance(type_, QuantType):
        return accumulator, bias.astype(np.float32)
    params = type_.params
    own = params.scale.size in (1, bias.size) and not params.blocked
    if own and params.storage_dtype is DType.INT32 and params.symmetric:
        scales = np.broadcast_to(params.scale.reshape(-1), (bias.size,)).reshape(bias.shape)
        wanted = np.broadcast_to(scale, np.broadcast_shapes(scale.shape, bias.shape))
        # In another scale, be it one bit off, a bias is a real number: it is added after scaling.
        if np.array_equal(np.broadcast_to(scales, wanted.shape), wanted):
            return accumulator + bias.astype(np.int64), None
    return accumulator, _dequantized(bias, params)


def _dequantized(bias: Array, params: QuantParams) -> Array:
    """Returns a bias in float32, whichever axes of extent 1 were put around it."""
    if params.scale.size == bias.size and params.axis is not None:
        flat = dequantize(bias.reshape(-1), params.with_axis(0))
        return flat.reshape(bias.shape)
    return dequantize(bias, params)


def finished(
    accumulator: Array, scale: Array, bias: Array | None, result: ValueType | None
) -> Array:
    """Returns the result of an accumulating operator.

    Quantized: ``sat(rint(f32(acc) * f32(scale / sy)) + zy)``; with a float bias
    ``quantize(f32(acc) * scale + bias)``; float: ``f32(acc) * scale (+ bias)``.
    """
    if isinstance(result, QuantType):
        params = result.params
        if bias is None and params.per_tensor and params.storage_dtype.is_integer:
            return requantize(accumulator, multiplier(scale, denominator=params.scale), params)
    real = accumulator.astype(np.float32) * scale
    if bias is not None:
        real = real + bias
    if isinstance(result, QuantType):
        return quantize(real, result.params)
    return real if result is None else real.astype(result.dtype.numpy)


def averaged(
    total: Array, count: Array | int, params: QuantParams, result: ValueType | None
) -> Array:
    """Returns ``total / count`` elements of scale ``params.scale`` as the result's type.

    Quantized: ``sat(rint(f32(S) * f32(f64(sx) / (f64(sy) * n))) + zy)``; float:
    ``f32(S) * f32(f64(sx) / n)``.

    Args:
        total: Exact integer sums of centred codes.
        count: Number of summed elements, broadcastable against ``total``.
        params: Per-tensor parameters of the summed value.
        result: Type of the result.
    """
    scale, number = params.scale.astype(np.float64), np.asarray(count, np.float64)
    if isinstance(result, QuantType):
        out = result.params
        if out.per_tensor and out.storage_dtype.is_integer:
            ratio = np.asarray(scale / (out.scale.astype(np.float64) * number), np.float32)
            return requantize(total, ratio, out)
    real = total.astype(np.float32) * np.asarray(scale / number, np.float32)
    if isinstance(result, QuantType):
        return quantize(real, result.params)
    return real if result is None else real.astype(result.dtype.numpy)
