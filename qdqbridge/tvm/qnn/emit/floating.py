"""Operators on float values: the plain Relax operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.attribute_codecs import call_attributes, spatial_axes
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes, Flow, Operator, Row
from qdqbridge.core.graph.patterns import Pattern
from qdqbridge.core.graph.types import QuantParams, TensorType, per_tensor
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    AxisAttrs,
    CastAttrs,
    ClipAttrs,
    GeluAttrs,
    GemmAttrs,
    NormAttrs,
    ReduceAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.bodies import OPERANDS, body_of, folded, form_for, parts
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE, DYNAMIC_CONV, DYNAMIC_DENSE
from qdqbridge.core.ops.elementwise import CONCAT, DIV, POW, PRELU, WHERE
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL, broken_factors, factor
from qdqbridge.core.ops.normalization import OVER_ROWS
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.run_time_parameters import DISABLED, FLOAT_CODES, SIMULATE, SimulatedAttrs
from qdqbridge.core.ops.shape_values import SHAPE
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import CLIP, GELU, THRESHOLDED_RELU
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.accumulate import FLOATING_WINDOWS
from qdqbridge.tvm.qnn.emit.data_movement import DATA_MOVEMENT
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, tvm_dtype, unsupported
from qdqbridge.tvm.qnn.emit.norms import FLOATING_NORMS, layer_norm
from qdqbridge.tvm.qnn.emit.table import at

# ---- Simulated roundings: ``qnn.simulated_quantize`` and ``qnn.simulated_dequantize`` ------------


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


# ---- Operators on float values: the plain Relax operator -----------------------------------------


Emit = Callable[[FunctionEmitter, Node, list[Expr]], Expr]


def unit_params(dtype: DType, *, saturate: bool = True) -> QuantParams:
    """Returns the parameters under which stored numbers are the numbers themselves."""
    return replace(per_tensor(dtype, 1.0), saturate=saturate)


def _like(emitter: FunctionEmitter, x: Expr, value: float) -> Expr:
    """Returns a number in the element type of ``x``: a bound beyond it is infinite."""
    with np.errstate(over="ignore"):
        return emitter.number(np.asarray(value, emitter.dtype(x)))


def _factor(emitter: FunctionEmitter, x: Expr, value: float) -> Expr:
    """Returns a number to compute with in the element type of ``x``.

    Raises:
        UnsupportedTargetError: It is infinite there: 0 times it would be NaN.
    """
    own = np.dtype(emitter.dtype(x))
    if own.kind in "iu":
        return emitter.number(factor(value, own))
    with np.errstate(over="ignore"):
        number = np.asarray(value, own)
    if math.isfinite(value) and number.dtype.kind == "f" and not np.isfinite(number):
        raise UnsupportedTargetError(
            f"{value} is no {number.dtype}",
            why=f"the calls that the operator becomes compute in {number.dtype}",
            fix=f"put the operator between Casts to float32, or keep it out of {number.dtype}",
        )
    return emitter.number(number)


def _emit_builtin_call(name: str) -> Emit:
    return lambda emitter, node, args: emitter.function(name)(*args)


def _emit_broadcast(emit: Emit, trailing: int = 0) -> Emit:
    """Returns ``emit`` for operands that broadcast on all but some last axes."""
    return lambda emitter, node, args: emit(emitter, node, emitter.aligned(args, trailing))


def _folded(name: str) -> Emit:
    def emit(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
        del node
        total = args[0]
        for other in args[1:]:
            # From the left, two at a time: sums of floats depend on the order.
            total = emitter.function(name)(
                emitter.emit(total) if total is not args[0] else total, other
            )
        return total

    return emit


def _emit_float_dense(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    del node
    product = emitter.op.matmul(args[0], emitter.emit(emitter.op.permute_dims(args[1])))
    return product if len(args) < 3 else emitter.op.add(emitter.emit(product), args[2])


def _dynamic(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    """A product whose activation is quantized while the model runs, in the QNN dialect.

    The weight's zero point is int32 in the dialect, whatever a form has elsewhere.
    """
    quant = node.operand(1).quant
    assert quant is not None
    stated, spatial = call_attributes(node.attributes), spatial_axes(node.attributes)
    last = node in emitter.channels_last
    if spatial and last:
        # Weights keep their layout; only data are channels-last.
        stated["data_layout"] = emitter.layout(node, spatial + 2)
    operands = [*args[:2], emitter.number(quant.params.zero_point), emitter.scale(quant.params)]
    total = emitter.qnn(node.op.qnn.format(rank=spatial), operands, stated)
    if len(args) < 3:
        return total
    behind = [] if last else [1] * spatial
    column = emitter.emit(emitter.op.reshape(args[2], [-1, *behind])) if spatial else args[2]
    return emitter.op.add(total, column)


def _gemm(emitter: FunctionEmitter, node: Node, attributes: GemmAttrs, args: list[Expr]) -> Expr:
    del node
    a = emitter.emit(emitter.op.permute_dims(args[0])) if attributes.trans_a else args[0]
    b = emitter.emit(emitter.op.permute_dims(args[1])) if attributes.trans_b else args[1]
    own = emitter.dtype(a)
    wide = "float64" if "int" in own and broken_factors(attributes) else own
    total = emitter.cast(emitter.emit(emitter.op.matmul(a, b)), wide)
    if attributes.alpha != 1.0:
        total = emitter.emit(emitter.op.multiply(total, _factor(emitter, total, attributes.alpha)))
    if len(args) > 2:
        # Widened before the factors: of integers, alpha and beta may be fractions.
        bias = emitter.cast(args[2], wide)
        if attributes.beta != 1.0:
            bias = emitter.emit(emitter.op.multiply(bias, _factor(emitter, bias, attributes.beta)))
        fitting = emitter.fitted(bias, emitter.extents(total))
        total = emitter.op.add(*emitter.aligned([total, fitting]))
    return total if wide == own else emitter.op.astype(emitter.emit(total), own)


def _softmax(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    """A softmax; one over several axes, which are the last ones, as one over their product."""
    attributes, x, function = node.record(SoftmaxAttrs), args[0], emitter.function(node.op.tvm)
    if len(attributes.axes) == 1:
        return function(x, attributes.axes[0])
    shape = emitter.extents(x)
    if 0 in [extent for extent in shape if isinstance(extent, int)]:
        return x  # nothing, of which no extent follows
    flat = emitter.emit(emitter.op.reshape(x, (*shape[: attributes.axes[0]], -1)))
    return emitter.op.reshape(emitter.emit(function(flat, -1)), shape)


def _emit_float_clip(
    emitter: FunctionEmitter, node: Node, attributes: ClipAttrs, args: list[Expr]
) -> Expr:
    del node
    x = args[0]
    if attributes.low is not None:
        x = emitter.emit(emitter.op.maximum(x, _like(emitter, x, attributes.low)))
    return (
        x if attributes.high is None else emitter.op.minimum(x, _like(emitter, x, attributes.high))
    )


def _gelu(emitter: FunctionEmitter, node: Node, attributes: GeluAttrs, args: list[Expr]) -> Expr:
    del node
    tanh = attributes.approximate == "tanh"
    return emitter.op.nn.gelu_tanh(args[0]) if tanh else emitter.op.nn.gelu(args[0])


def _thresholded(
    emitter: FunctionEmitter, node: Node, attributes: AlphaAttrs, args: list[Expr]
) -> Expr:
    del node
    x = args[0]
    above = emitter.emit(emitter.op.greater(x, _like(emitter, x, attributes.alpha)))
    return emitter.op.where(above, x, emitter.emit(emitter.op.zeros_like(x)))


def _emit_float_concat(
    emitter: FunctionEmitter, node: Node, attributes: AxisAttrs, args: list[Expr]
) -> Expr:
    del node
    return emitter.op.concat(emitter.joinable(args, attributes.axis), axis=attributes.axis)


def _emit_cast(
    emitter: FunctionEmitter, node: Node, attributes: CastAttrs, args: list[Expr]
) -> Expr:
    (x,), source = args, node.operand(0).type.dtype
    if node.operand(0).quant is None and source.is_small_float:
        x = emitter.dequantize(x, unit_params(source))
    return emitter.op.astype(x, tvm_dtype(attributes.to))


def _divide(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    """The quotient of integers is cut towards zero in ONNX and floored in TVM."""
    dtype, (a, b) = node.output.type.dtype, args
    if dtype.is_float or emitter.dtype(a).startswith("uint"):
        return emitter.op.divide(a, b) if dtype.is_float else emitter.op.floor_divide(a, b)
    whole = emitter.emit(
        emitter.op.floor_divide(emitter.emit(emitter.op.abs(a)), emitter.emit(emitter.op.abs(b)))
    )
    signs = [emitter.emit(emitter.op.less(arg, _like(emitter, arg, 0))) for arg in args]
    differ = emitter.emit(emitter.op.logical_xor(*signs))
    return emitter.op.where(differ, emitter.emit(emitter.op.negative(whole)), whole)


def _power(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    """The result has the base's type, whatever the exponent's.

    Raises:
        UnsupportedTargetError: The exponents are uint64, which no type of both operands holds.
    """
    base, exponent = args
    own, other = emitter.dtype(base), emitter.dtype(exponent)
    wide = own if "float" in own else "float64"
    if "int" in own and "int" in other and emitter.raises_integers:
        if other == "uint64":
            raise unsupported(node, "powers of integers take exponents up to 2^63 - 1")
        wide = own if np.can_cast(other, own) else "int64"
    raised = emitter.op.power(emitter.cast(base, wide), emitter.cast(exponent, wide))
    return raised if wide == own else emitter.op.astype(emitter.emit(raised), own)


def _emit_shape_op(
    emitter: FunctionEmitter, node: Node, attributes: ShapeAttrs, args: list[Expr]
) -> Expr:
    del node
    whole = emitter.shape_vector(args[0])
    if attributes == ShapeAttrs():
        return whole
    # Python's own slices clamp to the rank as ONNX's Shape does.
    begin, end, _ = slice(attributes.start, attributes.end).indices(emitter.rank(args[0]))
    return emitter.op.strided_slice(whole, axes=[0], begin=[begin], end=[max(begin, end)])


_STEPS: dict[str, str] = {
    **{row.name: row.tvm for row in OPERATORS if row.tvm and row.arity},
    "Div": "divide", "Less": "less", "Greater": "greater", "Where": "where",
}  # fmt: skip
"""TVM's operators that the forms of others are written with."""


def _emit_tvm_operator(row: Operator) -> Emit:
    """TVM's own operator, which takes the operands and then the attributes."""

    def emit(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
        return emitter.function(row.tvm)(*args, *call_attributes(node.attributes).values())

    return emit


def _emit_by_form(row: Operator) -> Emit:
    """An operator that TVM has not, by the first of its forms."""

    def emit(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
        form = form_for(row, node.attributes)
        assert form is not None, f"{row.name} has no form for {node.attributes}"
        known = {f"#{name}": value for name, value in row.values(node.attributes).items()}
        known |= dict(zip(OPERANDS[row.arity], args, strict=True))
        return _chain(emitter, form.pattern, known, args[0])

    return emit


def _chain(
    emitter: FunctionEmitter, pattern: Pattern, known: Mapping[str, Any], like: Expr
) -> Expr:
    """Emits the steps of a pattern; the last one is left to the caller."""
    if not isinstance(pattern, tuple):
        value = known[pattern] if isinstance(pattern, str) else pattern
        return _factor(emitter, like, value) if isinstance(value, float) else value
    parts = [_chain(emitter, part, known, like) for part in pattern[1:]]
    parts = [
        emitter.emit(part) if isinstance(inner, tuple) else part
        for part, inner in zip(parts, pattern[1:], strict=True)
    ]
    return emitter.function(_STEPS[pattern[0]])(*parts)


def by_steps(
    emitter: FunctionEmitter, row: Operator, attributes: Attributes, args: list[Expr]
) -> Expr:
    """Emits an operator that TVM has not by those that it stands for; the last is the caller's."""

    def step(op: Operator, own: Attributes, values: list[Expr]) -> Expr:
        return emitter.emit(_step(emitter, op, own, values))

    def number(value: float) -> Expr:
        return _like(emitter, args[0], value)

    extents = [e if isinstance(e, int) else None for e in emitter.extents(args[0])]
    body = body_of(row, attributes, tuple(extents), len(args))
    assert isinstance(body, tuple)
    op, inner, own = parts(body)
    made: dict[Pattern, Expr] = {}
    values = [folded(part, args, step, number, made) for part in inner]
    return _step(emitter, op, own, values)


def _step(
    emitter: FunctionEmitter, op: Operator, attributes: Attributes, values: list[Expr]
) -> Expr:
    """Emits one operator of a body on floats."""
    inputs = [Value(TensorType(DType.of(np.dtype(emitter.dtype(v))), None)) for v in values]
    emitter.exprs.update(zip(inputs, values, strict=True))
    node = Node(op, attributes, inputs, [Value(inputs[0].type)])
    if op in DATA_MOVEMENT:
        return DATA_MOVEMENT[op](emitter, node, values[0])
    return FLOATING[op](emitter, node, values)


def _norm_of_rows(row: Row[NormAttrs]) -> Emit:
    """A norm over the last axes: the host's, or its steps, of gamma and beta that broadcast."""

    def emit(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
        whole = layer_norm(emitter, node.record(NormAttrs), args) if row.tvm else None
        if whole is not None:
            return whole
        extents = emitter.extents(args[0])
        fitting = [emitter.fitted(each, extents) for each in args[1:]]
        return by_steps(emitter, row, node.attributes, [args[0], *fitting])

    return emit


def _elementwise(row: Operator) -> Emit:
    if row.tvm and row.arity == 1:
        return _emit_tvm_operator(row)
    emit = _folded(row.tvm) if row.tvm else _emit_by_form(row)
    return emit if row.arity == 1 else _emit_broadcast(emit)


def _prelu(emitter: FunctionEmitter, node: Node, args: list[Expr]) -> Expr:
    """The form of a PRelu, whose input does not grow by its slope."""
    x, slope = args
    fitting = emitter.fitted(slope, emitter.extents(x))
    return _emit_broadcast(_emit_by_form(PRELU))(emitter, node, [x, fitting])


def _of_row(row: Operator) -> Emit:
    """What follows from a row: by the record of its attributes, or from its one or two operands."""
    if row.by_steps:
        return lambda emitter, node, args: by_steps(emitter, row, node.attributes, args)
    record = ReduceAttrs if reduces(row) else row.attributes
    return _elementwise(row) if row.arity else _FAMILIES.get(record) or _emit_tvm_operator(row)


_FAMILIES: dict[type[Attributes], Emit] = {**FLOATING_WINDOWS, SoftmaxAttrs: _softmax}
FLOATING: Mapping[Operator, Emit] = {
    **{
        row: _of_row(row)
        for row in OPERATORS
        if (row.tvm or row.forms or row.body) and row.flow is not Flow.MOVE
    },
    DENSE: _emit_float_dense,
    MATMUL: _emit_broadcast(_emit_builtin_call("matmul"), 2),
    DIV: _emit_broadcast(_divide),
    POW: _emit_broadcast(_power),
    WHERE: _emit_broadcast(_emit_builtin_call("where")),
    PRELU: _prelu,
    **dict.fromkeys((DYNAMIC_DENSE, DYNAMIC_CONV, DYNAMIC_BLOCK_DENSE), _dynamic),
    **FLOATING_NORMS,
    **{row: _norm_of_rows(row) for row in OVER_ROWS},
    **FLOATING_SIMULATED,
    **dict(
        (
            at(GEMM, _gemm),
            at(CLIP, _emit_float_clip),
            at(GELU, _gelu),
            at(THRESHOLDED_RELU, _thresholded),
            at(CONCAT, _emit_float_concat),
            at(CAST, _emit_cast),
            at(SHAPE, _emit_shape_op),
        )
    ),
}
