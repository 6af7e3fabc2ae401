"""Simulated roundings: ``qnn.simulated_quantize`` and ``qnn.simulated_dequantize``."""

from __future__ import annotations

import numpy as np

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Node
from qdqbridge.ops.simulated import SIMULATE, SimulatedAttrs
from qdqbridge.qnn.emit.scope import EmissionScope, Expr
from qdqbridge.qnn.emit.table import at


def _simulate(
    scope: EmissionScope, node: Node, attributes: SimulatedAttrs, args: list[Expr]
) -> Expr:
    """Emits both calls, and between them the clamp to codes that the type has and more.

    Without a type both calls give their operand back; the clamp is left out then as well.
    """
    if attributes.floats:
        raise UnsupportedTargetError(
            "roundings to float8 are not simulated by TVM",
            where=f"node '{node.name}'",
            fix="simulate with onnxruntime or numpy",
        )
    x, code, scale, zero_point, low, high = args
    attrs = {"axis": -1 if attributes.axis is None else attributes.axis}
    codes = scope.qnn("simulated_quantize", [x, code, scale, zero_point], attrs)
    for bound, clamp in ((high, scope.op.minimum), (low, scope.op.maximum)):
        codes = scope.emit(clamp(codes, _along(scope, bound, x, attributes.axis)))
    real = scope.qnn("simulated_dequantize", [codes, code, scale, zero_point], attrs)
    disabled = scope.emit(scope.op.equal(code, scope.number(np.zeros((), np.int32))))
    return scope.op.where(disabled, x, real)


def _along(scope: EmissionScope, bound: Expr, x: Expr, axis: int | None) -> Expr:
    """Returns an integer bound as floats that broadcast against ``x``."""
    number = scope.cast(bound, "float32")
    if axis is None or not scope.extents(bound):
        return number
    extents = scope.extents(bound)
    shape = [extents[0] if i == axis else 1 for i in range(scope.rank(x))]
    return scope.emit(scope.op.reshape(number, shape))


FLOATING_SIMULATED = dict((at(SIMULATE, _simulate),))
