"""Operators on float values: the plain Relax operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qdqbridge.graph.dtypes import DType
from qdqbridge.graph.graph import Node
from qdqbridge.graph.quantization import QuantParams, per_tensor
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    AxisAttrs,
    CastAttrs,
    ClipAttrs,
    GeluAttrs,
    GemmAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.qnn.emit.dtypes import tvm_dtype
from qdqbridge.qnn.emit.norms import FLOATING_NORMS
from qdqbridge.qnn.emit.scope import Expr, Scope
from qdqbridge.qnn.emit.simulated import FLOATING_SIMULATED
from qdqbridge.qnn.emit.windows import FLOATING_WINDOWS

Emit = Callable[[Scope, Node, list[Expr]], Expr]


def unit_params(dtype: DType, *, saturate: bool = True) -> QuantParams:
    """Returns the parameters under which stored numbers are the numbers themselves."""
    return replace(per_tensor(dtype, 1.0), saturate=saturate)


def _like(scope: Scope, x: Expr, value: float) -> Expr:
    return scope.number(np.asarray(value, scope.dtype(x)))


def _plain(name: str) -> Emit:
    return lambda scope, node, args: scope.function(name)(*args)


def _broadcast(emit: Emit, trailing: int = 0) -> Emit:
    """Returns ``emit`` for operands that broadcast on all but some last axes."""
    return lambda scope, node, args: emit(scope, node, scope.aligned(args, trailing))


def _folded(name: str) -> Emit:
    def emit(scope: Scope, node: Node, args: list[Expr]) -> Expr:
        del node
        total = args[0]
        for other in args[1:]:
            total = scope.function(name)(
                scope.emit(total) if total is not args[0] else total, other
            )
        return total

    return emit


def _dense(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    product = scope.op.matmul(args[0], scope.emit(scope.op.permute_dims(args[1])))
    return product if len(args) < 3 else scope.op.add(scope.emit(product), args[2])


def _gemm(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, GemmAttrs)
    a = scope.emit(scope.op.permute_dims(args[0])) if attributes.trans_a else args[0]
    b = scope.emit(scope.op.permute_dims(args[1])) if attributes.trans_b else args[1]
    total = scope.emit(scope.op.matmul(a, b))
    if attributes.alpha != 1.0:
        total = scope.emit(scope.op.multiply(total, _like(scope, total, attributes.alpha)))
    if len(args) < 3:
        return total
    bias = args[2]
    if attributes.beta != 1.0:
        bias = scope.emit(scope.op.multiply(bias, _like(scope, bias, attributes.beta)))
    return scope.op.add(total, bias)


def _softmax(name: str) -> Emit:
    def emit(scope: Scope, node: Node, args: list[Expr]) -> Expr:
        attributes, x = node.attributes, args[0]
        assert isinstance(attributes, SoftmaxAttrs)
        function = scope.function(f"nn.{name}")
        if len(attributes.axes) == 1:
            return function(x, attributes.axes[0])
        shape = scope.extents(x)
        flat = scope.emit(scope.op.reshape(x, (*shape[: attributes.axes[0]], -1)))
        return scope.op.reshape(scope.emit(function(flat, -1)), shape)

    return emit


def _clip(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.attributes, args[0]
    assert isinstance(attributes, ClipAttrs)
    if attributes.low is not None:
        x = scope.emit(scope.op.maximum(x, _like(scope, x, attributes.low)))
    return x if attributes.high is None else scope.op.minimum(x, _like(scope, x, attributes.high))


def _leaky_relu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    assert isinstance(node.attributes, AlphaAttrs)
    return scope.op.nn.leakyrelu(args[0], node.attributes.alpha)


def _prelu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    x, slope = args
    negative = scope.emit(scope.op.less(x, _like(scope, x, 0)))
    return scope.op.where(negative, scope.emit(scope.op.multiply(x, slope)), x)


def _hard_sigmoid(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.attributes, args[0]
    assert isinstance(attributes, HardSigmoidAttrs)
    return _hard(scope, x, attributes.alpha, attributes.beta)


def _hard(scope: Scope, x: Expr, alpha: float, beta: float) -> Expr:
    scaled = scope.emit(scope.op.multiply(x, _like(scope, x, alpha)))
    shifted = scope.emit(scope.op.add(scaled, _like(scope, x, beta)))
    floored = scope.emit(scope.op.maximum(shifted, _like(scope, x, 0)))
    return scope.op.minimum(floored, _like(scope, x, 1))


def _hard_swish(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    gate = scope.emit(_hard(scope, args[0], 1 / 6, 0.5))
    return scope.op.multiply(args[0], gate)


def _swish(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, AlphaAttrs)
    gated = (
        x
        if attributes.alpha == 1.0
        else scope.emit(scope.op.multiply(x, _like(scope, x, attributes.alpha)))
    )
    return scope.op.multiply(x, scope.emit(scope.op.sigmoid(gated)))


def _gelu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    assert isinstance(node.attributes, GeluAttrs)
    tanh = node.attributes.approximate == "tanh"
    return scope.op.nn.gelu_tanh(args[0]) if tanh else scope.op.nn.gelu(args[0])


def _negative_part(scope: Scope, x: Expr, alpha: float, inner: float) -> Expr:
    """Returns ``alpha * (exp(min(x, 0) / inner) - 1)``."""
    low = scope.emit(scope.op.minimum(x, _like(scope, x, 0)))
    if inner != 1.0:
        low = scope.emit(scope.op.divide(low, _like(scope, x, inner)))
    grown = scope.emit(scope.op.exp(low))
    return scope.emit(
        scope.op.multiply(
            scope.emit(scope.op.subtract(grown, _like(scope, x, 1))), _like(scope, x, alpha)
        )
    )


def _elu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, AlphaAttrs)
    inner = attributes.alpha if node.op.name == "Celu" else 1.0
    low = _negative_part(scope, x, attributes.alpha, inner)
    return scope.op.add(scope.emit(scope.op.maximum(x, _like(scope, x, 0))), low)


def _selu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, SeluAttrs)
    low = _negative_part(scope, x, attributes.alpha, 1.0)
    total = scope.emit(scope.op.add(scope.emit(scope.op.maximum(x, _like(scope, x, 0))), low))
    return scope.op.multiply(total, _like(scope, x, attributes.gamma))


def _softsign(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    x = args[0]
    size = scope.emit(scope.op.add(scope.emit(scope.op.abs(x)), _like(scope, x, 1)))
    return scope.op.divide(x, size)


def _softplus(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + exp(-abs(x)))``."""
    del node
    x = args[0]
    size = scope.emit(scope.op.negative(scope.emit(scope.op.abs(x))))
    grown = scope.emit(scope.op.add(scope.emit(scope.op.exp(size)), _like(scope, x, 1)))
    return scope.op.add(
        scope.emit(scope.op.maximum(x, _like(scope, x, 0))), scope.emit(scope.op.log(grown))
    )


def _mish(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    inner = scope.emit(_softplus(scope, node, args))
    return scope.op.multiply(args[0], scope.emit(scope.op.tanh(inner)))


def _thresholded(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, AlphaAttrs)
    above = scope.emit(scope.op.greater(x, _like(scope, x, attributes.alpha)))
    return scope.op.where(above, x, scope.emit(scope.op.zeros_like(x)))


def _concat(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    assert isinstance(node.attributes, AxisAttrs)
    return scope.op.concat(args, axis=node.attributes.axis)


def _cast(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    assert isinstance(node.attributes, CastAttrs)
    (x,), source = args, node.operand(0).type.dtype
    if node.operand(0).quant is None and source.is_small_float:
        x = scope.dequantize(x, unit_params(source))
    return scope.op.astype(x, tvm_dtype(node.attributes.to))


def _divide(scope: Scope, node: Node, args: list[Expr]) -> Expr:
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


def _power(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    """The result has the base's type, whatever the exponent's."""
    del node
    base, exponent = args
    own, other = scope.dtype(base), scope.dtype(exponent)
    wide = own if "float" in own or own == other else "float64"
    raised = scope.op.power(scope.cast(base, wide), scope.cast(exponent, wide))
    return raised if wide == own else scope.op.astype(scope.emit(raised), own)


def _reciprocal(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    return scope.op.divide(_like(scope, args[0], 1), args[0])


def _shape(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, ShapeAttrs)
    whole = scope.shape_vector(args[0])
    if attributes == ShapeAttrs():
        return whole
    begin, end, _ = slice(attributes.start, attributes.end).indices(scope.rank(args[0]))
    return scope.op.strided_slice(whole, axes=[0], begin=[begin], end=[max(begin, end)])


FLOATING: dict[str, Emit] = {
    **FLOATING_WINDOWS,
    "Dense": _dense,
    "Gemm": _gemm,
    "MatMul": _broadcast(_plain("matmul"), 2),
    "Add": _broadcast(_plain("add")),
    "Sub": _broadcast(_plain("subtract")),
    "Mul": _broadcast(_plain("multiply")),
    "Div": _broadcast(_divide),
    "Min": _broadcast(_folded("minimum")),
    "Max": _broadcast(_folded("maximum")),
    "Pow": _broadcast(_power),
    "Where": _broadcast(_plain("where")),
    "PRelu": _broadcast(_prelu),
    "Concat": _concat,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    **FLOATING_NORMS,
    **FLOATING_SIMULATED,
    "Clip": _clip,
    "Relu": _plain("nn.relu"),
    "LeakyRelu": _leaky_relu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Swish": _swish,
    "Gelu": _gelu,
    "Elu": _elu,
    "Celu": _elu,
    "Selu": _selu,
    "Softsign": _softsign,
    "Softplus": _softplus,
    "Mish": _mish,
    "ThresholdedRelu": _thresholded,
    "Sigmoid": _plain("sigmoid"),
    "Tanh": _plain("tanh"),
    "Exp": _plain("exp"),
    "Log": _plain("log"),
    "Sqrt": _plain("sqrt"),
    "Reciprocal": _reciprocal,
    "Erf": _plain("erf"),
    "Abs": _plain("abs"),
    "Neg": _plain("negative"),
    "Floor": _plain("floor"),
    "Ceil": _plain("ceil"),
    "Round": _plain("round"),
    "Sin": _plain("sin"),
    "Cos": _plain("cos"),
    "Sign": _plain("sign"),
    "Cast": _cast,
    "Shape": _shape,
}
