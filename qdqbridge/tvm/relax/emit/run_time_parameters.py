"""QuantizeLinear and DequantizeLinear with parameters of run time: a function of their own each.

The QNN dialect's calls take constant parameters. Here scale and zero point are brought into the
data's shape first, and what is left is one division, or one product, and a rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.quantization import per_tensor
from qdqbridge.core.graph.types import static_shape
from qdqbridge.core.ops.attributes import LinearAttrs
from qdqbridge.core.ops.run_time_parameters import QUANTIZE_LINEAR
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.emitter import Expr, unsupported
from qdqbridge.tvm.qnn.emit.floating import unit_params
from qdqbridge.tvm.relax.emit.broadcasting import equal
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

_WIDE = "float32"


def linear_module(node: Node, attributes: LinearAttrs) -> ir.IRModule:
    """Returns a module whose ``main`` computes a node from its operands that are not constant.

    Raises:
        UnsupportedTargetError: TVM cannot compute it.
    """
    builder = relax.BlockBuilder()
    emitter = RelaxEmitter(builder, {})
    params: list[Any] = []
    for index, value in enumerate(node.inputs):
        if value is not None and value.constant is None and value not in emitter.exprs:
            type_ = relax.TensorType(emitter.shape(value.type.shape), tvm_dtype(value.type.dtype))
            emitter.exprs[value] = relax.Var(f"in_{index}", type_)
            params.append(emitter.exprs[value])
    with builder.function("main", params):
        with builder.dataflow():
            quantizes = node.op is QUANTIZE_LINEAR
            expr = (_emit_dynamic_quantize if quantizes else _dequantized)(
                emitter, node, attributes
            )
            result = builder.emit_output(emitter.emit(expr))
        builder.emit_func_output(result)
    return builder.finalize()


def _emit_dynamic_quantize(emitter: RelaxEmitter, node: Node, attributes: LinearAttrs) -> Expr:
    x, scale, zero_point = _three(node)
    real = emitter.cast(emitter.value(x), _WIDE)
    divisor = _aligned(emitter, node, attributes, scale, _WIDE)
    if attributes.precision is None:
        scaled = emitter.emit(emitter.op.divide(real, divisor))
    else:
        scaled = emitter.divided(real, divisor, attributes.precision)
    if not attributes.to.is_integer:
        return emitter.quantize(scaled, unit_params(attributes.to, saturate=attributes.saturate))
    if zero_point is not None:
        shift = _aligned(emitter, node, attributes, zero_point, _WIDE)
        scaled = emitter.emit(emitter.op.add(emitter.emit(emitter.op.round(scaled)), shift))
    return emitter.quantize(scaled, per_tensor(attributes.to, 1.0))


def _dequantized(emitter: RelaxEmitter, node: Node, attributes: LinearAttrs) -> Expr:
    x, scale, zero_point = _three(node)
    stored = emitter.value(x)
    if x.type.dtype.is_small_float:
        stored = emitter.dequantize(stored, unit_params(x.type.dtype))
    elif zero_point is not None:
        wide = "int64" if x.type.dtype is DType.INT32 else "int32"
        shift = _aligned(emitter, node, attributes, zero_point, wide)
        stored = emitter.emit(emitter.op.subtract(emitter.cast(stored, wide), shift))
    factor = _aligned(emitter, node, attributes, scale, _WIDE)
    real = emitter.emit(emitter.op.multiply(emitter.cast(stored, _WIDE), factor))
    return emitter.cast(real, tvm_dtype(attributes.to))


def _three(node: Node) -> tuple[Value, Value, Value | None]:
    return node.operand(0), node.operand(1), node.optional(2)


def _aligned(
    emitter: RelaxEmitter, node: Node, attributes: LinearAttrs, value: Value, dtype: str
) -> Expr:
    """Returns a scale or zero point in the shape that broadcasts against the data."""
    expr = emitter.cast(emitter.value(value), dtype)
    shape, rank = value.type.shape, node.operand(0).rank
    if rank is None or shape is None:
        raise unsupported(node, "the rank of its data or of a parameter is unknown")
    if shape in ((), (1,)):
        return emitter.emit(emitter.op.reshape(expr, ())) if shape else expr
    axis = 1 if attributes.axis is None else attributes.axis
    if not -rank <= axis < rank or len(shape) not in (1, rank):
        raise unsupported(node, f"parameters of rank {len(shape)} for data of rank {rank}")
    axis %= rank
    if len(shape) == 1 and not attributes.block_size:
        (extent,), whole = emitter.extents(expr), emitter.extents(emitter.value(node.operand(0)))
        column = [extent if i == axis else 1 for i in range(rank)]
        along = emitter.emit(emitter.op.reshape(expr, column))
        if isinstance(extent, int) or equal(extent, whole[axis]):
            return along
        column[axis] = whole[axis]  # only the run knows whether it is one for all
        return emitter.emit(emitter.broadcast(along, column))
    extents = static_shape(node.operand(0).type.shape)
    blocks = static_shape(shape)
    if extents is None or blocks is None:
        raise unsupported(node, "blocks of an open extent")
    size = attributes.block_size or -(-extents[axis] // blocks[axis])
    repeated = emitter.emit(emitter.op.repeat(expr, size, axis=axis))
    end = int(np.asarray(extents[axis]))
    return emitter.emit(emitter.op.strided_slice(repeated, axes=[axis], begin=[0], end=[end]))


def arguments(emitter: RelaxEmitter, node: Node) -> Sequence[Expr]:
    """Returns what a call of :func:`linear_module`'s function takes."""
    given = dict.fromkeys(v for v in node.inputs if v is not None and v.constant is None)
    return [emitter.value(value) for value in given]
