"""Operators on float values: the plain Relax operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.lenses import call_attributes
from qdqbridge.core.graph.operator import Attributes, Flow, Operator, Pattern
from qdqbridge.core.graph.quantization import QuantParams, per_tensor
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    AxisAttrs,
    CastAttrs,
    ClipAttrs,
    ConvAttrs,
    GeluAttrs,
    GemmAttrs,
    ReduceAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.core.ops.bodies import folded, parts
from qdqbridge.core.ops.cast import CAST
from qdqbridge.core.ops.dynamic import (
    DYNAMIC_BLOCK_DENSE,
    DYNAMIC_CONV,
    DYNAMIC_DENSE,
    BlockAttrs,
    DynamicAttrs,
)
from qdqbridge.core.ops.elementwise import CONCAT, DIV, POW, WHERE
from qdqbridge.core.ops.forms import OPERANDS, form_for
from qdqbridge.core.ops.matmul import DENSE, GEMM, MATMUL, broken_factors, factor
from qdqbridge.core.ops.reduction import reduces
from qdqbridge.core.ops.shape_operator import SHAPE
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.core.ops.unary import CLIP, GELU, THRESHOLDED_RELU
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.data_movement import DATA_MOVEMENT
from qdqbridge.tvm.qnn.emit.dtypes import tvm_dtype
from qdqbridge.tvm.qnn.emit.norms import FLOATING_NORMS
from qdqbridge.tvm.qnn.emit.scope import EmissionScope, Expr, unsupported
from qdqbridge.tvm.qnn.emit.simulated import FLOATING_SIMULATED
from qdqbridge.tvm.qnn.emit.table import at
from qdqbridge.tvm.qnn.emit.windows import FLOATING_WINDOWS

Emit = Callable[[EmissionScope, Node, list[Expr]], Expr]


def unit_params(dtype: DType, *, saturate: bool = True) -> QuantParams:
    """Returns the parameters under which stored numbers are the numbers themselves."""
    return replace(per_tensor(dtype, 1.0), saturate=saturate)


def _like(scope: EmissionScope, x: Expr, value: float) -> Expr:
    """Returns a number in the element type of ``x``: a bound beyond it is infinite."""
    with np.errstate(over="ignore"):
        return scope.number(np.asarray(value, scope.dtype(x)))


def _factor(scope: EmissionScope, x: Expr, value: float) -> Expr:
    """Returns a number to compute with in the element type of ``x``.

    Raises:
        UnsupportedTargetError: It is infinite there: 0 times it would be NaN.
    """
    own = np.dtype(scope.dtype(x))
    if own.kind in "iu":
        return scope.number(factor(value, own))
    with np.errstate(over="ignore"):
        number = np.asarray(value, own)
    if math.isfinite(value) and number.dtype.kind == "f" and not np.isfinite(number):
        raise UnsupportedTargetError(
            f"{value} is no {number.dtype}",
            why=f"the calls that the operator becomes compute in {number.dtype}",
            fix=f"put the operator between Casts to float32, or keep it out of {number.dtype}",
        )
    return scope.number(number)


def _plain(name: str) -> Emit:
    return lambda scope, node, args: scope.function(name)(*args)


def _broadcast(emit: Emit, trailing: int = 0) -> Emit:
    """Returns ``emit`` for operands that broadcast on all but some last axes."""
    return lambda scope, node, args: emit(scope, node, scope.aligned(args, trailing))


def _folded(name: str) -> Emit:
    def emit(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
        del node
        total = args[0]
        for other in args[1:]:
            total = scope.function(name)(
                scope.emit(total) if total is not args[0] else total, other
            )
        return total

    return emit


def _dense(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
    del node
    product = scope.op.matmul(args[0], scope.emit(scope.op.permute_dims(args[1])))
    return product if len(args) < 3 else scope.op.add(scope.emit(product), args[2])


def _dynamic_dense(
    scope: EmissionScope, node: Node, attributes: DynamicAttrs, args: list[Expr]
) -> Expr:
    """A product whose activation is quantized while the model runs, in the QNN dialect."""
    operands = [*args[:2], *_weight_parameters(scope, node)]
    total = scope.qnn("dynamic_dense", operands, {"rows": attributes.rows})
    return total if len(args) < 3 else scope.op.add(total, args[2])


def _weight_parameters(scope: EmissionScope, node: Node) -> list[Expr]:
    """Returns the zero point, int32 in the dialect whatever a form has elsewhere, and the scale."""
    quant = node.operand(1).quant
    assert quant is not None
    return [scope.number(quant.params.zero_point), scope.scale(quant.params)]


def _dynamic_conv(
    scope: EmissionScope, node: Node, attributes: ConvAttrs, args: list[Expr]
) -> Expr:
    """As :func:`_dynamic_dense`, of a convolution."""
    rank = len(attributes.strides)
    stated: dict[str, Any] = {
        "strides": list(attributes.strides),
        "padding": list(attributes.pads),
        "dilation": list(attributes.dilations),
        "groups": attributes.group,
    }
    behind = [] if node in scope.channels_last else [1] * rank
    if node in scope.channels_last:
        stated["data_layout"] = scope.layout(node, rank + 2)
    operands = [*args[:2], *_weight_parameters(scope, node)]
    total = scope.qnn(f"dynamic_conv{rank}d", operands, stated)
    if len(args) < 3:
        return total
    column = scope.emit(scope.op.reshape(args[2], [-1, *behind]))
    return scope.op.add(scope.emit(total), column)


def _dynamic_block_dense(
    scope: EmissionScope, node: Node, attributes: BlockAttrs, args: list[Expr]
) -> Expr:
    """As :func:`_dynamic_dense`, in blocks."""
    operands = [*args[:2], *_weight_parameters(scope, node)]
    total = scope.qnn("dynamic_block_dense", operands, {"block_size": attributes.block_size})
    return total if len(args) < 3 else scope.op.add(total, args[2])


def _gemm(scope: EmissionScope, node: Node, attributes: GemmAttrs, args: list[Expr]) -> Expr:
    del node
    a = scope.emit(scope.op.permute_dims(args[0])) if attributes.trans_a else args[0]
    b = scope.emit(scope.op.permute_dims(args[1])) if attributes.trans_b else args[1]
    own = scope.dtype(a)
    wide = "float64" if "int" in own and broken_factors(attributes) else own
    total = scope.cast(scope.emit(scope.op.matmul(a, b)), wide)
    if attributes.alpha != 1.0:
        total = scope.emit(scope.op.multiply(total, _factor(scope, total, attributes.alpha)))
    if len(args) > 2:
        bias = scope.cast(args[2], wide)
        if attributes.beta != 1.0:
            bias = scope.emit(scope.op.multiply(bias, _factor(scope, bias, attributes.beta)))
        total = scope.op.add(*scope.aligned([total, bias]))
    return total if wide == own else scope.op.astype(scope.emit(total), own)


def _softmax(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
    """A softmax; one over several axes, which are the last ones, as one over their product."""
    attributes, x, function = node.record(SoftmaxAttrs), args[0], scope.function(node.op.tvm)
    if len(attributes.axes) == 1:
        return function(x, attributes.axes[0])
    shape = scope.extents(x)
    if 0 in [extent for extent in shape if isinstance(extent, int)]:
        return x  # nothing, of which no extent follows
    flat = scope.emit(scope.op.reshape(x, (*shape[: attributes.axes[0]], -1)))
    return scope.op.reshape(scope.emit(function(flat, -1)), shape)


def _clip(scope: EmissionScope, node: Node, attributes: ClipAttrs, args: list[Expr]) -> Expr:
    del node
    x = args[0]
    if attributes.low is not None:
        x = scope.emit(scope.op.maximum(x, _like(scope, x, attributes.low)))
    return x if attributes.high is None else scope.op.minimum(x, _like(scope, x, attributes.high))


def _gelu(scope: EmissionScope, node: Node, attributes: GeluAttrs, args: list[Expr]) -> Expr:
    del node
    tanh = attributes.approximate == "tanh"
    return scope.op.nn.gelu_tanh(args[0]) if tanh else scope.op.nn.gelu(args[0])


def _thresholded(
    scope: EmissionScope, node: Node, attributes: AlphaAttrs, args: list[Expr]
) -> Expr:
    del node
    x = args[0]
    above = scope.emit(scope.op.greater(x, _like(scope, x, attributes.alpha)))
    return scope.op.where(above, x, scope.emit(scope.op.zeros_like(x)))


def _concat(scope: EmissionScope, node: Node, attributes: AxisAttrs, args: list[Expr]) -> Expr:
    del node
    return scope.op.concat(scope.joinable(args, attributes.axis), axis=attributes.axis)


def _cast(scope: EmissionScope, node: Node, attributes: CastAttrs, args: list[Expr]) -> Expr:
    (x,), source = args, node.operand(0).type.dtype
    if node.operand(0).quant is None and source.is_small_float:
        x = scope.dequantize(x, unit_params(source))
    return scope.op.astype(x, tvm_dtype(attributes.to))


def _divide(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
    """The quotient of integers is cut towards zero in ONNX and floored in TVM."""
    dtype, (a, b) = node.output.type.dtype, args
    if dtype.is_float or scope.dtype(a).startswith("uint"):
        return scope.op.divide(a, b) if dtype.is_float else scope.op.floor_divide(a, b)
    whole = scope.emit(
        scope.op.floor_divide(scope.emit(scope.op.abs(a)), scope.emit(scope.op.abs(b)))
    )
    signs = [scope.emit(scope.op.less(arg, _like(scope, arg, 0))) for arg in args]
    differ = scope.emit(scope.op.logical_xor(*signs))
    return scope.op.where(differ, scope.emit(scope.op.negative(whole)), whole)


def _power(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
    """The result has the base's type, whatever the exponent's.

    Raises:
        UnsupportedTargetError: The exponents are uint64, which no type of both operands holds.
    """
    base, exponent = args
    own, other = scope.dtype(base), scope.dtype(exponent)
    wide = own if "float" in own else "float64"
    if "int" in own and "int" in other and scope.raises_integers:
        if other == "uint64":
            raise unsupported(node, "powers of integers take exponents up to 2^63 - 1")
        wide = own if np.can_cast(other, own) else "int64"
    raised = scope.op.power(scope.cast(base, wide), scope.cast(exponent, wide))
    return raised if wide == own else scope.op.astype(scope.emit(raised), own)


def _shape(scope: EmissionScope, node: Node, attributes: ShapeAttrs, args: list[Expr]) -> Expr:
    del node
    whole = scope.shape_vector(args[0])
    if attributes == ShapeAttrs():
        return whole
    begin, end, _ = slice(attributes.start, attributes.end).indices(scope.rank(args[0]))
    return scope.op.strided_slice(whole, axes=[0], begin=[begin], end=[max(begin, end)])


_STEPS: dict[str, str] = {
    **{row.name: row.tvm for row in OPERATORS if row.tvm and row.arity},
    "Div": "divide", "Less": "less", "Greater": "greater", "Where": "where",
}  # fmt: skip
"""TVM's operators that the forms of others are written with."""


def _called(row: Operator) -> Emit:
    """TVM's own operator, which takes the operands and then the attributes."""

    def emit(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
        return scope.function(row.tvm)(*args, *call_attributes(node.attributes).values())

    return emit


def _written(row: Operator) -> Emit:
    """An operator that TVM has not, by the first of its forms."""

    def emit(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
        form = form_for(row, node.attributes)
        assert form is not None, f"{row.name} has no form for {node.attributes}"
        known = {f"#{name}": value for name, value in row.values(node.attributes).items()}
        known |= dict(zip(OPERANDS[row.arity], args, strict=True))
        return _chain(scope, form.pattern, known, args[0])

    return emit


def _chain(scope: EmissionScope, pattern: Pattern, known: Mapping[str, Any], like: Expr) -> Expr:
    """Emits the steps of a pattern; the last one is left to the caller."""
    if not isinstance(pattern, tuple):
        value = known[pattern] if isinstance(pattern, str) else pattern
        return _factor(scope, like, value) if isinstance(value, float) else value
    parts = [_chain(scope, part, known, like) for part in pattern[1:]]
    parts = [
        scope.emit(part) if isinstance(inner, tuple) else part
        for part, inner in zip(parts, pattern[1:], strict=True)
    ]
    return scope.function(_STEPS[pattern[0]])(*parts)


def _body(row: Operator) -> Emit:
    """An operator that TVM has not, by the operators that it stands for."""

    def emit(scope: EmissionScope, node: Node, args: list[Expr]) -> Expr:
        assert row.body is not None

        def step(op: Operator, attributes: Attributes, values: list[Expr]) -> Expr:
            return scope.emit(_step(scope, op, attributes, values))

        def number(value: float) -> Expr:
            return _like(scope, args[0], value)

        body = row.body(node.attributes)
        assert isinstance(body, tuple)
        op, inner, attributes = parts(body)
        return _step(scope, op, attributes, [folded(part, args, step, number) for part in inner])

    return emit


def _step(scope: EmissionScope, op: Operator, attributes: Attributes, values: list[Expr]) -> Expr:
    """Emits one operator of a body on floats."""
    inputs = [Value(TensorType(DType.of(np.dtype(scope.dtype(v))), None)) for v in values]
    scope.exprs.update(zip(inputs, values, strict=True))
    node = Node(op, attributes, inputs, [Value(inputs[0].type)])
    if op in DATA_MOVEMENT:
        return DATA_MOVEMENT[op](scope, node, values[0])
    return FLOATING[op](scope, node, values)


def _elementwise(row: Operator) -> Emit:
    if row.tvm and row.arity == 1:
        return _called(row)
    emit = _folded(row.tvm) if row.tvm else _written(row)
    return emit if row.arity == 1 else _broadcast(emit)


def _of_row(row: Operator) -> Emit:
    """What follows from a row: by the record of its attributes, or from its one or two operands."""
    if row.body is not None and not row.tvm:
        return _body(row)
    record = ReduceAttrs if reduces(row) else row.attributes
    return _elementwise(row) if row.arity else _FAMILIES.get(record) or _called(row)


_FAMILIES: dict[type[Attributes], Emit] = {**FLOATING_WINDOWS, SoftmaxAttrs: _softmax}
FLOATING: Mapping[Operator, Emit] = {
    **{
        row: _of_row(row)
        for row in OPERATORS
        if (row.tvm or row.forms or row.body) and row.flow is not Flow.MOVE
    },
    DENSE: _dense,
    MATMUL: _broadcast(_plain("matmul"), 2),
    DIV: _broadcast(_divide),
    POW: _broadcast(_power),
    WHERE: _broadcast(_plain("where")),
    **FLOATING_NORMS,
    **FLOATING_SIMULATED,
    **dict(
        (
            at(DYNAMIC_DENSE, _dynamic_dense),
            at(DYNAMIC_CONV, _dynamic_conv),
            at(DYNAMIC_BLOCK_DENSE, _dynamic_block_dense),
            at(GEMM, _gemm),
            at(CLIP, _clip),
            at(GELU, _gelu),
            at(THRESHOLDED_RELU, _thresholded),
            at(CONCAT, _concat),
            at(CAST, _cast),
            at(SHAPE, _shape),
        )
    ),
}
