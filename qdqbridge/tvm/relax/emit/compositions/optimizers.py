"""Steps of training: Adagrad, Adam and Momentum move tensors along their gradients.

What depends on the rate and the count of steps alone is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.scope import Expr
from qdqbridge.tvm.relax.emit.compositions.site import Composition, CompositionSite

_SHARED = 2
"""Operands that all tensors have in common: the rate, and how many steps there were."""
Step = Callable[[CompositionSite, Expr, Expr, Sequence[Expr]], Sequence[Expr]]
"""Takes the rate and the count in float64, a tensor, its gradient and states; gives a new tensor
and states."""


def _of_each(states: int, step: Step) -> Composition:
    """Returns the composition of a step of tensors that have so many states each.

    Operands and results are listed kind by kind: all tensors, all gradients, all of a state.
    """

    def emit(site: CompositionSite) -> Sequence[Expr]:
        kinds = 2 + states
        count, left = divmod(len(site.node.inputs) - _SHARED, kinds)
        if left:
            raise NoRow(f"it takes {len(site.node.inputs)} operands")
        rate, steps = (
            site("reshape", site.cast(site.arg(index), "float64"), ()) for index in range(_SHARED)
        )
        moved = [
            step(site, rate, steps, [site.arg(_SHARED + kind * count + n) for kind in range(kinds)])
            for n in range(count)
        ]
        return [result for each in zip(*moved, strict=True) for result in each]

    return emit


def _scaled(site: CompositionSite, x: Expr, factor: Any) -> Expr:
    """Returns a tensor times a number or a float64 scalar."""
    factor = (
        site.number(factor, x) if isinstance(factor, float) else site.cast(factor, site.dtype(x))
    )
    return site("multiply", x, factor)


def _regularized(site: CompositionSite, x: Expr, gradient: Expr) -> Expr:
    return site("add", _scaled(site, x, site.onnx.float_("norm_coefficient", 0.0)), gradient)


def _deviation(site: CompositionSite, square: Expr) -> Expr:
    epsilon = site.number(site.onnx.float_("epsilon", 1e-6), square)
    return site("add", site("sqrt", square), epsilon)


def _adagrad(
    site: CompositionSite, rate: Expr, steps: Expr, tensors: Sequence[Expr]
) -> Sequence[Expr]:
    x, gradient, squares = tensors
    gradient = _regularized(site, x, gradient)
    squares = site("add", squares, site("multiply", gradient, gradient))
    one, decay = site.number(1, rate), site.number(site.onnx.float_("decay_factor", 0.0), rate)
    rate = site("divide", rate, site("add", one, site("multiply", steps, decay)))
    move = site("divide", _scaled(site, gradient, rate), _deviation(site, squares))
    return site("subtract", x, move), squares


def _adam(
    site: CompositionSite, rate: Expr, steps: Expr, tensors: Sequence[Expr]
) -> Sequence[Expr]:
    x, gradient, mean, square = tensors
    alpha, beta = site.onnx.float_("alpha", 0.9), site.onnx.float_("beta", 0.999)
    gradient = _regularized(site, x, gradient)
    mean = _blended(site, mean, gradient, alpha)
    square = _blended(site, square, site("multiply", gradient, gradient), beta)
    zero, one = site.number(0, rate), site.number(1, rate)
    unseen = [
        site("subtract", one, site("power", site.number(base, rate), steps))
        for base in (alpha, beta)
    ]  # of both averages, what they still have of the zeros that they began with
    bias = site("divide", site("sqrt", unseen[1]), unseen[0])
    rate = site("multiply", rate, site("where", site("greater", steps, zero), bias, one))
    move = _scaled(site, site("divide", mean, _deviation(site, square)), rate)
    kept = float(1 - site.onnx.float_("norm_coefficient_post", 0.0))
    return _scaled(site, site("subtract", x, move), kept), mean, square


def _blended(site: CompositionSite, old: Expr, new: Expr, weight: float) -> Expr:
    return site("add", _scaled(site, old, weight), _scaled(site, new, 1 - weight))


def _momentum(
    site: CompositionSite, rate: Expr, steps: Expr, tensors: Sequence[Expr]
) -> Sequence[Expr]:
    """The first step takes the whole gradient; Nesterov's looks a step ahead."""
    x, gradient, velocity = tensors
    alpha, beta = (site.onnx.float_(name, np.nan) for name in ("alpha", "beta"))
    gradient = _regularized(site, x, gradient)
    began = site("greater", steps, site.number(0, steps))
    share = site("where", began, site.number(beta, steps), site.number(1, steps))
    velocity = site("add", _scaled(site, velocity, alpha), _scaled(site, gradient, share))
    ahead = velocity
    if site.onnx.string("mode", "standard") == "nesterov":
        ahead = site("add", gradient, _scaled(site, velocity, alpha))
    return site("subtract", x, _scaled(site, ahead, rate)), velocity


OPTIMIZERS: Mapping[str, Composition] = {
    "Adagrad": _of_each(1, _adagrad),
    "Adam": _of_each(2, _adam),
    "Momentum": _of_each(1, _momentum),
}
"""By the operator's name in ai.onnx.preview.training."""
