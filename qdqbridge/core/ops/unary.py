"""Operators of one operand, element by element; a table over the codes where quantized.

Transcendental functions are computed in float64 and rounded once to the operand's dtype;
rational ones are written in the operand's dtype, in the order that ONNX and onnxruntime use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from qdqbridge.core.graph.operator import (
    AnyAttributes,
    Array,
    Compute,
    Flow,
    Form,
    Magnitude,
    NoAttributes,
    OnnxOp,
    Operands,
    Pattern,
    Row,
)
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
)
from qdqbridge.core.ops.stored import present, tabulated

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Returns the error function in float64."""
    return np.asarray(_erf(x.astype(np.float64)), np.float64)


def _sigmoid(x: Array) -> Array:
    # exp of a negative number alone: it never overflows, and of both signs no digits are lost.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _softplus(x: Array) -> Array:
    # log(1 + exp(x)) without its overflow, and without 1 + what is too small to be added to it.
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
    """Returns ``max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)``; above 0 the second is 0."""
    zero, factor = x.dtype.type(0), x.dtype.type(alpha)
    # exp of what is above 0 is not wanted, and might be infinite.
    grown = _by(np.exp, np.minimum(x, zero) / factor) - x.dtype.type(1)
    return np.maximum(x, zero) + np.minimum(factor * grown, zero)


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


def _compute_clip(x: Array, attributes: ClipAttrs) -> Array:
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
    # A product with the reciprocal, not a quotient: that rounds twice, as onnxruntime does.
    return x * (one / (one + np.abs(x)))


def _compute_in_dtype(function: Callable[[Array], Array]) -> Compute:
    """Returns a ``compute`` in the operand's own dtype, without attributes."""

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        del attributes
        (x,) = present(operands, 1)
        with np.errstate(all="ignore"):
            return (np.asarray(function(x), x.dtype),)

    return compute


def _with(function: Callable[[Array, Any], Array], *, rounded: bool) -> Compute:
    """Returns a ``compute`` with attributes; ``rounded`` computes in float64, rounding once.

    Of integers (Erf takes them) the result is that of float32 without its fraction, as in ONNX's
    reference implementation, the only one: -1 for erf(-5), which is -0.9999999999985.
    """

    def compute(attributes: Any, operands: Operands) -> tuple[Array, ...]:
        (x,) = present(operands, 1)
        with np.errstate(all="ignore"):
            value = np.asarray(function(x.astype(np.float64) if rounded else x, attributes))
            if rounded and x.dtype.kind in "iu":
                value = value.astype(np.float32)
            return (value.astype(x.dtype),)

    return compute


def _compute_in_float64(function: Callable[[Array], Array]) -> Compute:
    """Returns a ``compute`` in float64 inside, rounded once, without attributes."""
    return _with(lambda x, _: function(x), rounded=True)


@overload
def unary(
    name: str, compute: Compute, numerics: str, *,
    defaults: Mapping[str, float | str] = ..., since: int = ...,
    onnx: tuple[OnnxOp, ...] | None = ..., qnn: str | None = ..., tvm: str = ...,
    forms: tuple[Form, ...] = ..., magnitude: Magnitude = ...,
    interval: tuple[float, float] | None = ...,
) -> Row[NoAttributes]: ...  # fmt: skip
@overload
def unary(
    name: str, compute: Compute, numerics: str, *, attributes: type[AnyAttributes],
    defaults: Mapping[str, float | str] = ..., since: int = ...,
    onnx: tuple[OnnxOp, ...] | None = ..., qnn: str | None = ..., tvm: str = ...,
    forms: tuple[Form, ...] = ..., magnitude: Magnitude = ...,
    interval: tuple[float, float] | None = ...,
) -> Row[AnyAttributes]: ...  # fmt: skip
def unary(
    name: str, compute: Compute, numerics: str, *, attributes: type[Any] = NoAttributes,
    defaults: Mapping[str, float | str] = MappingProxyType({}), since: int = 0,
    onnx: tuple[OnnxOp, ...] | None = None, qnn: str | None = None, tvm: str = "",
    forms: tuple[Form, ...] = (), magnitude: Magnitude = Magnitude.RESULT,
    interval: tuple[float, float] | None = None,
) -> Row[Any]:  # fmt: skip
    """Returns the row of an operator of one operand.

    Args:
        name: ONNX's name.
        compute: The real-valued function.
        numerics: The contract in words; without a full stop, it equals onnxruntime's.
        attributes: Its attribute record, whose fields have ONNX's names.
        defaults: ONNX's defaults of these.
        since: The opset that introduced it.
        onnx: ONNX's ways to write it; by default one of these name, defaults and opset.
        qnn: Its name in the QNN dialect; by default the name in lower case. Empty for clamps, which
            are ranges of quantized values.
        tvm: TVM's operator on floats; by default the name in lower case where there is no form.
        forms: Ways to write it out; the first is what a host without the operator gets.
        magnitude: How large its intermediate results get.
        interval: The real interval of its results.
    """
    written = OnnxOp(name=name, since=since, defaults=defaults)
    return Row(
        name=name, flow=Flow.ELEMENTWISE, attributes=attributes, compute=compute,
        contract=tabulated(compute),
        numerics=numerics if numerics.endswith(".") else numerics + _EQUAL,
        arity=1, onnx=(written,) if onnx is None else onnx,
        qnn=name.lower() if qnn is None else qnn,
        tvm=tvm or ("" if forms else name.lower()), forms=forms, magnitude=magnitude,
        interval=interval,
    )  # fmt: skip


_ROUNDED = "quantize of the correctly rounded float32 of {}. "
_EQUAL = "Against onnxruntime 1.31: no code differs."
_MLAS = (
    "onnxruntime 1.31 approximates it in float32: 1 LSB different where the real result lies "
    "within that error of a midpoint ({} results, with scales chosen to make midpoints)."
)
_EXACT = "quantize of {}, one float32 operation after the other. "
_UNIT, _OPERAND = Magnitude.UNIT, Magnitude.OPERAND
_ZERO_TO_ONE = (0.0, 1.0)
_AROUND_ZERO = (-1.0, 1.0)


# ---- ways to write them out --------------------------------------------------------------------


def _grown(inner: Pattern) -> Pattern:
    return ("Mul", ("Sub", ("Exp", inner), 1.0), "#alpha")


def _halves(inner: Pattern, approximate: str) -> tuple[Form, ...]:
    """``x / 2 * (1 + inner)``, in the orders that files have."""
    more: Pattern = ("Add", inner, 1.0)
    patterns: tuple[Pattern, ...] = (
        ("Mul", ("Mul", "x", 0.5), more),
        ("Mul", ("Mul", "x", more), 0.5),
        ("Mul", "x", ("Mul", more, 0.5)),
    )
    return tuple(Form(pattern, {"approximate": approximate}) for pattern in patterns)


_LOW: Pattern = ("Min", "x", 0.0)
_HIGH: Pattern = ("Max", "x", 0.0)
_ELU: Pattern = ("Add", _HIGH, _grown(_LOW))
_SOFTPLUS: Pattern = ("Add", _HIGH, ("Log", ("Add", ("Exp", ("Neg", ("Abs", "x"))), 1.0)))
_REST: Pattern = ("Div", ("Mul", ("Exp", ("Neg", "x")), 2.0), ("Add", ("Exp", "x"), 2.0))
_MISH: Pattern = ("Div", "x", ("Add", _REST, 1.0))
"""``tanh(log(1 + e)) = 1 / (1 + 2 / (e * (e + 2)))``: nothing is added to 1 that would be lost."""


def _hard(alpha: Pattern, beta: Pattern) -> Pattern:
    return ("Min", ("Max", ("Add", ("Mul", "x", alpha), beta), 0.0), 1.0)


_GATE: Pattern = ("Clip", ("Add", "x", 3.0), 0.0, 6.0)
_SIXTH = float(np.float32(1 / 6))
_SIXTHS: Mapping[str, float | str] = {"alpha": _SIXTH, "beta": 0.5}
_ERFS: tuple[Pattern, ...] = (
    ("Erf", ("Mul", "x", math.sqrt(0.5))),
    ("Erf", ("Div", "x", math.sqrt(2))),
)
_CUBES: tuple[Pattern, ...] = (
    ("Mul", ("Mul", "x", "x"), ("Mul", "x", 0.044715)),
    ("Mul", ("Pow", "x", 3.0), 0.044715),
    ("Mul", ("Mul", ("Mul", "x", "x"), "x"), 0.044715),
    ("Mul", ("Mul", ("Mul", "x", 0.044715), "x"), "x"),
)
_TANHS: tuple[Pattern, ...] = (
    *(("Tanh", ("Mul", ("Add", "x", cube), math.sqrt(2 / math.pi))) for cube in _CUBES),
    ("Tanh", ("Mul", ("Mul", "x", math.sqrt(2 / math.pi)),
              ("Add", ("Mul", ("Mul", "x", "x"), 0.044715), 1.0))),
)  # fmt: skip


def _forms(*patterns: Pattern) -> tuple[Form, ...]:
    return tuple(Form(pattern) for pattern in patterns)


def _unmistakable(*patterns: Pattern) -> tuple[Form, ...]:
    return tuple(Form(pattern, unmistakable=True) for pattern in patterns)


RELU = unary(
    "Relu", _compute_in_dtype(_relu), _EXACT.format("max(x, 0), NaN of NaN"), qnn="", tvm="nn.relu"
)
CLIP = unary(
    "Clip",
    _with(_compute_clip, rounded=False),
    _EXACT.format("min(max(x, low), high), NaN of NaN")
    + "A bound that a file leaves out is the lowest or the largest finite number, as ONNX's text "
    "and onnxruntime have it; its own expansion of Clip takes none. " + _EQUAL,
    attributes=ClipAttrs,
    onnx=(),
    qnn="",
)

SIGMOID = unary(
    "Sigmoid",
    _compute_in_float64(_sigmoid),
    _ROUNDED.format("1 / (1 + exp(-x))"),
    magnitude=_UNIT,
    interval=_ZERO_TO_ONE,
)
TANH = unary(
    "Tanh",
    _compute_in_float64(np.tanh),
    _ROUNDED.format("tanh(x)") + _MLAS.format("1 in 100,000"),
    magnitude=_UNIT,
    interval=_AROUND_ZERO,
)
EXP = unary("Exp", _compute_in_float64(np.exp), _ROUNDED.format("exp(x)"))
LOG = unary("Log", _compute_in_float64(np.log), _ROUNDED.format("log(x)"))
SIN = unary("Sin", _compute_in_float64(np.sin), _ROUNDED.format("sin(x)"), magnitude=_UNIT)
COS = unary("Cos", _compute_in_float64(np.cos), _ROUNDED.format("cos(x)"), magnitude=_UNIT)
ERF = unary("Erf", _compute_in_float64(erf), _ROUNDED.format("erf(x)"), magnitude=_UNIT)
SOFTPLUS = unary(
    "Softplus",
    _compute_in_float64(_softplus),
    _ROUNDED.format("log(1 + exp(x))"),
    forms=(
        *_unmistakable(
            _SOFTPLUS, ("Add", _HIGH, ("Log", ("Add", 1.0, ("Exp", ("Neg", ("Abs", "x"))))))
        ),
        *_forms(("Log", ("Add", ("Exp", "x"), 1.0))),
    ),
    magnitude=_OPERAND,
)
GELU = unary(
    "Gelu",
    _with(_gelu, rounded=True),
    _ROUNDED.format("x / 2 * (1 + erf(x / sqrt 2)), or its tanh approximation")
    + _MLAS.format("tanh form: 1 in 40,000"),
    attributes=GeluAttrs,
    onnx=(
        OnnxOp(
            name="Gelu",
            since=20,
            defaults={"approximate": "none"},
            choices={"approximate": ("none", "tanh")},
        ),
        OnnxOp(name="Gelu", domain="com.microsoft", defaults={"approximate": "none"}),
        OnnxOp(name="FastGelu", domain="com.microsoft", defaults={"approximate": "tanh"}),
    ),
    forms=(
        *(form for inner in _ERFS for form in _halves(inner, "none")),
        *(form for inner in _TANHS for form in _halves(inner, "tanh")),
    ),
    magnitude=_OPERAND,
)
MISH = unary(
    "Mish",
    _compute_in_float64(lambda x: x * np.tanh(_softplus(x))),
    _ROUNDED.format("x * tanh(log(1 + exp(x)))") + _MLAS.format("1 in 8,000"),
    since=18,
    forms=(
        *_forms(
            _MISH, ("Mul", "x", ("Tanh", _SOFTPLUS)), ("Mul", "x", ("Tanh", ("Softplus", "x")))
        ),
        *_unmistakable(("Mul", "x", ("Tanh", ("Log", ("Add", 1.0, ("Exp", "x")))))),
    ),
    magnitude=_OPERAND,
)
SWISH = unary(
    "Swish",
    _with(lambda x, a: x * _sigmoid(a.alpha * x), rounded=True),
    _ROUNDED.format("x / (1 + exp(-alpha * x))") + _MLAS.format("1 in 20,000"),
    attributes=AlphaAttrs,
    qnn="silu",
    onnx=(
        OnnxOp(name="Swish", since=24, defaults={"alpha": 1.0}),
        OnnxOp(name="QuickGelu", domain="com.microsoft", defaults={"alpha": 1.702}),
    ),
    forms=(
        Form(("Mul", "x", ("Sigmoid", "x")), {"alpha": 1.0}),
        Form(("Mul", "x", ("Sigmoid", ("Mul", "x", "#alpha")))),
        Form(("Div", "x", ("Add", ("Exp", ("Neg", "x")), 1.0)), {"alpha": 1.0}),
    ),
    magnitude=_OPERAND,
)
SQRT = unary("Sqrt", _compute_in_dtype(np.sqrt), _EXACT.format("sqrt(x)"))
RECIPROCAL = unary(
    "Reciprocal",
    _compute_in_dtype(_reciprocal),
    _EXACT.format("1 / x"),
    forms=_forms(("Div", 1.0, "x")),
)
ABS = unary("Abs", _compute_in_dtype(np.abs), _EXACT.format("|x|"))
NEG = unary(
    "Neg", _compute_in_dtype(np.negative), _EXACT.format("-x"), qnn="negative", tvm="negative"
)
FLOOR = unary("Floor", _compute_in_dtype(np.floor), _EXACT.format("floor(x)"))
CEIL = unary("Ceil", _compute_in_dtype(np.ceil), _EXACT.format("ceil(x)"))
ROUND = unary("Round", _compute_in_dtype(np.rint), _EXACT.format("rint(x), half to even"))
SIGN = unary("Sign", _compute_in_dtype(np.sign), _EXACT.format("sign(x)"))
SOFTSIGN = unary(
    "Softsign",
    _compute_in_dtype(_softsign),
    _EXACT.format("x * (1 / (1 + |x|))"),
    forms=_unmistakable(("Div", "x", ("Add", ("Abs", "x"), 1.0))),
    magnitude=_UNIT,
    interval=_AROUND_ZERO,
)
ELU = unary(
    "Elu",
    _with(lambda x, a: _elu(x, a.alpha), rounded=False),
    _EXACT.format("x, or alpha * (exp(x) - 1) below 0"),
    attributes=AlphaAttrs,
    defaults={"alpha": 1.0},
    forms=_unmistakable(
        _ELU,
        ("Add", ("Mul", "#-alpha", ("Relu", ("Sub", 1.0, ("Exp", "x")))), ("Relu", "x")),
    ),
    magnitude=_OPERAND,
)
SELU = unary(
    "Selu",
    _with(_selu, rounded=False),
    _EXACT.format("gamma * (x, or alpha * (exp(x) - 1) below 0)"),
    attributes=SeluAttrs,
    defaults={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    forms=(
        *_forms(("Mul", _ELU, "#gamma")),
        *_unmistakable(
            ("Mul", ("Elu", "x", "#alpha"), "#gamma"),
            ("Mul", "#gamma", ("Elu", "x", "#alpha")),
        ),
    ),
    magnitude=_OPERAND,
)
CELU = unary(
    "Celu",
    _with(lambda x, a: _celu(x, a.alpha), rounded=False),
    _EXACT.format("max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)"),
    attributes=AlphaAttrs,
    defaults={"alpha": 1.0},
    forms=_forms(("Add", _HIGH, _grown(("Div", _LOW, "#alpha")))),
    magnitude=_OPERAND,
)
HARD_SWISH = unary(
    "HardSwish",
    _compute_in_dtype(_hard_swish),
    _EXACT.format("x * max(0, min(1, x * f32(1/6) + 0.5))"),
    since=14,
    forms=(
        *_forms(
            ("Mul", "x", _hard(_SIXTH, 0.5)),
            ("Div", ("Mul", "x", _GATE), 6.0),
            ("Mul", ("Mul", "x", _GATE), _SIXTH),
            ("Mul", "x", ("Mul", _GATE, _SIXTH)),
        ),
        *_unmistakable(
            ("Mul", "x", ("HardSigmoid", "x", _SIXTH, 0.5)),
            ("Mul", "x", ("Div", _GATE, 6.0)),
        ),
    ),
    magnitude=_OPERAND,
)
HARD_SIGMOID = unary(
    "HardSigmoid",
    _with(lambda x, a: _hard_sigmoid(x, a.alpha, a.beta), rounded=False),
    _EXACT.format("max(0, min(1, x * alpha + beta))"),
    attributes=HardSigmoidAttrs,
    defaults={"alpha": 0.2, "beta": 0.5},
    forms=(
        *_unmistakable(
            _hard("#alpha", "#beta"),
            ("Clip", ("Add", ("Mul", "#alpha", "x"), "#beta"), 0.0, 1.0),
        ),
        Form(("Div", _GATE, 6.0), _SIXTHS),
        Form(("Mul", _GATE, _SIXTH), _SIXTHS),
    ),
    magnitude=_UNIT,
    interval=_ZERO_TO_ONE,
)
LEAKY_RELU = unary(
    "LeakyRelu",
    _with(lambda x, a: _leaky_relu(x, a.alpha), rounded=False),
    _EXACT.format("x, or x * alpha below 0"),
    attributes=AlphaAttrs,
    defaults={"alpha": 0.01},
    qnn="leaky_relu",
    tvm="nn.leakyrelu",
)
THRESHOLDED_RELU = unary(
    "ThresholdedRelu",
    _with(lambda x, a: np.where(x > x.dtype.type(a.alpha), x, x.dtype.type(0)), rounded=False),
    _EXACT.format("x where x > alpha, else 0"),
    attributes=AlphaAttrs,
    defaults={"alpha": 1.0},
    qnn="thresholded_relu",
    forms=(
        *_forms(("Where", ("Greater", "x", "#alpha"), "x", 0.0)),
        *_unmistakable(("Mul", ("Cast", ("Greater", "x", "#alpha")), "x")),
    ),
)

OPERATORS = (
    SIGMOID,
    TANH,
    EXP,
    LOG,
    SIN,
    COS,
    ERF,
    SOFTPLUS,
    GELU,
    MISH,
    SWISH,
    SQRT,
    RECIPROCAL,
    ABS,
    NEG,
    FLOOR,
    CEIL,
    ROUND,
    SIGN,
    RELU,
    SOFTSIGN,
    ELU,
    SELU,
    CELU,
    HARD_SWISH,
    HARD_SIGMOID,
    LEAKY_RELU,
    THRESHOLDED_RELU,
    CLIP,
)
