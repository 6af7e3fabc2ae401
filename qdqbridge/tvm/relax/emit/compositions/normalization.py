"""LayerNormalization whose mean or deviation is a result, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext

_REAL, _FLOAT = "float32", 1


def _layer_normalization(context: CompositionContext) -> Sequence[Expr]:
    """The norm, the mean and the reciprocal of the deviation, in float32.

    ONNX's definition takes the square of the mean off that of the data, which leaves little where
    the mean is large; onnxruntime 1.32 takes the mean off the data, as here.
    """
    if context.onnx.int_("stash_type", _FLOAT) != _FLOAT:
        raise NoRow("it does not compute in float32")
    kind, x = context.dtype(context.arg(0)), context.cast(context.arg(0), _REAL)
    rank = context.rank(x)
    axes = list(range(context.onnx.int_("axis", -1) % rank, rank))
    mean = context("mean", x, axis=axes, keepdims=True)
    centred = context("subtract", x, mean)
    variance = context("mean", context("multiply", centred, centred), axis=axes, keepdims=True)
    epsilon = context.number(context.onnx.float_("epsilon", 1e-5), _REAL)
    one = context.number(1, _REAL)
    inverse = context("divide", one, context("sqrt", context("add", variance, epsilon)))
    y = context(
        "multiply", context("multiply", centred, inverse), context.cast(context.arg(1), _REAL)
    )
    if context.has(2):
        y = context("add", y, context.cast(context.arg(2), _REAL))
    results = (context.cast(y, kind), mean, inverse)
    return [result for index, result in enumerate(results) if context.asks(index)]


NORMS: Mapping[str, Composition] = {"LayerNormalization": _layer_normalization}
"""By the operator's name in ONNX's own domain."""
