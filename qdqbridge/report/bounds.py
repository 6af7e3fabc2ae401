"""How far a float32 engine may lie from the exact result of one node.

With ``u`` = 2**-24 (float32), n roundings grow to ``growth(n)``: the smaller of the worst case
``n*u / (1 - n*u)`` (Higham, Accuracy and Stability of Numerical Algorithms, 3.1; any order of
additions) and ``8 * sqrt(n) * u`` (Higham and Mary, A New Approach to Probabilistic Rounding Error
Analysis, 2019; missed with a probability below 2*n*exp(-32), and then a difference stays without
explanation, which is the safe side). The real result of a node may be off by

* **accumulate, average**: ``growth(K + 10) * sum |x*w|`` for K terms: K + 1 roundings of products
  and sums, two of the dequantized factors, four of the bias and its scale, three of a requantizing
  multiplier (its two factors and its product with the accumulator).
* **softmax**: ``growth(K + 16 + max|d|) * y``: an exponential of a rounded difference ``d``.
* **normalizations**: first-order propagation of ``growth(K + 8)`` through mean, variance
  ``E[x*x] - E[x]**2`` and the affine map.
* **linear and cubic resize**: ``u * (32 + 8 * largest extent) * max|x|``: coordinates are float32.
* **everything else**: ``8 * u * (|y| + m)``, where m is the largest intermediate result of usual
  implementations (1 for a sigmoid, |x| for a gelu). Operands are the float32 values that every
  engine starts from, so that their rounding does not count.

The quantization that follows adds ``2*u*|y / scale|`` for the division and ``u*|t|`` for engines
that add the zero point before they round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.graph.graph import Node
from qdqbridge.graph.numerics import dequantize
from qdqbridge.graph.operator import Flow
from qdqbridge.graph.types import QuantType
from qdqbridge.ops.attributes import (
    EpsilonAttrs,
    GemmAttrs,
    GroupNormAttrs,
    NormAttrs,
    PoolAttrs,
    SoftmaxAttrs,
)

Array = NDArray[Any]
Operands = Sequence["Array | None"]
UNIT = 2.0**-24
_UNIT_SIZED = {"Sigmoid", "Tanh", "Erf", "HardSigmoid", "Sin", "Cos", "Softsign"}
_OPERAND_SIZED = {"Gelu", "Swish", "Mish", "HardSwish", "Elu", "Selu", "Celu", "Softplus"}
_CENTRED = {"LayerNormalization", "InstanceNormalization", "GroupNormalization"}


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The exact result of a node and what float32 may do to it, in real units.

    Attributes:
        real: The float64 result.
        elementwise: Bound of a handful of roundings.
        accumulated: Bound where sums are formed in float32, at least ``elementwise``.
        as_written: The float64 result with the bias that the file has, where the graph's is a
            rounding of it.
    """

    real: Array
    elementwise: Array
    accumulated: Array
    as_written: Array | None = None


def growth(count: float) -> float:
    """Returns the relative error of ``count`` float32 roundings (see the top of this file)."""
    worst = count * UNIT / max(1 - count * UNIT, 0.5)
    return min(worst, 8 * math.sqrt(count) * UNIT)


def exact(node: Node, operands: Operands) -> Exact | None:
    """Returns the exact first result of ``node``; None where no bound is known.

    Args:
        node: Any node.
        operands: The stored values of its operands.
    """
    with np.errstate(all="ignore"):
        match node.op.flow:
            case Flow.ACCUMULATE:
                return _accumulated(node, operands)
            case Flow.AVERAGE:
                return _averaged(node, operands)
            case Flow.ROUND:
                return _rounded(node, operands)
            case Flow.ELEMENTWISE | Flow.CONVERT | Flow.MOVE:
                return _elementwise(node, operands)
            case Flow.REINTERPRET | Flow.FLOAT:
                return None


def _reals(node: Node, operands: Operands, dtype: Any) -> list[Array | None]:
    """Returns float64 operands, dequantized in ``dtype``."""
    reals: list[Array | None] = []
    for value, operand in zip(node.inputs, operands, strict=True):
        if operand is None or value is None:
            reals.append(None)
        elif isinstance(value.type, QuantType):
            reals.append(dequantize(operand, value.type.params, dtype).astype(np.float64))
        else:
            wide = value.type.dtype.is_float
            reals.append(operand.astype(np.float64) if wide else operand)
    return reals


def _absolute(reals: Sequence[Array | None]) -> list[Array | None]:
    return [None if real is None else np.abs(real) for real in reals]


def _result(node: Node, reals: Sequence[Array | None], attributes: object = None) -> Array:
    return np.asarray(node.op.compute(attributes or node.attributes, reals)[0], np.float64)


def _accumulated(node: Node, operands: Operands) -> Exact:
    reals = _reals(node, operands, np.float64)
    attributes = node.attributes
    if isinstance(attributes, GemmAttrs):
        attributes = replace(attributes, alpha=abs(attributes.alpha), beta=abs(attributes.beta))
    size = _result(node, _absolute(reals), attributes)
    real = _result(node, reals)
    bound = growth(_terms(node, reals) + 10) * size
    return Exact(real, 8 * UNIT * np.abs(real), bound, _as_written(node, reals))


def _terms(node: Node, reals: Sequence[Array | None]) -> int:
    x, w = reals[0], reals[1]
    assert x is not None and w is not None
    match node.op.name:
        case "Conv":
            return w[:1].size
        case "ConvTranspose":
            return w[:, :1].size
        case "Gemm":
            return x.shape[0 if getattr(node.attributes, "trans_a", False) else 1]
        case _:
            return x.shape[-1]


def _as_written(node: Node, reals: list[Array | None]) -> Array | None:
    bias = node.optional(2)
    if bias is None or bias.written is None:
        return None
    written = bias.written.numpy().astype(np.float64)
    return _result(node, [*reals[:2], written, *reals[3:]])


def _averaged(node: Node, operands: Operands) -> Exact:
    reals = _reals(node, operands, np.float64)
    real, size = _result(node, reals), _result(node, _absolute(reals))
    x = reals[0]
    assert x is not None
    if isinstance(node.attributes, PoolAttrs):
        terms = int(np.prod(node.attributes.kernel_shape))
    else:
        terms = x.size // max(real.size, 1)
    return Exact(real, 8 * UNIT * np.abs(real), growth(terms + 10) * size)


def _elementwise(node: Node, operands: Operands) -> Exact:
    reals = _reals(node, operands, np.float32)
    real = _result(node, reals)
    size = np.abs(real)
    if node.op.name in _UNIT_SIZED:
        size = size + 1.0
    elif node.op.name in _OPERAND_SIZED and reals[0] is not None:
        size = size + np.abs(reals[0])
    bound = 8 * UNIT * size
    return Exact(real, bound, bound)


def _rounded(node: Node, operands: Operands) -> Exact:
    reals = _reals(node, operands, np.float32)
    real = _result(node, reals)
    x = reals[0]
    assert x is not None
    few = 8 * UNIT * np.abs(real)
    match node.op.name:
        case "Softmax" | "LogSoftmax":
            return Exact(real, few, _softmax_bound(node, x, real))
        case "BatchNormalization":
            signed = [-v if i == 3 else v for i, v in enumerate(_absolute(reals)) if v is not None]
            return Exact(real, few, 8 * UNIT * _result(node, signed))
        case "Resize":
            extent = max((*x.shape, *real.shape))
            largest = float(np.abs(x).max(initial=0))
            return Exact(real, few, few + UNIT * (32 + 8 * extent) * largest)
        case _:
            return Exact(real, few, few + _normalization_bound(node, reals))


def _softmax_bound(node: Node, x: Array, real: Array) -> Array:
    assert isinstance(node.attributes, SoftmaxAttrs)
    axes = node.attributes.axes
    terms = float(np.prod([x.shape[axis] for axis in axes]))
    farthest = float((x.max(axis=axes, keepdims=True) - x).max(initial=0))
    bound = growth(terms + 16 + min(farthest, 128.0))
    if node.op.name == "Softmax":
        return bound * np.abs(real) + 2.0**-126
    return bound * (1.0 + np.abs(real)) + UNIT * farthest


def _normalization_bound(node: Node, reals: Sequence[Array | None]) -> Array:
    """Returns the bound of ``(x - mean) * r * g + b`` for float32 sums of x and of x*x."""
    x, scale = reals[0], reals[1]
    assert x is not None and scale is not None
    attributes, shift = node.attributes, reals[2] if len(reals) > 2 else None
    axes, shape, column = _groups(attributes, x)
    rows = x.reshape(shape)
    terms = float(np.prod([rows.shape[axis] for axis in axes]))
    square = np.square(rows).mean(axis=axes, keepdims=True)
    mean = np.zeros(())
    if node.op.name in _CENTRED:
        mean = rows.mean(axis=axes, keepdims=True)
    epsilon = float(getattr(attributes, "epsilon", 0.0))
    inverse = 1 / np.sqrt(np.maximum(square - np.square(mean), 0) + epsilon)
    centred = np.abs(rows - mean) * inverse
    size = (np.abs(rows) + np.sqrt(square)) * inverse
    size = size + centred * (square + np.square(mean)) * np.square(inverse)
    size = size.reshape(x.shape) * np.abs(scale if column is None else scale.reshape(column))
    if shift is not None:
        size = size + np.abs(shift if column is None else shift.reshape(column))
    return growth(terms + 8) * size


def _groups(
    attributes: object, x: Array
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]:
    """Returns the axes normalized together, the shape they are axes of, the shape of the scale."""
    column = (-1, *([1] * (x.ndim - 2)))
    if isinstance(attributes, NormAttrs):
        return tuple(range(attributes.axis, x.ndim)), x.shape, None
    if isinstance(attributes, GroupNormAttrs):
        shape = (x.shape[0], attributes.num_groups, -1, *x.shape[2:])
        return tuple(range(2, x.ndim + 1)), shape, column
    assert isinstance(attributes, EpsilonAttrs)
    return tuple(range(2, x.ndim)), x.shape, column


def moved(node: Node, behind: Exact, operands: Sequence[Array | None]) -> Exact:
    """Returns exact results after a data mover: the values and their bounds move alike.

    Args:
        node: A node that only moves values.
        behind: The exact values of its first operand.
        operands: Its operands; the first one gives the shape.
    """
    first = operands[0]
    shape = behind.real.shape if first is None else first.shape

    def move(array: Array) -> Array:
        whole = np.broadcast_to(np.asarray(array, np.float64), shape)
        return node.op.compute(node.attributes, [whole, *operands[1:]])[0]

    written = None if behind.as_written is None else move(behind.as_written)
    return Exact(move(behind.real), move(behind.elementwise), move(behind.accumulated), written)
