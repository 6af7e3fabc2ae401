"""Simulated roundings: ``qnn.simulated_quantize`` and ``qnn.simulated_dequantize``."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.run_time_parameters import DISABLED, FLOAT_CODES, SIMULATE, SimulatedAttrs
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter
from qdqbridge.tvm.qnn.emit.table import at


def _simulate(
    emitter: FunctionEmitter, node: Node, attributes: SimulatedAttrs, args: list[Expr]
) -> Expr:
    """Emits both calls, and between them the clamp to codes that the type has and more.

    Without a type both calls give their operand back; the clamp is left out then as well. Types
    that are floats are computed beside them, and chosen by their codes.
    """
    x, code, scale, zero_point, low, high = args
    attrs = {"axis": -1 if attributes.axis is None else attributes.axis}
    codes = emitter.qnn("simulated_quantize", [x, code, scale, zero_point], attrs)
    for bound, clamp in ((high, emitter.op.minimum), (low, emitter.op.maximum)):
        codes = emitter.emit(clamp(codes, _along(emitter, bound, x, attributes.axis)))
    real = emitter.qnn("simulated_dequantize", [codes, code, scale, zero_point], attrs)
    found = emitter.op.where(_is(emitter, code, DISABLED), x, real)
    if not attributes.floats:
        return found
    factor = _along(emitter, scale, x, attributes.axis)
    for dtype, number in FLOAT_CODES.items():
        rounded = _round_to_minifloat(emitter, emitter.emit(emitter.op.divide(x, factor)), dtype)
        stored = emitter.emit(emitter.op.multiply(rounded, factor))
        found = emitter.op.where(_is(emitter, code, number), stored, emitter.emit(found))
    return found


def _is(emitter: FunctionEmitter, code: Expr, number: int) -> Expr:
    return emitter.emit(emitter.op.equal(code, emitter.number(np.array(number, np.int32))))


def _round_to_minifloat(emitter: FunctionEmitter, x: Expr, dtype: DType) -> Expr:
    """Returns the number nearest to each of ``x`` that a small float type has."""
    one = emitter.number(np.ones((), np.float32))
    stored = emitter.qnn("quantize_minifloat", [x, one], {"format": dtype.label})
    return emitter.qnn("dequantize_minifloat", [stored, one], {"format": dtype.label})


def _along(emitter: FunctionEmitter, bound: Expr, x: Expr, axis: int | None) -> Expr:
    """Returns a bound or a scale as floats that broadcast against ``x``."""
    number = emitter.cast(bound, "float32")
    if axis is None or not emitter.extents(bound):
        return number
    extents = emitter.extents(bound)
    shape = [extents[0] if i == axis else 1 for i in range(emitter.rank(x))]
    return emitter.emit(emitter.op.reshape(number, shape))


FLOATING_SIMULATED = dict((at(SIMULATE, _simulate),))
