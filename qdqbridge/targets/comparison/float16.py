"""What an engine that computes in float16 (or bfloat16) may give in the place of a node's result.

onnxruntime 1.31 on x86 has few float16 kernels. A pass that cannot be disabled
(InsertCastTransformer) runs the other operators in float32 between Casts, and which of their
operands were rounded to float16 on the way depends on their neighbours: constants were,
activations that only such an operator reads were not, and a value that several of them pass on was
rounded at some of its readers. The arithmetic itself is float32, its result rounded to float16
before a float16 operator (QuantizeLinear for one) reads it. (Seen in the graphs that it runs, for
15 files of 4 networks: 22 operators in float32; LayerNormalization, Concat and Slice in float16.)

So the result lies in one of a few narrow intervals: one for each choice of the operands that are
rounded, each once as it is and once rounded to float16. A result outside of all of them is no
effect of float16. Rounding is monotone, so an interval is rounded by rounding its ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import QuantType
from qdqbridge.targets.comparison.bounds import Exact, Operands, exact, magnitude, sensitivity

Array: TypeAlias = NDArray[Any]
HALVES = (DType.FLOAT16, DType.BFLOAT16)
_MOST = 3
"""Operands whose roundings are distinguished; of more, all or none are rounded."""


def unit(dtype: DType) -> float:
    """Returns the largest relative error of one rounding to ``dtype``."""
    return float(cast("Any", ml_dtypes.finfo)(dtype.numpy).eps) / 2


def smallest(dtype: DType) -> float:
    """Returns the largest error of one rounding to ``dtype`` near 0."""
    return float(cast("Any", ml_dtypes.finfo)(dtype.numpy).smallest_subnormal) / 2


def half_of(node: Node) -> DType | None:
    """Returns the 16-bit float type in which ``node`` may be computed, None where it is float32."""
    if node.origin.computed in HALVES:
        return node.origin.computed
    for value in (*node.outputs, *node.inputs):
        dtype = None if value is None else _expressed(value)
        if dtype in HALVES:
            return dtype
    return None


def _expressed(value: Value) -> DType:
    return value.quant.params.expressed_dtype if value.quant else value.type.dtype


def with_halves(node: Node, operands: Operands, known: Exact | None) -> Exact | None:
    """Returns the exact results of ``node`` and the intervals of its results in float16.

    Args:
        node: Any node.
        operands: The stored values of its operands.
        known: Its exact results.
    """
    dtype = half_of(node)
    if known is None or dtype is None:
        return known
    return replace(known, halves=tuple(_intervals(node, operands, dtype)))


def _intervals(node: Node, operands: Operands, dtype: DType) -> Iterator[tuple[Array, Array]]:
    for rounded in _choices(node):
        for low, high in _spans(node, operands, dtype, rounded):
            yield low, high
            yield _narrowed(low, dtype), _narrowed(high, dtype)


def _narrowed(real: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        return real.astype(dtype.numpy).astype(np.float64)


def _choices(node: Node) -> list[frozenset[int]]:
    """Returns sets of quantized operands whose real values are rounded."""
    computed = node.origin.computed in HALVES
    places = [
        i for i, v in enumerate(node.inputs) if v is not None and _rounds(v, computed=computed)
    ]
    if len(places) > _MOST:
        return [frozenset(), frozenset(places)]
    sizes = range(len(places) + 1)
    return [frozenset(some) for some in chain.from_iterable(combinations(places, k) for k in sizes)]


def _rounds(value: Value, *, computed: bool) -> bool:
    return isinstance(value.type, QuantType) and (computed or _expressed(value) in HALVES)


def _spans(
    node: Node, operands: Operands, dtype: DType, rounded: frozenset[int]
) -> Iterator[tuple[Array, Array]]:
    """Yields the float32 result's interval: for float operands as recorded, and before rounding.

    A float operand was recorded in float16; an operator that runs in float32 may have read it
    before it was rounded.
    """
    known = exact(node, operands, rounded=rounded, half=dtype)
    if known is None:
        return
    center = known.real if known.as_written is None else known.as_written
    width = _capped(node, known)
    yield center - width, center + width
    floats = [
        i for i, v in node.data_operands()
        if not v.quant and v.constant is None and v.type.dtype in HALVES
    ]  # fmt: skip
    if floats:
        yield from _unrounded(node, operands, dtype, rounded, floats, known)


def _capped(node: Node, known: Exact) -> Array:
    """Float32 sums may move a value by no more than an eighth of an LSB."""
    quant = node.output.quant
    if quant is None or not quant.params.per_tensor:
        return known.accumulated
    return np.minimum(known.accumulated, 0.125 * float(quant.params.scale))


def _unrounded(
    node: Node,
    operands: Operands,
    dtype: DType,
    rounded: frozenset[int],
    floats: Sequence[int],
    known: Exact,
) -> Iterator[tuple[Array, Array]]:
    error, tiny = unit(dtype), smallest(dtype)
    size = None
    match node.op.flow:
        case Flow.ACCUMULATE | Flow.AVERAGE:
            size = len(floats) * (error * magnitude(node, operands) + tiny)
        case Flow.ROUND:
            size = sensitivity(node, operands, error)
        case Flow.ELEMENTWISE if len(floats) <= _MOST:
            yield from _corners(node, operands, dtype, rounded, floats)
        case _:
            return
    if size is not None:
        center = known.real if known.as_written is None else known.as_written
        yield center - known.accumulated - size, center + known.accumulated + size


def _corners(
    node: Node, operands: Operands, dtype: DType, rounded: frozenset[int], floats: Sequence[int]
) -> Iterator[tuple[Array, Array]]:
    """Yields the hull of results for operands at both ends: the operators are monotone there."""
    ends: list[Array] = []
    for signs in product((-1, 1), repeat=len(floats)):
        moved = list(operands)
        for index, sign in zip(floats, signs, strict=True):
            real = np.asarray(operands[index]).astype(np.float64)
            moved[index] = real + sign * (np.abs(real) * unit(dtype) + smallest(dtype))
        found = exact(node, moved, rounded=rounded, half=dtype)
        if found is not None:
            ends += [found.real - found.accumulated, found.real + found.accumulated]
    if ends:
        yield np.minimum.reduce(ends), np.maximum.reduce(ends)
