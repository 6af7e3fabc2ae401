"""One node of a graph as a host computes it: a call of the QNN dialect, or float operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from qdqbridge.core.graph.attribute_codecs import call_attributes, spatial_axes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import AxisAttrs, QuantizeAttrs
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs, table
from qdqbridge.core.ops.conversion import DEQUANTIZE, QUANTIZE, REINTERPRET, REQUANTIZE
from qdqbridge.core.ops.data_movement import OPERATORS as MOVES
from qdqbridge.core.ops.elementwise import CONCAT, PRELU, WHERE
from qdqbridge.core.ops.reduction import reduces, reduction_of
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.selection import GATHER, SLICE, SPLIT
from qdqbridge.tvm.qnn.emit.accumulate import quantized_accumulation
from qdqbridge.tvm.qnn.emit.data_movement import DATA_MOVEMENT, emit_resize
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, storage, tvm_dtype, unsupported
from qdqbridge.tvm.qnn.emit.floating import FLOATING
from qdqbridge.tvm.qnn.emit.norms import QUANTIZED_NORMS
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.origin import written

# ---- quantize, dequantize, requantize and reinterpret --------------------------------------------


def _quantize(emitter: FunctionEmitter, node: Node) -> Expr:
    result = node.output.quant
    assert result is not None
    real = emitter.value(node.operand(0))
    dtype = node.operand(0).type.dtype
    if dtype.is_integer or dtype is DType.BFLOAT16:  # which TVM's operator does not take
        real = emitter.cast(real, "float32")
    params, precision = result.params, node.record(QuantizeAttrs).precision
    if precision is not None:
        real, params = emitter.quotient(real, params, precision), params.unscaled()
    return emitter.quantize(real, params)


def _dequantize(emitter: FunctionEmitter, node: Node) -> Expr:
    stored = node.operand(0)
    assert stored.quant is not None
    real = emitter.dequantize(emitter.value(stored), stored.quant.params)
    return emitter.cast(real, tvm_dtype(node.output.type.dtype))


def _requantize(emitter: FunctionEmitter, node: Node) -> Expr:
    assert node.output.quant is not None
    return emitter.converted(node.operand(0), node.output.quant.params)


def _reinterpret(emitter: FunctionEmitter, node: Node) -> Expr:
    stored = emitter.value(node.operand(0))
    if emitter.dtype(stored) != tvm_dtype(node.output.type.dtype):
        raise unsupported(node, "it changes the stored element type")
    return emitter.emit(stored)


CONVERSIONS: Mapping[Operator, Callable[[FunctionEmitter, Node], Expr]] = {
    QUANTIZE: _quantize,
    DEQUANTIZE: _dequantize,
    REQUANTIZE: _requantize,
    REINTERPRET: _reinterpret,
}


# ---- operators that dequantize, compute in float32 and quantize, and the averages ----------------

_Typed = tuple[Expr, Expr, Expr, int]
"""An operand with its scale, zero point and the axis of these."""


def quantized_result(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """Emits the operator's own qnn call; returns None where it has none for these operands."""
    result = node.output.quant
    if result is None or not result.params.per_tensor:
        return None
    emit = _OTHERWISE.get(node.op)
    if emit is not None:
        return emit(emitter, node)
    if not node.op.qnn:
        return None
    return (_binary if node.op.arity == 2 else _unary)(emitter, node)


def _output_qparams(node: Node) -> QuantParams:
    assert node.output.quant is not None
    return node.output.quant.params


def _typed(emitter: FunctionEmitter, value: Value) -> _Typed | None:
    """Returns an operand with its scale, zero point and axis; a float one has scale 1."""
    if value.quant is None:
        plain = _lossless_float32(emitter, value)
        one, zero = np.ones((), np.float32), np.zeros((), np.int32)
        return None if plain is None else (plain, emitter.number(one), emitter.number(zero), -1)
    params = value.quant.params
    # The dialect's calls have a scale per tensor or channel, and codes of 16 bits at most.
    if params.blocked or params.storage_dtype.bits > 16:
        return None
    axis = -1 if params.axis is None else params.axis
    return emitter.value(value), emitter.scale(params), emitter.zero_point(params), axis


def _lossless_float32(emitter: FunctionEmitter, value: Value) -> Expr | None:
    """Returns an operand as float32; None where that would change a value."""
    if str(value.type.dtype) == "float32":
        return emitter.value(value)
    if value.constant is None:
        return None
    array = value.constant.numpy()
    narrow = array.astype(np.float32)
    return emitter.number(narrow) if np.array_equal(narrow.astype(array.dtype), array) else None


def _outputs(emitter: FunctionEmitter, params: QuantParams) -> list[Expr]:
    return [emitter.scale(params), emitter.zero_point(params)]


def _unary(emitter: FunctionEmitter, node: Node) -> Expr | None:
    """``qnn.<op>(x, sx, zx, sy, zy)``, whose attributes are the operator's."""
    operand, rank = _typed(emitter, node.operand(0)), node.operand(0).rank
    if operand is None or node.operand(0).quant is None:
        return None
    attributes = node.attributes
    if reduces(node.op):
        if rank is None:
            return None
        attributes = reduction_of(node, emitter.spatial(node, rank))
    attrs, spatial, params = (
        call_attributes(attributes),
        spatial_axes(attributes),
        _output_qparams(node),
    )
    if spatial:
        attrs["layout"] = emitter.layout(node, spatial + 2)
    attrs["out_dtype"] = storage(params)
    args = [*operand[:3], *_outputs(emitter, params)]
    return emitter.clamp(emitter.qnn(node.op.qnn.format(rank=spatial), args, attrs), params)


def _binary(emitter: FunctionEmitter, node: Node) -> Expr | None:
    name = node.op.qnn
    if len(node.inputs) != 2:
        return _folded(emitter, node, name)
    left, right = _typed(emitter, node.operand(0)), _typed(emitter, node.operand(1))
    if left is None or right is None:
        return None
    if node.op is PRELU:  # its input does not grow by a slope
        right = (emitter.fitted(right[0], emitter.extents(left[0])), *right[1:])
    return _pair(emitter, name, left, right, _output_qparams(node))


def _pair(
    emitter: FunctionEmitter, name: str, left: _Typed, right: _Typed, params: QuantParams
) -> Expr:
    operands = emitter.aligned([left[0], right[0]])
    args = [*operands, *left[1:3], *right[1:3], *_outputs(emitter, params)]
    attrs = {"lhs_axis": left[3], "rhs_axis": right[3], "out_dtype": storage(params)}
    return emitter.clamp(emitter.qnn(name, args, attrs), params)


def _folded(emitter: FunctionEmitter, node: Node, name: str) -> Expr | None:
    """Min and Max of any number: pairs, each rounded; rounding is monotone and repeatable."""
    parts = [_typed(emitter, value) for value in node.inputs if value is not None]
    typed, params = [part for part in parts if part is not None], _output_qparams(node)
    if len(typed) != len(node.inputs):
        return None
    if len(typed) == 1:
        return emitter.converted(node.operand(0), params)
    total = typed[0]
    for other in typed[1:]:
        joined = _pair(emitter, name, total, other, params)
        total = (joined, *_outputs(emitter, params), -1)
    return total[0]


def _where(emitter: FunctionEmitter, node: Node) -> Expr | None:
    left, right = _typed(emitter, node.operand(1)), _typed(emitter, node.operand(2))
    if left is None or right is None:
        return None
    params = _output_qparams(node)
    operands = emitter.aligned([emitter.value(node.operand(0)), left[0], right[0]])
    args = [*operands, *left[1:3], *right[1:3], *_outputs(emitter, params)]
    attrs = {"lhs_axis": left[3], "rhs_axis": right[3], "out_dtype": storage(params)}
    return emitter.clamp(emitter.qnn("where", args, attrs), params)


def _emit_quantized_concat(
    emitter: FunctionEmitter, node: Node, attributes: AxisAttrs
) -> Expr | None:
    params = _output_qparams(node)
    values = [value for value in node.inputs if value is not None]
    typed = [v.quant.params for v in values if v.quant is not None and v.quant.params.per_tensor]
    whole = len(typed) == len(values)
    if whole and all(p.same_mapping(params) for p in typed):
        joined = emitter.emit(
            emitter.op.concat([emitter.value(v) for v in values], axis=attributes.axis)
        )
        # No operand reaches beyond the result's range, so nothing has to be cut off.
        covered = all(p.qmin >= params.qmin and p.qmax <= params.qmax for p in typed)
        return joined if covered else emitter.clamp(joined, params)
    if not whole or any(p.storage_dtype is not params.storage_dtype for p in typed):
        parts = [emitter.converted(value, params) for value in values]
        return emitter.emit(emitter.op.concat(parts, axis=attributes.axis))
    data = [emitter.value(value) for value in values]
    scales, zeros = [emitter.scale(p) for p in typed], [emitter.zero_point(p) for p in typed]
    args = [data, scales, zeros, *_outputs(emitter, params)]
    return emitter.clamp(emitter.qnn("concatenate", args, {"axis": attributes.axis}), params)


def _composition(emitter: FunctionEmitter, node: Node, attributes: CompositionAttrs) -> Expr | None:
    source, params = node.operand(0).quant, _output_qparams(node)
    if source is None:
        return None
    scalars = [v.constant.numpy() for v in node.inputs[1:] if v is not None and v.constant]
    entries = table(attributes, source.params, params, scalars)
    args = [emitter.value(node.operand(0)), emitter.number(entries)]
    return emitter.qnn("lookup", args, {"function": written(node, named=False)})


_Quantized: TypeAlias = "Callable[[FunctionEmitter, Node], Expr | None]"
_OTHERWISE: Mapping[Operator, _Quantized] = {
    **dict[Operator, _Quantized](
        (at(COMPOSITION, _composition), at(CONCAT, _emit_quantized_concat))
    ),
    WHERE: _where,
    **QUANTIZED_NORMS,
}
"""Operators whose calls take other arguments than those of one or of two operands."""


KNOWN = DATA_MOVEMENT.keys() | FLOATING.keys() | CONVERSIONS.keys() | {RESIZE, COMPOSITION}
"""Operators that have an emission function."""

EmitOpaque = Callable[[Node], Sequence[Expr]]
Form = Callable[[FunctionEmitter, Node, EmitOpaque], Sequence[Expr]]
"""Emits one node: an expression for each of its results."""

_BYTE_MOVERS = frozenset((*MOVES, SLICE, GATHER, SPLIT))
"""Operators that neither compare nor make up the elements that they move."""


def computes_minifloats(node: Node) -> bool:
    """True where an operator works on 8- or 4-bit floats, whose bytes say nothing to it."""
    if node.op.flow in (Flow.CONVERT, Flow.REINTERPRET) or node.op in _BYTE_MOVERS:
        return False
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return any(v.quant is not None and v.type.dtype.is_small_float for v in values)


def in_integers(emitter: FunctionEmitter, node: Node, emit_opaque: EmitOpaque) -> Sequence[Expr]:
    """Emits a node in the QNN dialect, or as a float operator where that has no call for it."""
    if node.op.flow is Flow.FLOAT and node.op not in FLOATING:
        return emit_opaque(node)
    own = emitter.variant.rows.get(node.op) if node.output.quant is not None else None
    written = None if own is None else own(emitter, node)
    if written is not None:
        return [written]
    if node.op in CONVERSIONS:
        return [CONVERSIONS[node.op](emitter, node)]
    if node.op is RESIZE:
        return [emit_resize(emitter, node)]
    if node.op in DATA_MOVEMENT:
        moved = DATA_MOVEMENT[node.op](emitter, node, emitter.value(node.operand(0)))
        return moved if isinstance(moved, list) else [moved]
    quantized = None
    if node.op.flow is Flow.ACCUMULATE:
        quantized = quantized_accumulation(emitter, node)
    elif node.output.quant is not None:
        quantized = quantized_result(emitter, node)
    return [float_form(emitter, node) if quantized is None else quantized]


def float_form(emitter: FunctionEmitter, node: Node) -> Expr:
    """Emits the float operator on dequantized operands, and the rounding of its result."""
    if node.op not in FLOATING:
        raise unsupported(node, "it has no counterpart of floats")
    args = [
        emitter.real(value) if node.op.is_data(index) else emitter.value(value)
        for index, value in enumerate(node.inputs)
        if value is not None
    ]
    result = FLOATING[node.op](emitter, node, args)
    if node.output.quant is None:
        return result
    return emitter.quantize(emitter.emit(result), node.output.quant.params)
