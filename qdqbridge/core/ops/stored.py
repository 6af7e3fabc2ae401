"""Contracts that work on stored integers without arithmetic: moves and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import Array, Compute, Contract, Operands, Types
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, ValueType
from qdqbridge.core.ops.attributes import TransposeAttrs


def converted(stored: Array, params: QuantParams, result: ValueType | None) -> Array:
    """Returns stored values of ``params`` as a value of type ``result``.

    The same mapping passes unchanged (clipped where the range of the result is narrower);
    anything else is dequantized, and quantized again where the result is quantized.
    """
    if isinstance(result, QuantType):
        if params.same_mapping(result.params):
            return clipped(stored, params, result.params)
        return quantize(dequantize(stored, params), result.params)
    real = dequantize(stored, params)
    return real if result is None else real.astype(result.dtype.numpy)


def clipped(stored: Array, params: QuantParams, result: QuantParams) -> Array:
    """Returns ``stored`` clipped to the range of ``result``, if that is narrower."""
    if not params.storage_dtype.is_integer:
        return stored
    if result.qmin <= params.qmin and params.qmax <= result.qmax:
        return stored
    wide = np.clip(stored.astype(np.int64), result.qmin, result.qmax)
    return wide.astype(stored.dtype)


def _same_channels(params: QuantParams, result: ValueType | None) -> bool:
    """True where the result has the same scales along whichever axis they moved to."""
    if not isinstance(result, QuantType) or params.blocked:
        return False
    return result.params.axis is not None and params.with_axis(0) == result.params.with_axis(0)


def _same_blocks(params: QuantParams, result: ValueType | None, attributes: Any) -> bool:
    """True where a transposition takes the scales of blocks with it, as data of their own."""
    if not isinstance(result, QuantType) or not isinstance(attributes, TransposeAttrs):
        return False
    own, perm = result.params, attributes.perm
    if not params.blocked or not own.blocked or len(perm) != params.scale.ndim:
        return False
    return (
        own.storage_dtype is params.storage_dtype
        and own.expressed_dtype is params.expressed_dtype
        and (own.qmin, own.qmax) == (params.qmin, params.qmax)
        and own.block_size == params.block_size
        and perm[own.axis or 0] == params.axis
        and np.array_equal(own.scale, params.scale.transpose(perm))
        and np.array_equal(own.zero_point, params.zero_point.transpose(perm))
    )


def moved(compute: Compute) -> Contract:
    """Returns the contract of data movement: ``compute`` on the stored values of operand 0.

    Results with other parameters are converted afterwards, which commutes with moving.
    """

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        source = types[0]
        if not isinstance(source, QuantType):
            return None
        params = source.params
        if not params.per_tensor:
            if all(
                _same_channels(params, result) or _same_blocks(params, result, attributes)
                for result in results
            ):
                return compute(attributes, operands)
            return None
        parts = compute(attributes, operands)
        return tuple(
            converted(part, params, result) for part, result in zip(parts, results, strict=False)
        )

    return contract


def tabulated(compute: Callable[[Any, Operands], tuple[Array, ...]]) -> Contract:
    """Returns the contract of a unary operator: a table over the codes of an 8/16-bit operand.

    The table holds ``quantize(compute(dequantize(code)))`` for every code, so looking up in it
    and computing each element are the same; small tensors are left to the general path.
    """

    def contract(
        attributes: Any, operands: Operands, types: Types, results: Types
    ) -> tuple[Array, ...] | None:
        source, result, stored = types[0], results[0], operands[0]
        if not isinstance(source, QuantType) or stored is None or not source.params.per_tensor:
            return None
        params = source.params
        bits = params.storage_dtype.bits
        if not params.storage_dtype.is_integer or bits not in (8, 16) or stored.size < 1 << bits:
            return None
        (values,) = compute(attributes, (dequantize(codes(params), params),))
        if isinstance(result, QuantType):
            if not result.params.per_tensor:
                return None
            values = quantize(values, result.params)
        elif isinstance(result, TensorType):
            values = values.astype(result.dtype.numpy)
        index = np.asarray(stored, order="C").view(np.uint8 if bits == 8 else np.uint16)
        return (values[index],)

    return contract


def lifted(function: Callable[[Array], Array]) -> Compute:
    """Returns the ``compute`` of an operator that takes one operand and no attributes."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        del attributes
        (x,) = present(operands, 1)
        return (function(x),)

    return compute


def present(operands: Operands, count: int) -> tuple[Array, ...]:
    """Returns the first ``count`` operands, none of which may be left out."""
    chosen = tuple(operand for operand in operands[:count] if operand is not None)
    assert len(chosen) == count
    return chosen


def optional(operands: Operands, index: int) -> Array | None:
    """Returns operand ``index``, or None where it is left out."""
    return operands[index] if index < len(operands) else None


def broadcast_into(part: Array, shape: tuple[int, ...]) -> Array:
    """Returns an operand that is repeated to a shape, which does not grow by it: a slope, a bias.

    Raises:
        ValueError: It is larger along an axis, or does not fit.
    """
    if np.broadcast_shapes(part.shape, shape) != shape:
        raise ValueError(f"{part.shape} does not broadcast into {shape}")
    return part
