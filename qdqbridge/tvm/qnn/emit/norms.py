"""Layer, RMS, instance, group and batch normalization, on codes and on floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.attribute_codecs import call_attributes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Operator
from qdqbridge.core.ops.attributes import EpsilonAttrs, NormAttrs
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    NORMS,
    OVER_CHANNELS,
)
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, storage
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.ranges import longest_row

_CODES = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
_Typed = tuple[Expr, Expr, Expr]


def quantized_norm(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """Emits ``qnn.<norm>(x, gamma, beta, sx, zx, sg, zg, sb, zb, sy, zy)``."""
    gamma = _emit_gamma_or_beta(emitter, node.operand(1))
    given = node.optional(2)
    if gamma is None or not _is_codes(node.operand(0)):
        return None
    if given is None:
        found = emitter.extents(gamma[0])  # zeros that repeat serve where the run has more
        extents = [extent if isinstance(extent, int) else 1 for extent in found]
        beta = _unscaled(emitter, emitter.number(np.zeros(extents, np.float32)))
    else:
        beta = _emit_gamma_or_beta(emitter, given)
    return None if beta is None else _call(emitter, node, [gamma, beta])


def quantized_batch_norm(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """Emits ``qnn.batch_norm(x, gamma, beta, mean, var, sx, zx, sy, zy)``."""
    statistics = [_norm_constant(node.operand(i)) for i in range(1, 5)]
    arrays = [emitter.number(array.astype(np.float32)) for array in statistics if array is not None]
    if len(arrays) < len(statistics) or not _is_codes(node.operand(0)):
        return None
    return _call(emitter, node, arrays)


def _call(emitter: FunctionEmitter, node: Node, rest: list[Any]) -> Expr:
    """Emits a call; ``rest`` holds expressions, or tuples of one and its parameters."""
    source, result = node.operand(0).quant, node.output.quant
    assert source is not None and result is not None
    extents = emitter.extents(emitter.value(node.operand(0)))
    emitter.at_most(_normalized(node, extents), longest_row(storage(source.params)))
    tensors = [entry[0] if isinstance(entry, tuple) else entry for entry in rest]
    if isinstance(node.attributes, NormAttrs):
        tensors = [emitter.fitted(tensor, extents) for tensor in tensors]
    args = [emitter.value(node.operand(0)), *tensors]
    args += [emitter.scale(source.params), emitter.zero_point(source.params)]
    for entry in rest:
        args += entry[1:] if isinstance(entry, tuple) else ()
    args += [emitter.scale(result.params), emitter.zero_point(result.params)]
    attrs: dict[str, Any] = {"out_dtype": storage(result.params)}
    attrs |= call_attributes(node.attributes)
    return emitter.clamp(emitter.qnn(node.op.qnn, args, attrs), result.params)


def _normalized(node: Node, extents: list[Any]) -> list[Any]:
    """Returns the extents that are normalized together, but for groups; none for a batch norm."""
    attributes = node.attributes
    if isinstance(attributes, NormAttrs):
        return extents[attributes.axis :]
    return [] if node.op is BATCH_NORMALIZATION else extents[2:]


def _is_codes(value: Value) -> bool:
    quant = value.quant
    return quant is not None and quant.params.per_tensor and quant.params.storage_dtype in _CODES


def _emit_gamma_or_beta(emitter: FunctionEmitter, value: Value) -> _Typed | None:
    """Returns gamma or beta with its parameters; a constant without such is folded to float32."""
    if value.quant is not None and value.quant.params.per_tensor:
        params = value.quant.params
        if params.storage_dtype in (*_CODES, DType.INT32):
            return emitter.value(value), emitter.scale(params), emitter.zero_point(params)
    real = _norm_constant(value)
    if real is not None:
        return _unscaled(emitter, emitter.number(real.astype(np.float32)))
    return _unscaled(emitter, emitter.value(value)) if str(value.type.dtype) == "float32" else None


def _unscaled(emitter: FunctionEmitter, real: Expr) -> _Typed:
    return real, emitter.number(np.ones((), np.float32)), emitter.number(np.zeros((), np.int32))


def _norm_constant(value: Value) -> NDArray[Any] | None:
    """Returns the real values of a constant."""
    if value.constant is None:
        return None
    array = value.constant.numpy()
    return array if value.quant is None else dequantize(array, value.quant.params)


# ---- on floats ------------------------------------------------------------------------------


def layer_norm(emitter: FunctionEmitter, attributes: NormAttrs, args: list[Expr]) -> Expr | None:
    """Emits the host's layer norm; None where it has none for gamma and beta that broadcast."""
    x, gamma = args[0], args[1]
    axes = list(range(attributes.axis, emitter.rank(x)))
    shape = [emitter.extents(x)[axis] for axis in axes]
    if emitter.extents(gamma) == shape:
        beta = args[2] if len(args) > 2 else emitter.emit(emitter.op.zeros_like(gamma))
        if emitter.extents(beta) == shape:
            return emitter.op.nn.layer_norm(x, gamma, beta, axes, attributes.epsilon)
    return None


def _channel_norm(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    """Emits an instance or group norm."""
    rank = emitter.rank(args[0])
    channel, axes = emitter.channel(node, rank), emitter.spatial(node, rank)
    *groups, epsilon = call_attributes(node.attributes).values()
    return emitter.function(node.op.tvm)(*args, *groups, channel, axes, epsilon)


def _batch_norm(
    emitter: FunctionEmitter, node: Node, attributes: EpsilonAttrs, args: list[Expr]
) -> Expr:
    axis = emitter.channel(node, emitter.rank(args[0]))
    result = emitter.op.nn.batch_norm(*args, axis=axis, epsilon=attributes.epsilon, training=False)
    return emitter.item(emitter.emit(result), 0)


QUANTIZED_NORMS: Mapping[Operator, Callable[[FunctionEmitter, Node], Expr | None]] = {
    **dict.fromkeys(NORMS, quantized_norm),
    BATCH_NORMALIZATION: quantized_batch_norm,
}
FLOATING_NORMS: Mapping[Operator, Callable[[FunctionEmitter, Node, list[Expr]], Expr]] = {
    **dict[Operator, Any].fromkeys(OVER_CHANNELS, _channel_norm),
    **dict((at(BATCH_NORMALIZATION, _batch_norm),)),
}
