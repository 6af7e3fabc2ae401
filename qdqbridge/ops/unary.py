"""Operators of one operand, element by element; a table over the codes where quantized.

Transcendental functions are computed in float64 and rounded once to the operand's dtype;
rational ones are written in the operand's dtype, in the order that ONNX and onnxruntime use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.graph.operator import (
    Array,
    Attributes,
    Compute,
    Flow,
    NoAttributes,
    Operands,
    Operator,
)
from qdqbridge.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
)
from qdqbridge.ops.stored import present, tabulated

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Returns the error function in float64."""
    return np.asarray(_erf(x.astype(np.float64)), np.float64)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _by(function: Callable[[Array], Array], x: Array) -> Array:
    """Returns a transcendental function of ``x``: float64 inside, rounded once to x's dtype."""
    return function(x.astype(np.float64)).astype(x.dtype)


def _elu(x: Array, alpha: float) -> Array:
    """Returns ``alpha * (exp(x) - 1)`` below 0, as onnxruntime does not with expm1."""
    one = x.dtype.type(1)
    below = x.dtype.type(alpha) * (_by(np.exp, np.minimum(x, x.dtype.type(0))) - one)
    return np.where(x >= 0, x, below)


def _celu(x: Array, alpha: float) -> Array:
    zero = x.dtype.type(0)
    below = x.dtype.type(alpha) * _elu(x / x.dtype.type(alpha), 1.0)
    return np.maximum(x, zero) + np.minimum(below, zero)


def _selu(x: Array, attributes: SeluAttrs) -> Array:
    return x.dtype.type(attributes.gamma) * _elu(x, attributes.alpha)


def _gelu(x: Array, attributes: GeluAttrs) -> Array:
    if attributes.approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    scaled = x * x.dtype.type(alpha) + x.dtype.type(beta)
    return np.maximum(np.minimum(scaled, x.dtype.type(1)), x.dtype.type(0))


def _hard_swish(x: Array) -> Array:
    return x * _hard_sigmoid(x, 1 / 6, 0.5)


def _leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, x * x.dtype.type(alpha))


def _clip(x: Array, attributes: ClipAttrs) -> Array:
    if attributes.low is not None:
        x = np.maximum(x, x.dtype.type(attributes.low))
    if attributes.high is not None:
        x = np.minimum(x, x.dtype.type(attributes.high))
    return x


def _relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


def _reciprocal(x: Array) -> Array:
    return x.dtype.type(1) / x


def _softsign(x: Array) -> Array:
    one = x.dtype.type(1)
    return x * (one / (one + np.abs(x)))


def _plain(function: Callable[[Array], Array]) -> Compute:
    """Returns a ``compute`` in the operand's own dtype, without attributes."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        del attributes
        (x,) = present(operands, 1)
        with np.errstate(all="ignore"):
            return (np.asarray(function(x), x.dtype),)

    return compute


def _with(function: Callable[[Array, Any], Array], *, rounded: bool) -> Compute:
    """Returns a ``compute`` with attributes; ``rounded`` computes in float64, rounding once."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        (x,) = present(operands, 1)
        with np.errstate(all="ignore"):
            value = function(x.astype(np.float64) if rounded else x, attributes)
            return (np.asarray(value).astype(x.dtype),)

    return compute


def _rounded(function: Callable[[Array], Array]) -> Compute:
    """Returns a ``compute`` in float64 inside, rounded once, without attributes."""
    return _with(lambda x, _: function(x), rounded=True)


def _row(
    name: str, compute: Compute, formula: str, attributes: type[Attributes] = NoAttributes
) -> Operator:
    return Operator(
        name=name, flow=Flow.ELEMENTWISE, attributes=attributes, compute=compute,
        contract=tabulated(compute),
        numerics=formula if formula.endswith(".") else formula + _EQUAL,
    )


_ROUNDED = "quantize of the correctly rounded float32 of {}. "
_EQUAL = "Against onnxruntime 1.31: no code differs."
_MLAS = (
    "onnxruntime 1.31 approximates it in float32: 1 LSB different where the real result lies "
    "within that error of a midpoint ({} results, with scales chosen to make midpoints)."
)
_EXACT = "quantize of {}, one float32 operation after the other. "

OPERATORS = (
    _row("Sigmoid", _rounded(_sigmoid), _ROUNDED.format("1 / (1 + exp(-x))")),
    _row("Tanh", _rounded(np.tanh), _ROUNDED.format("tanh(x)") + _MLAS.format("1 in 100,000")),
    _row("Exp", _rounded(np.exp), _ROUNDED.format("exp(x)")),
    _row("Log", _rounded(np.log), _ROUNDED.format("log(x)")),
    _row("Sin", _rounded(np.sin), _ROUNDED.format("sin(x)")),
    _row("Cos", _rounded(np.cos), _ROUNDED.format("cos(x)")),
    _row("Erf", _rounded(erf), _ROUNDED.format("erf(x)")),
    _row("Softplus", _rounded(_softplus), _ROUNDED.format("log(1 + exp(x))")),
    _row("Gelu", _with(_gelu, rounded=True), _ROUNDED.format(
        "x / 2 * (1 + erf(x / sqrt 2)), or its tanh approximation")
         + _MLAS.format("tanh form: 1 in 40,000"), GeluAttrs),
    _row("Mish", _rounded(lambda x: x * np.tanh(_softplus(x))),
         _ROUNDED.format("x * tanh(log(1 + exp(x)))") + _MLAS.format("1 in 8,000")),
    _row("Swish", _with(lambda x, a: x * _sigmoid(a.alpha * x), rounded=True),
         _ROUNDED.format("x / (1 + exp(-alpha * x))") + _MLAS.format("1 in 20,000"),
         AlphaAttrs),
    _row("Sqrt", _plain(np.sqrt), _EXACT.format("sqrt(x)")),
    _row("Reciprocal", _plain(_reciprocal), _EXACT.format("1 / x")),
    _row("Abs", _plain(np.abs), _EXACT.format("|x|")),
    _row("Neg", _plain(np.negative), _EXACT.format("-x")),
    _row("Floor", _plain(np.floor), _EXACT.format("floor(x)")),
    _row("Ceil", _plain(np.ceil), _EXACT.format("ceil(x)")),
    _row("Round", _plain(np.rint), _EXACT.format("rint(x), half to even")),
    _row("Sign", _plain(np.sign), _EXACT.format("sign(x)")),
    _row("Relu", _plain(_relu), _EXACT.format("max(x, 0), NaN of NaN")),
    _row("Softsign", _plain(_softsign), _EXACT.format("x * (1 / (1 + |x|))")),
    _row("Elu", _with(lambda x, a: _elu(x, a.alpha), rounded=False),
         _EXACT.format("x, or alpha * (exp(x) - 1) below 0"), AlphaAttrs),
    _row("Selu", _with(_selu, rounded=False),
         _EXACT.format("gamma * (x, or alpha * (exp(x) - 1) below 0)"), SeluAttrs),
    _row("Celu", _with(lambda x, a: _celu(x, a.alpha), rounded=False),
         _EXACT.format("max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)"), AlphaAttrs),
    _row("HardSwish", _plain(_hard_swish),
         _EXACT.format("x * max(0, min(1, x * f32(1/6) + 0.5))")),
    _row("HardSigmoid", _with(lambda x, a: _hard_sigmoid(x, a.alpha, a.beta), rounded=False),
         _EXACT.format("max(0, min(1, x * alpha + beta))"), HardSigmoidAttrs),
    _row("LeakyRelu", _with(lambda x, a: _leaky_relu(x, a.alpha), rounded=False),
         _EXACT.format("x, or x * alpha below 0"), AlphaAttrs),
    _row("ThresholdedRelu",
         _with(lambda x, a: np.where(x > x.dtype.type(a.alpha), x, x.dtype.type(0)),
               rounded=False),
         _EXACT.format("x where x > alpha, else 0"), AlphaAttrs),
    _row("Clip", _with(_clip, rounded=False),
         _EXACT.format("min(max(x, low), high), NaN of NaN")
         + "A bound that is left out is none, as in ONNX's own expansion of Clip; for onnxruntime "
         "it is the largest finite number, which infinity becomes. " + _EQUAL,
         ClipAttrs),
)
