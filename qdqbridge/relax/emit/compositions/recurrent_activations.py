"""The functions that LSTM, GRU and RNN may be given, as loops compute them.

Source: ONNX LSTM-22: ``activations``, ``activation_alpha``, ``activation_beta``, ``clip``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdqbridge.onnx_io.codecs.view import NodeView, NoRow
from qdqbridge.qnn.dialect.tir import tirx

_REAL = "float32"
_OF_SUMS = 2
"""How many functions of an operator are of sums; an LSTM's third is of its cell."""
Activation = Callable[[Any], Any]
"""Makes an expression of float32 of another."""


def _number(value: float) -> Any:
    return tirx.const(value, _REAL)


def _sigmoid(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return _number(1.0) / (_number(1.0) + tirx.exp(_number(0.0) - x))


def _tanh(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return tirx.tanh(x)


def _relu(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return tirx.max(x, _number(0.0))


def _affine(x: Any, alpha: float, beta: float) -> Any:
    return _number(alpha) * x + _number(beta)


def _leaky_relu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    return tirx.Select(x >= _number(0.0), x, _number(alpha) * x)


def _thresholded_relu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    return tirx.Select(x > _number(alpha), x, _number(0.0))


def _scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    return _number(alpha) * tirx.tanh(_number(beta) * x)


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return tirx.min(tirx.max(_affine(x, alpha, beta), _number(0.0)), _number(1.0))


def _elu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    below = _number(alpha) * (tirx.exp(tirx.min(x, _number(0.0))) - _number(1.0))
    return tirx.Select(x >= _number(0.0), x, below)


def _softsign(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return x / (_number(1.0) + tirx.abs(x))


def _softplus(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    rest = tirx.exp(_number(0.0) - tirx.abs(x))
    return tirx.max(x, _number(0.0)) + tirx.log(_number(1.0) + rest)


@dataclass(frozen=True, slots=True)
class _RecurrentFunction:
    """One of ONNX's functions.

    Attributes:
        compute: What it makes of an expression, ``alpha`` and ``beta``.
        alpha: Its ``alpha`` where none is given; None where it has none, NaN where it must be.
        beta: The same of ``beta``.
    """

    compute: Callable[[Any, float, float], Any]
    alpha: float | None = None
    beta: float | None = None


_FUNCTIONS: Mapping[str, _RecurrentFunction] = {
    "sigmoid": _RecurrentFunction(_sigmoid),
    "tanh": _RecurrentFunction(_tanh),
    "relu": _RecurrentFunction(_relu),
    "affine": _RecurrentFunction(_affine, math.nan, math.nan),
    "leakyrelu": _RecurrentFunction(_leaky_relu, 0.01),
    "thresholdedrelu": _RecurrentFunction(_thresholded_relu, math.nan),
    "scaledtanh": _RecurrentFunction(_scaled_tanh, math.nan, math.nan),
    "hardsigmoid": _RecurrentFunction(_hard_sigmoid, 0.2, 0.5),
    "elu": _RecurrentFunction(_elu, 1.0),
    "softsign": _RecurrentFunction(_softsign),
    "softplus": _RecurrentFunction(_softplus),
}
"""By their names, which ONNX reads in any case. ThresholdedRelu's ``alpha`` is 1 by default in ONNX
and 0 in onnxruntime 1.32, which computes zeros for the two that have no default in ONNX."""


def activations(
    node: NodeView, default: Sequence[str], directions: int
) -> tuple[tuple[Activation, ...], ...]:
    """Returns the functions of each direction.

    ``alpha`` and ``beta`` are taken in the order of the functions that have them. What a function
    of a sum reads is cut to ``clip`` on both sides; the cell is not (an LSTM's third function).

    Raises:
        NoRow: There are other functions than ONNX's, not as many as it has, or one lacks a number.
    """
    names = list(node.strings("activations")) or [*default] * directions
    if len(names) != len(default) * directions:
        raise NoRow(f"it has {len(names)} activations")
    given = {name: list(node.floats(f"activation_{name}", ())) for name in ("alpha", "beta")}
    clip, made = node.float_("clip", 0.0), list[Activation]()
    for index, name in enumerate(names):
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise NoRow(f"its activation is '{name}'")
        alpha, beta = (
            0.0 if own is None else given[which].pop(0) if given[which] else own
            for which, own in (("alpha", function.alpha), ("beta", function.beta))
        )
        if math.isnan(alpha + beta):
            raise NoRow(f"its activation {name} is given no alpha or beta")
        limit = clip if index % len(default) < _OF_SUMS else 0.0
        made.append(_bound(function, alpha, beta, limit))
    per = len(default)
    return tuple(tuple(made[start : start + per]) for start in range(0, len(made), per))


def _bound(function: _RecurrentFunction, alpha: float, beta: float, clip: float) -> Activation:
    def compute(x: Any) -> Any:
        within = tirx.max(tirx.min(x, _number(clip)), _number(-clip)) if clip > 0 else x
        return function.compute(within, alpha, beta)

    return compute
