"""Simulated roundings: ``qnn.simulated_quantize`` and ``qnn.simulated_dequantize``."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.simulated import DISABLED, FLOAT_CODES, SIMULATE, SimulatedAttrs
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr
from qdqbridge.tvm.qnn.emit.table import at


def _simulate(
    scope: EmissionScope, node: Node, attributes: SimulatedAttrs, args: list[Expr]
) -> Expr:
    """Emits both calls, and between them the clamp to codes that the type has and more.

    Without a type both calls give their operand back; the clamp is left out then as well. Types
    that are floats are computed beside them, and chosen by their codes.
    """
    x, code, scale, zero_point, low, high = args
    attrs = {"axis": -1 if attributes.axis is None else attributes.axis}
    codes = scope.qnn("simulated_quantize", [x, code, scale, zero_point], attrs)
    for bound, clamp in ((high, scope.op.minimum), (low, scope.op.maximum)):
        codes = scope.emit(clamp(codes, _along(scope, bound, x, attributes.axis)))
    real = scope.qnn("simulated_dequantize", [codes, code, scale, zero_point], attrs)
    found = scope.op.where(_is(scope, code, DISABLED), x, real)
    if not attributes.floats:
        return found
    factor = _along(scope, scale, x, attributes.axis)
    for dtype, number in FLOAT_CODES.items():
        rounded = _rounded(scope, scope.emit(scope.op.divide(x, factor)), dtype)
        stored = scope.emit(scope.op.multiply(rounded, factor))
        found = scope.op.where(_is(scope, code, number), stored, scope.emit(found))
    return found


def _is(scope: EmissionScope, code: Expr, number: int) -> Expr:
    return scope.emit(scope.op.equal(code, scope.number(np.array(number, np.int32))))


def _rounded(scope: EmissionScope, x: Expr, dtype: DType) -> Expr:
    """Returns the number nearest to each of ``x`` that a small float type has."""
    one = scope.number(np.ones((), np.float32))
    stored = scope.qnn("quantize_minifloat", [x, one], {"format": dtype.label})
    return scope.qnn("dequantize_minifloat", [stored, one], {"format": dtype.label})


def _along(scope: EmissionScope, bound: Expr, x: Expr, axis: int | None) -> Expr:
    """Returns a bound or a scale as floats that broadcast against ``x``."""
    number = scope.cast(bound, "float32")
    if axis is None or not scope.extents(bound):
        return number
    extents = scope.extents(bound)
    shape = [extents[0] if i == axis else 1 for i in range(scope.rank(x))]
    return scope.emit(scope.op.reshape(number, shape))


FLOATING_SIMULATED = dict((at(SIMULATE, _simulate),))
