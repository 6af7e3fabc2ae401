"""Operators on float values: the plain Relax operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.graph.graph import Node
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    AxisAttrs,
    CastAttrs,
    ClipAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    GeluAttrs,
    GemmAttrs,
    HardSigmoidAttrs,
    PoolAttrs,
    ReduceAttrs,
    SeluAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.relax.emit.movers import window_pads
from qdqbridge.relax.emit.norms import FLOATING_NORMS
from qdqbridge.relax.emit.scope import Expr, Scope, number, op, tvm_dtype

Emit = Callable[[Scope, Node, list[Expr]], Expr]


def _like(x: Expr, value: float) -> Expr:
    return number(np.asarray(value, str(x.ty.dtype)))


def _rank(x: Expr) -> int:
    return len(x.ty.shape.values)


def _plain(function: Callable[..., Expr]) -> Emit:
    return lambda scope, node, args: function(*args)


def _folded(function: Callable[..., Expr]) -> Emit:
    def emit(scope: Scope, node: Node, args: list[Expr]) -> Expr:
        del node
        total = args[0]
        for other in args[1:]:
            total = function(scope.emit(total) if total is not args[0] else total, other)
        return total

    return emit


def _conv(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, ConvAttrs | ConvTransposeAttrs)
    rank = _rank(args[0]) - 2
    attrs: dict[str, Any] = {
        "strides": attributes.strides,
        "padding": attributes.pads,
        "dilation": attributes.dilations,
        "groups": attributes.group,
    }
    name = f"conv{rank}d"
    if isinstance(attributes, ConvTransposeAttrs):
        attrs["output_padding"] = attributes.output_padding
        name += "_transpose"
    result = getattr(op.nn, name)(args[0], args[1], **attrs)
    if len(args) < 3:
        return result
    column = scope.emit(op.reshape(args[2], (-1, *([1] * rank))))
    return op.add(scope.emit(result), column)


def _dense(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    product = op.matmul(args[0], scope.emit(op.permute_dims(args[1])))
    return product if len(args) < 3 else op.add(scope.emit(product), args[2])


def _gemm(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, GemmAttrs)
    a = scope.emit(op.permute_dims(args[0])) if attributes.trans_a else args[0]
    b = scope.emit(op.permute_dims(args[1])) if attributes.trans_b else args[1]
    total = scope.emit(op.matmul(a, b))
    if attributes.alpha != 1.0:
        total = scope.emit(op.multiply(total, _like(total, attributes.alpha)))
    if len(args) < 3:
        return total
    bias = args[2]
    if attributes.beta != 1.0:
        bias = scope.emit(op.multiply(bias, _like(bias, attributes.beta)))
    return op.add(total, bias)


def _average_pool(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.attributes, args[0]
    assert isinstance(attributes, PoolAttrs)
    rank = len(attributes.kernel_shape)
    have = [int(e) if not hasattr(e, "name") else e for e in x.ty.shape.values]
    pads = window_pads(node, attributes, have)
    beyond = any(p > q for p, q in zip(pads, attributes.pads, strict=True))
    if attributes.count_include_pad and beyond:
        # The windows of ceil_mode may reach beyond the padding, which does not count.
        ones = scope.emit(op.ones_like(x))
        return _counted_pool(scope, attributes, x, ones, pads)
    pool = (op.nn.avg_pool1d, op.nn.avg_pool2d, op.nn.avg_pool3d)[rank - 1]
    return pool(
        x,
        pool_size=attributes.kernel_shape,
        strides=attributes.strides,
        padding=pads,
        dilation=attributes.dilations,
        count_include_pad=attributes.count_include_pad,
    )


def _counted_pool(
    scope: Scope, attributes: PoolAttrs, x: Expr, ones: Expr, pads: tuple[int, ...]
) -> Expr:
    rank = len(attributes.kernel_shape)
    pool = (op.nn.avg_pool1d, op.nn.avg_pool2d, op.nn.avg_pool3d)[rank - 1]
    counted = [min(p, q) for p, q in zip(pads, attributes.pads, strict=True)]
    widths = [0, 0, 0, 0]
    for i in range(rank):
        widths += [counted[i], counted[rank + i]]
    extra = tuple(p - q for p, q in zip(pads, counted, strict=True))
    window = {
        "pool_size": attributes.kernel_shape,
        "strides": attributes.strides,
        "padding": extra,
        "dilation": attributes.dilations,
        "count_include_pad": True,
    }
    total = scope.emit(pool(scope.emit(op.nn.pad(x, widths)), **window))
    share = scope.emit(pool(scope.emit(op.nn.pad(ones, widths, "constant", 1.0)), **window))
    return op.divide(total, share)


def _reduce(name: str) -> Emit:
    def emit(scope: Scope, node: Node, args: list[Expr]) -> Expr:
        del scope
        axes, keepdims = list(range(2, _rank(args[0]))), True
        if isinstance(node.attributes, ReduceAttrs):
            axes, keepdims = list(node.attributes.axes), node.attributes.keepdims
        return getattr(op, name)(args[0], axes, keepdims)

    return emit


def _softmax(name: str) -> Emit:
    def emit(scope: Scope, node: Node, args: list[Expr]) -> Expr:
        attributes, x = node.attributes, args[0]
        assert isinstance(attributes, SoftmaxAttrs)
        function = getattr(op.nn, name)
        if len(attributes.axes) == 1:
            return function(x, attributes.axes[0])
        shape = list(x.ty.shape.values)
        flat = scope.emit(op.reshape(x, (*shape[: attributes.axes[0]], -1)))
        return op.reshape(scope.emit(function(flat, -1)), shape)

    return emit


def _clip(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.attributes, args[0]
    assert isinstance(attributes, ClipAttrs)
    if attributes.low is not None:
        x = scope.emit(op.maximum(x, _like(x, attributes.low)))
    return x if attributes.high is None else op.minimum(x, _like(x, attributes.high))


def _leaky_relu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del scope
    assert isinstance(node.attributes, AlphaAttrs)
    return op.nn.leakyrelu(args[0], node.attributes.alpha)


def _prelu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    x, slope = args
    negative = scope.emit(op.less(x, _like(x, 0)))
    return op.where(negative, scope.emit(op.multiply(x, slope)), x)


def _hard_sigmoid(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes, x = node.attributes, args[0]
    assert isinstance(attributes, HardSigmoidAttrs)
    return _hard(scope, x, attributes.alpha, attributes.beta)


def _hard(scope: Scope, x: Expr, alpha: float, beta: float) -> Expr:
    scaled = scope.emit(op.multiply(x, _like(x, alpha)))
    shifted = scope.emit(op.add(scaled, _like(x, beta)))
    floored = scope.emit(op.maximum(shifted, _like(x, 0)))
    return op.minimum(floored, _like(x, 1))


def _hard_swish(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    gate = scope.emit(_hard(scope, args[0], 1 / 6, 0.5))
    return op.multiply(args[0], gate)


def _swish(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, AlphaAttrs)
    gated = x if attributes.alpha == 1.0 else scope.emit(op.multiply(x, _like(x, attributes.alpha)))
    return op.multiply(x, scope.emit(op.sigmoid(gated)))


def _gelu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del scope
    assert isinstance(node.attributes, GeluAttrs)
    tanh = node.attributes.approximate == "tanh"
    return op.nn.gelu_tanh(args[0]) if tanh else op.nn.gelu(args[0])


def _negative_part(scope: Scope, x: Expr, alpha: float, inner: float) -> Expr:
    """Returns ``alpha * (exp(min(x, 0) / inner) - 1)``."""
    low = scope.emit(op.minimum(x, _like(x, 0)))
    if inner != 1.0:
        low = scope.emit(op.divide(low, _like(x, inner)))
    grown = scope.emit(op.exp(low))
    return scope.emit(op.multiply(scope.emit(op.subtract(grown, _like(x, 1))), _like(x, alpha)))


def _elu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, AlphaAttrs)
    inner = attributes.alpha if node.op.name == "Celu" else 1.0
    low = _negative_part(scope, x, attributes.alpha, inner)
    return op.add(scope.emit(op.maximum(x, _like(x, 0))), low)


def _selu(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, SeluAttrs)
    low = _negative_part(scope, x, attributes.alpha, 1.0)
    total = scope.emit(op.add(scope.emit(op.maximum(x, _like(x, 0))), low))
    return op.multiply(total, _like(x, attributes.gamma))


def _softsign(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del node
    x = args[0]
    size = scope.emit(op.add(scope.emit(op.abs(x)), _like(x, 1)))
    return op.divide(x, size)


def _softplus(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + exp(-abs(x)))``."""
    del node
    x = args[0]
    size = scope.emit(op.negative(scope.emit(op.abs(x))))
    grown = scope.emit(op.add(scope.emit(op.exp(size)), _like(x, 1)))
    return op.add(scope.emit(op.maximum(x, _like(x, 0))), scope.emit(op.log(grown)))


def _mish(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    inner = scope.emit(_softplus(scope, node, args))
    return op.multiply(args[0], scope.emit(op.tanh(inner)))


def _thresholded(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    x, attributes = args[0], node.attributes
    assert isinstance(attributes, AlphaAttrs)
    above = scope.emit(op.greater(x, _like(x, attributes.alpha)))
    return op.where(above, x, scope.emit(op.zeros_like(x)))


def _concat(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del scope
    assert isinstance(node.attributes, AxisAttrs)
    return op.concat(args, axis=node.attributes.axis)


def _cast(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del scope
    assert isinstance(node.attributes, CastAttrs)
    return op.astype(args[0], tvm_dtype(node.attributes.to))


def _divide(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    """The quotient of integers is cut towards zero in ONNX and floored in TVM."""
    dtype, (a, b) = node.output.type.dtype, args
    if dtype.is_float or str(a.ty.dtype).startswith("uint"):
        return op.divide(a, b) if dtype.is_float else op.floor_divide(a, b)
    whole = scope.emit(op.floor_divide(scope.emit(op.abs(a)), scope.emit(op.abs(b))))
    signs = [scope.emit(op.less(arg, _like(arg, 0))) for arg in args]
    differ = scope.emit(op.logical_xor(*signs))
    return op.where(differ, scope.emit(op.negative(whole)), whole)


def _power(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    """The result has the base's type, whatever the exponent's."""
    del node
    base, exponent = args
    own, other = str(base.ty.dtype), str(exponent.ty.dtype)
    wide = own if "float" in own or own == other else "float64"
    raised = op.power(scope.cast(base, wide), scope.cast(exponent, wide))
    return raised if wide == own else op.astype(scope.emit(raised), own)


def _reciprocal(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    del scope, node
    return op.divide(_like(args[0], 1), args[0])


def _shape(scope: Scope, node: Node, args: list[Expr]) -> Expr:
    attributes = node.attributes
    assert isinstance(attributes, ShapeAttrs)
    whole = scope.emit(op.shape_to_tensor(scope.emit(op.shape_of(args[0]))))
    if attributes == ShapeAttrs():
        return whole
    begin, end, _ = slice(attributes.start, attributes.end).indices(_rank(args[0]))
    return op.strided_slice(whole, axes=[0], begin=[begin], end=[max(begin, end)])


FLOATING: dict[str, Emit] = {
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Dense": _dense,
    "Gemm": _gemm,
    "MatMul": _plain(op.matmul),
    "AveragePool": _average_pool,
    "GlobalAveragePool": _reduce("mean"),
    "ReduceMean": _reduce("mean"),
    "ReduceSum": _reduce("sum"),
    "Add": _plain(op.add),
    "Sub": _plain(op.subtract),
    "Mul": _plain(op.multiply),
    "Div": _divide,
    "Min": _folded(op.minimum),
    "Max": _folded(op.maximum),
    "Pow": _power,
    "Where": _plain(op.where),
    "PRelu": _prelu,
    "Concat": _concat,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    **FLOATING_NORMS,
    "Clip": _clip,
    "Relu": _plain(op.nn.relu),
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
    "Sigmoid": _plain(op.sigmoid),
    "Tanh": _plain(op.tanh),
    "Exp": _plain(op.exp),
    "Log": _plain(op.log),
    "Sqrt": _plain(op.sqrt),
    "Reciprocal": _reciprocal,
    "Erf": _plain(op.erf),
    "Abs": _plain(op.abs),
    "Neg": _plain(op.negative),
    "Floor": _plain(op.floor),
    "Ceil": _plain(op.ceil),
    "Round": _plain(op.round),
    "Sin": _plain(op.sin),
    "Cos": _plain(op.cos),
    "Sign": _plain(op.sign),
    "Cast": _cast,
    "Shape": _shape,
}
