"""Layer, RMS, instance, group and batch normalization, on codes and on floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.lenses import call_attributes
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.attributes import EpsilonAttrs, GroupNormAttrs, NormAttrs
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
    LAYER_NORMALIZATION,
    OPERATORS,
    RMS_NORMALIZATION,
)
from qdqbridge.tvm.qnn.emit.dtypes import storage
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.ranges import longest_row

_CODES = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
_Typed = tuple[Expr, Expr, Expr]


def quantized_norm(name: str) -> Callable[[EmissionScope, Node], Expr | None]:
    """Returns what emits ``qnn.<name>(x, gamma, beta, sx, zx, sg, zg, sb, zb, sy, zy)``."""

    def emit(scope: EmissionScope, node: Node) -> Expr | None:
        gamma = _affine(scope, node.operand(1))
        given = node.optional(2)
        if gamma is None or not _is_codes(node.operand(0)):
            return None
        if given is None:
            found = scope.extents(gamma[0])  # zeros that repeat serve where the run has more
            extents = [extent if isinstance(extent, int) else 1 for extent in found]
            beta = _unscaled(scope, scope.number(np.zeros(extents, np.float32)))
        else:
            beta = _affine(scope, given)
        return None if beta is None else _call(scope, node, name, [gamma, beta])

    return emit


def quantized_batch_norm(scope: EmissionScope, node: Node) -> Expr | None:
    """Emits ``qnn.batch_norm(x, gamma, beta, mean, var, sx, zx, sy, zy)``."""
    statistics = [_real(node.operand(i)) for i in range(1, 5)]
    arrays = [scope.number(array.astype(np.float32)) for array in statistics if array is not None]
    if len(arrays) < len(statistics) or not _is_codes(node.operand(0)):
        return None
    return _call(scope, node, "batch_norm", arrays)


def _call(scope: EmissionScope, node: Node, name: str, rest: list[Any]) -> Expr:
    """Emits a call; ``rest`` holds expressions, or tuples of one and its parameters."""
    source, result = node.operand(0).quant, node.output.quant
    assert source is not None and result is not None
    extents = scope.extents(scope.value(node.operand(0)))
    scope.at_most(_normalized(node, extents), longest_row(storage(source.params)))
    tensors = [entry[0] if isinstance(entry, tuple) else entry for entry in rest]
    if isinstance(node.attributes, NormAttrs):
        tensors = [scope.fitted(tensor, extents) for tensor in tensors]
    args = [scope.value(node.operand(0)), *tensors]
    args += [scope.scale(source.params), scope.zero_point(source.params)]
    for entry in rest:
        args += entry[1:] if isinstance(entry, tuple) else ()
    args += [scope.scale(result.params), scope.zero_point(result.params)]
    attrs: dict[str, Any] = {"out_dtype": storage(result.params)}
    attrs |= call_attributes(node.attributes)
    return scope.clamp(scope.qnn(name, args, attrs), result.params)


def _normalized(node: Node, extents: list[Any]) -> list[Any]:
    """Returns the extents that are normalized together, but for groups; none for a batch norm."""
    attributes = node.attributes
    if isinstance(attributes, NormAttrs):
        return extents[attributes.axis :]
    return [] if node.op is BATCH_NORMALIZATION else extents[2:]


def _is_codes(value: Value) -> bool:
    quant = value.quant
    return quant is not None and quant.params.per_tensor and quant.params.storage_dtype in _CODES


def _affine(scope: EmissionScope, value: Value) -> _Typed | None:
    """Returns gamma or beta with its parameters; a constant without such is folded to float32."""
    if value.quant is not None and value.quant.params.per_tensor:
        params = value.quant.params
        if params.storage_dtype in (*_CODES, DType.INT32):
            return scope.value(value), scope.scale(params), scope.zero_point(params)
    real = _real(value)
    if real is not None:
        return _unscaled(scope, scope.number(real.astype(np.float32)))
    return _unscaled(scope, scope.value(value)) if str(value.type.dtype) == "float32" else None


def _unscaled(scope: EmissionScope, real: Expr) -> _Typed:
    return real, scope.number(np.ones((), np.float32)), scope.number(np.zeros((), np.int32))


def _real(value: Value) -> NDArray[Any] | None:
    """Returns the real values of a constant."""
    if value.constant is None:
        return None
    array = value.constant.numpy()
    return array if value.quant is None else dequantize(array, value.quant.params)


# ---- on floats ------------------------------------------------------------------------------


def _layer_norm(scope: EmissionScope, node: Node, attributes: NormAttrs, args: list[Expr]) -> Expr:
    del node
    x, gamma = args[0], args[1]
    axes = list(range(attributes.axis, scope.rank(x)))
    shape = [scope.extents(x)[axis] for axis in axes]
    if scope.extents(gamma) == shape:
        beta = args[2] if len(args) > 2 else scope.emit(scope.op.zeros_like(gamma))
        if scope.extents(beta) == shape:
            return scope.op.nn.layer_norm(x, gamma, beta, axes, attributes.epsilon)
    centred = scope.emit(scope.op.subtract(x, scope.emit(scope.op.mean(x, axes, True))))
    return _scaled(scope, centred, axes, attributes.epsilon, args)


def _rms_norm(scope: EmissionScope, node: Node, attributes: NormAttrs, args: list[Expr]) -> Expr:
    del node
    axes = list(range(attributes.axis, scope.rank(args[0])))
    return _scaled(scope, args[0], axes, attributes.epsilon, args)


def _scaled(
    scope: EmissionScope, x: Expr, axes: list[int], epsilon: float, args: list[Expr]
) -> Expr:
    """Returns ``x / sqrt(mean(x * x) + epsilon) * gamma + beta``; gamma and beta broadcast."""
    square = scope.emit(scope.op.multiply(x, x))
    mean = scope.emit(scope.op.mean(square, axes, True))
    shifted = scope.emit(scope.op.add(mean, scope.number(np.asarray(epsilon, scope.dtype(x)))))
    normal = scope.emit(scope.op.divide(x, scope.emit(scope.op.sqrt(shifted))))
    extents = scope.extents(x)
    result = scope.op.multiply(normal, scope.fitted(args[1], extents))
    if len(args) < 3:
        return result
    return scope.op.add(scope.emit(result), scope.fitted(args[2], extents))


def _instance_norm(
    scope: EmissionScope, node: Node, attributes: EpsilonAttrs, args: list[Expr]
) -> Expr:
    rank = scope.rank(args[0])
    channel, axes = scope.channel(node, rank), scope.spatial(node, rank)
    return scope.op.nn.instance_norm(*args, channel, axes, attributes.epsilon)


def _group_norm(
    scope: EmissionScope, node: Node, attributes: GroupNormAttrs, args: list[Expr]
) -> Expr:
    rank = scope.rank(args[0])
    channel, axes = scope.channel(node, rank), scope.spatial(node, rank)
    groups, epsilon = attributes.num_groups, attributes.epsilon
    return scope.op.nn.group_norm(*args, groups, channel, axes, epsilon)


def _batch_norm(
    scope: EmissionScope, node: Node, attributes: EpsilonAttrs, args: list[Expr]
) -> Expr:
    axis = scope.channel(node, scope.rank(args[0]))
    result = scope.op.nn.batch_norm(*args, axis=axis, epsilon=attributes.epsilon, training=False)
    return scope.item(scope.emit(result), 0)


OVER_CHANNELS = frozenset(
    (
        INSTANCE_NORMALIZATION,
        GROUP_NORMALIZATION,
        BATCH_NORMALIZATION,
    )
)
"""Norms that are emitted channels-first only; layout plans have to know."""

QUANTIZED_NORMS: Mapping[Operator, Callable[[EmissionScope, Node], Expr | None]] = {
    **{row: quantized_norm(row.qnn) for row in OPERATORS if row.qnn},
    BATCH_NORMALIZATION: quantized_batch_norm,
}
FLOATING_NORMS = dict(
    (
        at(LAYER_NORMALIZATION, _layer_norm),
        at(RMS_NORMALIZATION, _rms_norm),
        at(INSTANCE_NORMALIZATION, _instance_norm),
        at(GROUP_NORMALIZATION, _group_norm),
        at(BATCH_NORMALIZATION, _batch_norm),
    )
)
