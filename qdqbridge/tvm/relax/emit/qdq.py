"""The other variant: float operators between ``R.quantize`` and ``R.dequantize``.

TVM's own pattern tables (``example_npu``, ``tensorrt``, ``nnapi`` …) match float operators. Here
every operator stands alone: its quantized operands are dequantized for it, weights too, and its
result is quantized behind it. A narrower range becomes the ``relu`` or ``clip`` that it came from.
Sums are float32 sums, in TVM's order: a result may be 1 LSB from the exact one of ``qnn``. A NaN
becomes whatever ``R.quantize`` makes of it, not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax, tirx

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.types import QuantParams, TensorType, per_tensor, static_shape
from qdqbridge.core.ops.attributes import LinearAttrs, ResizeAttrs
from qdqbridge.core.ops.composition import CompositionAttrs
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.core.ops.run_time_parameters import QUANTIZE_LINEAR
from qdqbridge.tvm.qnn.emit.data_movement import DATA_MOVEMENT, emit_resize
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, storage, tvm_dtype, unsupported
from qdqbridge.tvm.qnn.emit.floating import FLOATING, unit_params
from qdqbridge.tvm.qnn.emit.nodes import CONVERSIONS, EmitOpaque, computes_minifloats, in_integers
from qdqbridge.tvm.relax.emit.broadcasting import equal
from qdqbridge.tvm.relax.emit.emitter import RelaxEmitter

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear"}
_COORDINATES = ("asymmetric", "align_corners", "half_pixel")


class QdqEmitter(RelaxEmitter):
    """Emits conversions as Relax's own two operators."""

    def quantize(self, real: Expr, params: QuantParams, hint: str = "") -> Expr:
        """Emits ``R.quantize`` behind the clamp of a narrower range."""
        if params.storage_dtype.is_small_float:
            return super().quantize(real, params, hint)
        axis, bounded = -1 if params.axis is None else params.axis, None
        scale, zero_point = self.scale(params), self.zero_point(params)
        if params.blocked:
            real = self._rounded_in_blocks(real, params)
            scale, zero_point = (
                self.number(np.ones((), np.float32)),
                self.number(np.zeros((), "i1")),
            )
        else:
            bounded = self._bounded(real, params)
        stored = self.op.quantize(
            real if bounded is None else bounded, scale, zero_point, axis, storage(params)
        )
        bound = self.emit(stored, hint)
        return self.clamp(bound, params) if bounded is None else bound

    def _bounded(self, real: Expr, params: QuantParams) -> Expr | None:
        """Returns ``real`` within a narrower range; None where integers have to be clipped.

        The bounds are the real values of the ends, which are rounded to those ends again.
        """
        lowest, highest = np.iinfo(storage(params)).min, np.iinfo(storage(params)).max
        if not params.per_tensor or (params.qmin == lowest and params.qmax == highest):
            return None
        if params.qmin == int(params.zero_point) and params.qmax == highest:
            return self.emit(self.op.nn.relu(real))
        ends = np.asarray([params.qmin, params.qmax], storage(params))
        low, high = (float(end) for end in dequantize(ends, params.widened()).astype(np.float32))
        return self.emit(self.op.clip(real, low, high))

    def dequantize(self, stored: Expr, params: QuantParams) -> Expr:
        """Emits ``R.dequantize`` to float32, or to float16 where the model computes in that."""
        if params.storage_dtype.is_small_float:
            return super().dequantize(stored, params)
        if params.blocked:
            return self._dequantize_blocks(stored, params)
        axis = -1 if params.axis is None else params.axis
        dtype = "float16" if params.expressed_dtype is DType.FLOAT16 else "float32"
        scale, zero_point = self.scale(params), self.zero_point(params)
        return self.emit(self.op.dequantize(stored, scale, zero_point, axis, dtype))

    def zero_point(self, params: QuantParams) -> Expr:
        """Returns the zero point in the storage type, as Relax's operators want it."""
        return self.number(params.zero_point.astype(storage(params)))

    def converted(self, value: Value, params: QuantParams) -> Expr:
        """Returns a value in the quantized type of ``params``: as it is, or by way of floats."""
        if value.quant is not None and value.quant.params.same_mapping(params):
            return self.clamp(self.value(value), params)
        return self.quantize(self.cast(self.real(value), "float32"), params)


def between_conversions(
    emitter: FunctionEmitter, node: Node, emit_opaque: EmitOpaque
) -> Sequence[Expr]:
    """Emits a node as ``R.dequantize`` of its operands, one operator, ``R.quantize``.

    Returns:
        One expression per result.

    Raises:
        UnsupportedTargetError: There is no Relax counterpart.
    """
    if node.op.flow is Flow.FLOAT and node.op not in FLOATING:
        return emit_opaque(node)
    if node.op in CONVERSIONS:
        return [CONVERSIONS[node.op](emitter, node)]
    part = _floating(emitter, node, node.op, node.attributes)
    if node.op in DATA_MOVEMENT:
        moved = DATA_MOVEMENT[node.op](emitter, part, emitter.value(part.operand(0)))
        reals = moved if isinstance(moved, list) else [moved]
    elif isinstance(node.attributes, ResizeAttrs):
        reals = [_resized(emitter, part, node.attributes)]
    elif isinstance(node.attributes, CompositionAttrs):
        reals = [_composed(emitter, part, node.attributes)]
    else:
        reals = [_computed(emitter, node, part)]
    emitted = [emitter.emit(real) for real in reals]
    return [
        _quantize_result(emitter, node, v, e) for v, e in zip(node.outputs, emitted, strict=False)
    ]


def in_codes(emitter: FunctionEmitter, node: Node, emit_opaque: EmitOpaque) -> Sequence[Expr]:
    """Emits a node in the QNN dialect; one that computes with 8- or 4-bit floats, on floats."""
    form = between_conversions if computes_minifloats(node) else in_integers
    return form(emitter, node, emit_opaque)


def _floating(
    emitter: FunctionEmitter, node: Node, operator: Operator, attributes: Attributes
) -> Node:
    """Returns a node as an operator on real values; its quantized operands are dequantized."""
    inputs = list(node.inputs)
    for index, value in node.data_operands():
        if value.quant is not None and not (node.op is DENSE and index == 1):
            dtype = value.quant.params.expressed_dtype
            inputs[index] = real = Value(TensorType(dtype, value.type.shape), value.name)
            emitter.exprs[real] = emitter.real(value)
    results: list[Value] = []
    for value in node.outputs:
        dtype = value.quant.params.expressed_dtype if value.quant else value.type.dtype
        results.append(Value(TensorType(dtype, value.type.shape), value.name))
    return Node(operator, attributes, inputs, results, node.origin)


def _quantize_result(emitter: FunctionEmitter, node: Node, value: Value, expr: Expr) -> Expr:
    """Quantizes a float result where the value is quantized."""
    if value.quant is None:
        return expr
    params = value.quant.params
    params = params.widened() if _clip_is_redundant(node, params) else params
    return emitter.quantize(emitter.cast(expr, "float32"), params)


def _clip_is_redundant(node: Node, params: QuantParams) -> bool:
    """True where the operand's range already keeps the result in its own, so that none is said."""
    source = node.operand(0).quant
    if source is None or not (source.params.per_tensor and params.per_tensor):
        return False
    if node.op not in DATA_MOVEMENT:
        return False
    (low, high), (lowest, highest) = source.params.real_range, params.real_range
    return lowest <= min(low, 0.0) and max(high, 0.0) <= highest


def _computed(emitter: FunctionEmitter, node: Node, part: Node) -> Expr:
    if node.op not in FLOATING:
        raise unsupported(node, "there is no Relax counterpart")
    if node.op is DENSE:
        args = [emitter.value(part.operand(0)), _permuted(emitter, node.operand(1))]
        product = emitter.emit(emitter.op.matmul(*_unify_float_dtypes(emitter, args)))
        bias = [emitter.value(value) for value in part.inputs[2:] if value is not None]
        return emitter.op.add(*_unify_float_dtypes(emitter, [product, *bias])) if bias else product
    args = [emitter.value(value) for value in part.inputs if value is not None]
    return FLOATING[node.op](emitter, part, _unify_float_dtypes(emitter, args))


def _unify_float_dtypes(emitter: FunctionEmitter, args: list[Expr]) -> list[Expr]:
    """Returns operands whose floats have the type of the first one (a bias may be wider)."""
    floats = [emitter.dtype(arg) for arg in args if "float" in emitter.dtype(arg)]
    return [emitter.cast(arg, floats[0]) if "float" in emitter.dtype(arg) else arg for arg in args]


def _permuted(emitter: FunctionEmitter, weight: Value) -> Expr:
    """Returns a weight (units, K) as (K, units); a constant is stored that way."""
    quant, constant = weight.quant, weight.constant
    if constant is None or (quant is not None and quant.params.blocked):
        return emitter.emit(emitter.op.permute_dims(emitter.real(weight)))
    permuted = constant.map(np.transpose, shape=constant.shape[::-1])
    stored = emitter.constant(permuted, weight.name)
    if quant is None:
        return stored
    params, axis = quant.params, quant.params.axis
    params = params if axis is None else params.with_axis(1 - axis)
    return emitter.cast(emitter.dequantize(stored, params), tvm_dtype(params.expressed_dtype))


def _composed(emitter: FunctionEmitter, part: Node, attributes: CompositionAttrs) -> Expr:
    """Emits the steps of a composition one by one, in float32."""
    exprs = [emitter.value(value) for value in part.inputs if value is not None]
    for step in attributes.steps:
        one = _floating(emitter, part, step.op, step.attributes)
        if step.op not in FLOATING:
            raise unsupported(one, "there is no Relax counterpart")
        args = _unify_float_dtypes(emitter, [exprs[index] for index in step.operands])
        exprs.append(emitter.emit(FLOATING[step.op](emitter, one, args)))
    return exprs[-1]


def _resized(emitter: FunctionEmitter, part: Node, attributes: ResizeAttrs) -> Expr:
    """Emits ``R.image.resize2d`` where it is the same function, else weighted sums."""
    before, after = static_shape(part.operand(0).type.shape), static_shape(part.output.type.shape)
    if before is None or after is None or not _is_native_resize(attributes, before, after):
        return emit_resize(emitter, part)
    return emitter.op.image.resize2d(
        emitter.value(part.operand(0)),
        (tirx.IntImm("int64", after[2]), tirx.IntImm("int64", after[3])),
        layout="NCHW",
        method=_METHODS[attributes.mode],
        coordinate_transformation_mode=attributes.coordinate_transformation_mode,
        rounding_method=attributes.nearest_mode,
    )


def _is_native_resize(
    attributes: ResizeAttrs, before: tuple[int, ...], after: tuple[int, ...]
) -> bool:
    """True where TVM's resize of an image computes the same; it knows sizes, not scales."""
    if len(before) != 4 or before[:2] != after[:2] or attributes.antialias:
        return False
    if attributes.scales is not None:
        exact = (n * s == m for n, s, m in zip(before, attributes.scales, after, strict=True))
        if not all(exact):
            return False
    known = attributes.coordinate_transformation_mode in _COORDINATES
    return known and attributes.mode in _METHODS


# ---- run time parameters -------------------------------------------------------------------------
# QuantizeLinear and DequantizeLinear with parameters of run time: a function of their own each.
#
# The QNN dialect's calls take constant parameters. Here scale and zero point are brought into the
# data's shape first, and what is left is one division, or one product, and a rounding.


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
