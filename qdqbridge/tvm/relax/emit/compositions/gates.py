"""Gates of com.microsoft: those of a LinearAttention, of the norm of its results, of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, wide

_REAL = "float32"


def _gate(context: CompositionContext) -> Sequence[Expr]:
    """``decay = scale * Softplus(a + bias)`` and ``beta = Sigmoid(b)``, in float32.

    Source: onnxruntime docs/ContribOperators.md.
    """
    kind = context.dtype(context.arg(0))
    a, bias, scale = (context.cast(context.arg(index), _REAL) for index in range(3))
    decay = context("multiply", scale, context("nn.softplus", context("add", a, bias)))
    results = [context.cast(decay, kind)]
    if context.has(3):
        beta = context("sigmoid", context.cast(context.arg(3), _REAL))
        results.append(context.cast(beta, kind))
    return results[: len(context.node.outputs)]


def _gated_norm(context: CompositionContext) -> Sequence[Expr]:
    """``x / sqrt(mean(x^2) + epsilon) * scale * act(gate)`` of each group, in float32.

    A group is as many neighbours of the last axis as there are scales.
    Source: onnxruntime docs/ContribOperators.md.
    """
    x, scale, gate = (context.cast(context.arg(index), _REAL) for index in range(3))
    shape, (size,) = context.extents(x), context.static(scale)
    if not isinstance(shape[-1], int) or shape[-1] % size:
        raise NoRow(f"the width of its operand is {shape[-1]}, in groups of {size}")
    for have, want in zip(context.extents(gate), shape, strict=True):
        context.emitter.need_same(have, want)
    groups: list[Any] = [*shape[:-1], shape[-1] // size, size]
    x = context("reshape", x, groups)
    square = context("mean", context("multiply", x, x), axis=-1, keepdims=True)
    epsilon = context.number(context.onnx.float_("epsilon", 1e-5), _REAL)
    normal = context("divide", x, context("sqrt", context("add", square, epsilon)))
    normal = context("reshape", context("multiply", normal, scale), shape)
    gate = context("reshape", gate, shape)
    bent = context("sigmoid", gate)
    if context.onnx.string("activation", "silu") != "sigmoid":
        bent = context("multiply", gate, bent)
    return [context.cast(context("multiply", normal, bent), context.dtype(context.arg(0)))]


def _gated_add(context: CompositionContext) -> Sequence[Expr]:
    """``x + y * gate``; half floats are rounded twice.

    Source: onnxruntime docs/ContribOperators.md.
    """
    if context.has(3):
        raise NoRow("it projects its gate")
    kind, shape = context.dtype(context.arg(0)), context.extents(context.arg(0))
    x, y, gate = (wide(context, context.arg(index)) for index in range(3))
    for given, wanted in ((y, shape), (gate, [*shape[:-1], 1])):
        for have, want in zip(context.extents(given), wanted, strict=True):
            context.emitter.need_same(have, want)
    y, gate = context("reshape", y, shape), context("reshape", gate, [*shape[:-1], 1])
    product = wide(context, context.cast(context("multiply", y, gate), kind))
    return [context.cast(context("add", x, product), kind)]


GATES: Mapping[str, Composition] = {
    "LinearAttentionGate": _gate,
    "GatedRMSNorm": _gated_norm,
    "GatedAdd": _gated_add,
}
"""By the operator's name in the domain com.microsoft."""
