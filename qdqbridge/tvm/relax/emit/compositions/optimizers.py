"""Steps of training: Adagrad, Adam and Momentum move tensors along their gradients.

What depends on the rate and the count of steps alone is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_SHARED = 2
"""Operands that all tensors have in common: the rate, and how many steps there were."""
Step = Callable[[CompositionContext, Expr, Expr, Sequence[Expr]], Sequence[Expr]]
"""Takes the rate and the count in float64, a tensor, its gradient and states; gives a new tensor
and states."""


def _of_each(states: int, step: Step) -> Composition:
    """Returns the composition of a step of tensors that have so many states each.

    Operands and results are listed kind by kind: all tensors, all gradients, all of a state.
    """

    def emit(context: CompositionContext) -> Sequence[Expr]:
        kinds = 2 + states
        count, left = divmod(len(context.node.inputs) - _SHARED, kinds)
        if left:
            raise NoRow(f"it takes {len(context.node.inputs)} operands")
        rate, steps = (
            context("reshape", context.cast(context.arg(index), "float64"), ())
            for index in range(_SHARED)
        )
        moved = [
            step(
                context,
                rate,
                steps,
                [context.arg(_SHARED + kind * count + n) for kind in range(kinds)],
            )
            for n in range(count)
        ]
        return [result for each in zip(*moved, strict=True) for result in each]

    return emit


def _scaled(context: CompositionContext, x: Expr, factor: Any) -> Expr:
    """Returns a tensor times a number or a float64 scalar."""
    factor = (
        context.number(factor, x)
        if isinstance(factor, float)
        else context.cast(factor, context.dtype(x))
    )
    return context("multiply", x, factor)


def _regularized(context: CompositionContext, x: Expr, gradient: Expr) -> Expr:
    return context(
        "add", _scaled(context, x, context.onnx.float_("norm_coefficient", 0.0)), gradient
    )


def _deviation(context: CompositionContext, square: Expr) -> Expr:
    epsilon = context.number(context.onnx.float_("epsilon", 1e-6), square)
    return context("add", context("sqrt", square), epsilon)


def _adagrad(
    context: CompositionContext, rate: Expr, steps: Expr, tensors: Sequence[Expr]
) -> Sequence[Expr]:
    x, gradient, squares = tensors
    gradient = _regularized(context, x, gradient)
    squares = context("add", squares, context("multiply", gradient, gradient))
    one, decay = (
        context.number(1, rate),
        context.number(context.onnx.float_("decay_factor", 0.0), rate),
    )
    rate = context("divide", rate, context("add", one, context("multiply", steps, decay)))
    move = context("divide", _scaled(context, gradient, rate), _deviation(context, squares))
    return context("subtract", x, move), squares


def _adam(
    context: CompositionContext, rate: Expr, steps: Expr, tensors: Sequence[Expr]
) -> Sequence[Expr]:
    x, gradient, mean, square = tensors
    alpha, beta = context.onnx.float_("alpha", 0.9), context.onnx.float_("beta", 0.999)
    gradient = _regularized(context, x, gradient)
    mean = _blended(context, mean, gradient, alpha)
    square = _blended(context, square, context("multiply", gradient, gradient), beta)
    zero, one = context.number(0, rate), context.number(1, rate)
    unseen = [
        context("subtract", one, context("power", context.number(base, rate), steps))
        for base in (alpha, beta)
    ]  # of both averages, what they still have of the zeros that they began with
    bias = context("divide", context("sqrt", unseen[1]), unseen[0])
    rate = context("multiply", rate, context("where", context("greater", steps, zero), bias, one))
    move = _scaled(context, context("divide", mean, _deviation(context, square)), rate)
    kept = float(1 - context.onnx.float_("norm_coefficient_post", 0.0))
    return _scaled(context, context("subtract", x, move), kept), mean, square


def _blended(context: CompositionContext, old: Expr, new: Expr, weight: float) -> Expr:
    return context("add", _scaled(context, old, weight), _scaled(context, new, 1 - weight))


def _momentum(
    context: CompositionContext, rate: Expr, steps: Expr, tensors: Sequence[Expr]
) -> Sequence[Expr]:
    """The first step takes the whole gradient; Nesterov's looks a step ahead."""
    x, gradient, velocity = tensors
    alpha, beta = (context.onnx.float_(name, np.nan) for name in ("alpha", "beta"))
    gradient = _regularized(context, x, gradient)
    began = context("greater", steps, context.number(0, steps))
    share = context("where", began, context.number(beta, steps), context.number(1, steps))
    velocity = context("add", _scaled(context, velocity, alpha), _scaled(context, gradient, share))
    ahead = velocity
    if context.onnx.string("mode", "standard") == "nesterov":
        ahead = context("add", gradient, _scaled(context, velocity, alpha))
    return context("subtract", x, _scaled(context, ahead, rate)), velocity


OPTIMIZERS: Mapping[str, Composition] = {
    "Adagrad": _of_each(1, _adagrad),
    "Adam": _of_each(2, _adam),
    "Momentum": _of_each(1, _momentum),
}
"""By the operator's name in ai.onnx.preview.training."""
