"""The functions that LSTM, GRU and RNN may be given, as loops compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.relax.kernels.recurrent.functions import CellFunction

_REAL = "float32"
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


_FUNCTIONS: Mapping[str, Callable[[Any, float, float], Any]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": _relu,
    "affine": _affine,
    "leakyrelu": _leaky_relu,
    "thresholdedrelu": _thresholded_relu,
    "scaledtanh": _scaled_tanh,
    "hardsigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": _softsign,
    "softplus": _softplus,
}


def activation(function: CellFunction) -> Activation:
    """Returns what computes a function of an expression."""
    clip = function.clip

    def compute(x: Any) -> Any:
        within = tirx.max(tirx.min(x, _number(clip)), _number(-clip)) if clip > 0 else x
        return _FUNCTIONS[function.name](within, function.alpha, function.beta)

    return compute
