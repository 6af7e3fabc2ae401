"""The functions that LSTM, GRU and RNN may be given, as loops compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qdqbridge.tvm.qnn.dialect.tir import tirx
from qdqbridge.tvm.relax.kernels.recurrent.functions import CellFunction

_REAL = "float32"
Activation = Callable[[Any], Any]
"""Makes an expression of float32 of another."""


def _float32_const(value: float) -> Any:
    return tirx.const(value, _REAL)


def _sigmoid(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return _float32_const(1.0) / (_float32_const(1.0) + tirx.exp(_float32_const(0.0) - x))


def _tanh(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return tirx.tanh(x)


def _relu(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return tirx.max(x, _float32_const(0.0))


def _affine_activation(x: Any, alpha: float, beta: float) -> Any:
    return _float32_const(alpha) * x + _float32_const(beta)


def _leaky_relu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    return tirx.Select(x >= _float32_const(0.0), x, _float32_const(alpha) * x)


def _thresholded_relu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    return tirx.Select(x > _float32_const(alpha), x, _float32_const(0.0))


def _scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    return _float32_const(alpha) * tirx.tanh(_float32_const(beta) * x)


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return tirx.min(
        tirx.max(_affine_activation(x, alpha, beta), _float32_const(0.0)), _float32_const(1.0)
    )


def _elu(x: Any, alpha: float, beta: float) -> Any:
    del beta
    below = _float32_const(alpha) * (
        tirx.exp(tirx.min(x, _float32_const(0.0))) - _float32_const(1.0)
    )
    return tirx.Select(x >= _float32_const(0.0), x, below)


def _softsign(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    return x / (_float32_const(1.0) + tirx.abs(x))


def _softplus(x: Any, alpha: float, beta: float) -> Any:
    del alpha, beta
    rest = tirx.exp(_float32_const(0.0) - tirx.abs(x))
    return tirx.max(x, _float32_const(0.0)) + tirx.log(_float32_const(1.0) + rest)


_FUNCTIONS: Mapping[str, Callable[[Any, float, float], Any]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": _relu,
    "affine": _affine_activation,
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
        within = (
            tirx.max(tirx.min(x, _float32_const(clip)), _float32_const(-clip)) if clip > 0 else x
        )
        return _FUNCTIONS[function.name](within, function.alpha, function.beta)

    return compute
