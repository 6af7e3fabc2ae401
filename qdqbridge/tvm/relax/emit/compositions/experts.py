"""Mixtures of experts and causal convolutions: loops that read only the weights that they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te

from qdqbridge.core.ops.causal_convolution import CAUSAL_CONV, CausalConvAttrs
from qdqbridge.core.ops.dynamic import LAST_OF_BLOCK, SMALLEST
from qdqbridge.core.ops.experts import (
    EXPERTS,
    GATED,
    INTERLEAVED,
    STORED_EXPERTS,
    ExpertsAttrs,
)
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import (
    Composition,
    CompositionContext,
    loops,
    of_row,
    wide,
)

_Weight = Callable[[Expr, Expr, Expr], Expr]
_KIND = "float32"


def _experts(context: CompositionContext, a: ExpertsAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.experts.EXPERTS` says."""

    def layer(x: Expr, order: Expr, index: int) -> Expr:
        return _layer(context, x, order, [context.arg(2 * index)], _as_floats, 2 * index + 1)

    return _mixed(context, a, layer)


def _stored_experts(context: CompositionContext, a: ExpertsAttrs) -> Sequence[Expr]:
    """As ``STORED_EXPERTS`` of ``core.ops.experts`` says: weights stay as they are stored."""

    def layer(x: Expr, order: Expr, index: int) -> Expr:
        place, block = 3 * index - 1, a.rounded(context.extents(x)[-1])
        x = _fake_quantize_blocks(context, x, block) if block else x
        given = [context.arg(place), wide(context, context.arg(place + 1))]
        if context.has(10 + index):
            given.append(context.arg(10 + index))
        return _layer(context, x, order, given, _as_codes(a), place + 2)

    return _mixed(context, a, layer, normalized=True)


def _fake_quantize_blocks(context: CompositionContext, x: Expr, block: int) -> Expr:
    """Returns what is left of data that are rounded to 8 bits, as many neighbours together."""
    shape = context.extents(x)
    parts = context("reshape", x, (*shape[:-1], shape[-1] // block, block))
    top = context("max", context("abs", parts), axis=-1, keepdims=True)
    usual = context("greater_equal", top, context.number(SMALLEST, _KIND))
    last, one, none = (context.number(n, _KIND) for n in (LAST_OF_BLOCK, 1, 0))
    safe = context("where", usual, top, one)
    codes = context("round", context("multiply", parts, context("divide", last, safe)))
    real = context("where", usual, context("multiply", codes, context("divide", safe, last)), none)
    return context("reshape", real, shape)


def _as_floats(tensors: Sequence[te.Tensor], terms: int) -> _Weight:
    del terms
    weights = tensors[0]
    return lambda e, n, k: weights(e, n, k).astype(_KIND)


def _as_codes(a: ExpertsAttrs) -> Callable[[Sequence[te.Tensor], int], _Weight]:
    bits = a.expert_weight_bits
    each, low = 8 // bits, (1 << bits) - 1

    def code(byte: Expr, place: Expr) -> Expr:
        shift = (place % each * bits).astype("int32")
        return (byte.astype("int32") >> shift) & low

    def weights(tensors: Sequence[te.Tensor], terms: int) -> _Weight:
        stored, scales = tensors[:2]
        points = tensors[2] if len(tensors) > 2 else None
        blocks = int(scales.shape[2]) if len(scales.shape) == 3 else 0
        block = a.block_size or terms

        def weight(e: Expr, n: Expr, k: Expr) -> Expr:
            number = code(stored(e, n, k // each), k)
            scale = scales(e, n, k // block) if blocks else scales(e, n)
            zero: Any = tirx.const(1 << (bits - 1), "int32")
            if points is not None and blocks:
                zero = code(points(e, n, k // block // each), k // block)
            elif points is not None:
                zero = code(points(e, n // each), n)
            return (number - zero).astype(_KIND) * scale

        return weight

    return weights


def _layer(
    context: CompositionContext,
    x: Expr,
    order: Expr,
    tensors: Sequence[Expr],
    weights: Callable[[Sequence[te.Tensor], int], _Weight],
    bias_at: int,
) -> Expr:
    """Returns the product of each token with the weights of each of its experts.

    Args:
        context: The node.
        x: (tokens, experts of a token or 1, terms).
        order: Which experts: (tokens, experts of a token).
        tensors: What holds the weights.
        weights: Returns a weight, of tensors and the number of terms.
        bias_at: The operand that is the bias.
    """
    bias = [wide(context, context.arg(bias_at))] if context.has(bias_at) else []

    def product(data: te.Tensor, which: te.Tensor, *rest: te.Tensor) -> te.Tensor:
        held = rest[: len(rest) - len(bias)]
        terms = int(data.shape[2])
        weight, rows = weights(held, terms), held[0].shape[1]
        shape = (which.shape[0], which.shape[1], rows)
        axis = te.reduce_axis((0, terms), "k")
        last = data.shape[1] - 1

        def element(t: Expr, j: Expr, n: Expr) -> Expr:
            own = data(t, tirx.min(j, last), axis)
            return te.sum(own * weight(which(t, j), n, axis), axis=axis)

        total: Any = te.compute(shape, element, name="expert")
        if not bias:
            return total
        return stage(shape, lambda t, j, n: total(t, j, n) + rest[-1](which(t, j), n), "biased")

    return loops(context, "expert", product, x, order, *tensors, *bias)


def _mixed(
    context: CompositionContext,
    a: ExpertsAttrs,
    layer: Callable[[Expr, Expr, int], Expr],
    *,
    normalized: bool = False,
) -> Sequence[Expr]:
    """Returns the sum of what a token's experts make of it."""
    x = wide(context, context.arg(0))
    extents = context.extents(x)
    tokens = math.prod(extents[1:-1], start=extents[0])
    flat = context("reshape", x, (tokens, 1, extents[-1]))
    logits = wide(context, context.arg(1))
    logits = context("reshape", logits, (tokens, context.extents(logits)[-1]))
    values, order = _greatest(context, logits, a.k)
    top = context("max", logits, axis=1, keepdims=True)
    raised = context("exp", context("subtract", values, top))
    whole = raised
    if not (normalized or a.normalize_routing_weights):
        whole = context("exp", context("subtract", logits, top))
    shares = context("divide", raised, context("sum", whole, axis=1, keepdims=True))
    other = layer(flat, order, 3) if context.has(8 if normalized else 6) else None
    inner = _activated(context, a, layer(flat, order, 1), other)
    made = layer(inner, order, 2)
    weighed = context("multiply", made, context("reshape", shares, (tokens, a.k, 1)))
    result = context("reshape", context("sum", weighed, axis=1), extents)
    return [context.cast(result, context.dtype(context.arg(0)))]


def _greatest(context: CompositionContext, logits: Expr, count: int) -> tuple[Expr, Expr]:
    """Returns the greatest logits of each token and their places; of equal ones the last first.

    TVM's own ``topk`` takes the first, so that it is given them from behind.
    """
    last = context.extents(logits)[-1] - 1
    turned = context("flip", logits, axis=1)
    found = context.emitter.emit(
        context.emitter.op.topk(turned, count, axis=1, ret_type="both", largest=True, dtype="int32")
    )
    values, places = (
        context.emitter.emit(context.emitter.item(found, index)) for index in range(2)
    )
    return values, context("subtract", context.number(last, "int32"), places)


def _activated(context: CompositionContext, a: ExpertsAttrs, x: Expr, other: Expr | None) -> Expr:
    kind = a.activation_type
    if kind in GATED and a.swiglu_fusion:
        x, other = _halves(context, a, x)
    if kind == "swiglu":
        return _swiglu(context, a, x, other)
    named = {"relu": "nn.relu", "relu2": "nn.relu", "gelu": "nn.gelu_tanh",
             "geglu": "nn.gelu_tanh", "silu": "nn.silu"}  # fmt: skip
    bent = context(named[kind], x) if kind in named else x
    if kind == "relu2":
        bent = context("multiply", bent, bent)
    return bent if other is None else context("multiply", bent, other)


def _halves(context: CompositionContext, a: ExpertsAttrs, x: Expr) -> tuple[Expr, Expr]:
    """Returns the gate and what it gates, which are one product."""
    width = context.extents(x)[-1]
    begin, stride = ((0, 1), 2) if a.swiglu_fusion == INTERLEAVED else ((0, width // 2), 1)
    ends = (width, width) if a.swiglu_fusion == INTERLEAVED else (width // 2, width)
    gate, gated = (
        context("strided_slice", x, axes=[2], begin=[b], end=[e], strides=[stride])
        for b, e in zip(begin, ends, strict=True)
    )
    return gate, gated


def _swiglu(context: CompositionContext, a: ExpertsAttrs, x: Expr, other: Expr | None) -> Expr:
    assert other is not None
    if a.swiglu_limit:
        high, low = (context.number(sign * a.swiglu_limit, _KIND) for sign in (1, -1))
        x = context("minimum", x, high)
        other = context("maximum", context("minimum", other, high), low)
    gate = context("sigmoid", context("multiply", x, context.number(a.activation_alpha, _KIND)))
    shifted = context("add", other, context.number(a.activation_beta, _KIND))
    return context("multiply", context("multiply", x, gate), shifted)


def _causal(context: CompositionContext, a: CausalConvAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.causal_convolution.CAUSAL_CONV` says."""
    x, weight = wide(context, context.arg(0)), wide(context, context.arg(1))
    batch, channels, length = context.extents(x)
    taps = context.static(weight)[2]
    reach = (taps - 1) * a.dilation
    if context.has(3):
        past = wide(context, context.arg(3))
        for have, want in zip(context.extents(past), (batch, channels, reach), strict=True):
            context.emitter.need_same(have, want)
        past = context("reshape", past, (batch, channels, reach))
    else:
        past = context("zeros", (batch, channels, reach), _KIND)
    whole = context("concat", [past, x], axis=2)

    def convolved(data: te.Tensor, taken: te.Tensor, like: te.Tensor) -> te.Tensor:
        def element(b: Expr, c: Expr, t: Expr) -> Expr:
            parts = (data(b, c, t + j * a.dilation) * taken(c, 0, j) for j in range(taps))
            return sum(parts, start=tirx.const(0.0, _KIND))

        return stage(like.shape, element, name="causal")

    made = loops(context, "causal_conv", convolved, whole, weight, x)
    if context.has(2):
        made = context(
            "add", made, context("reshape", wide(context, context.arg(2)), (1, channels, 1))
        )
    made = made if a.activation == "none" else context("nn.silu", made)

    def last(data: te.Tensor) -> te.Tensor:
        shape = (data.shape[0], data.shape[1], reach)
        begin = data.shape[2] - reach
        return stage(shape, lambda b, c, t: data(b, c, begin + t), name="state")

    kept = loops(context, "conv_state", last, whole)
    del length
    return [context.cast(each, context.dtype(context.arg(0))) for each in (made, kept)]


EXPERT_LOOPS: Mapping[str, Composition] = dict((
    of_row(EXPERTS, _experts), of_row(STORED_EXPERTS, _stored_experts),
    of_row(CAUSAL_CONV, _causal),
))  # fmt: skip
"""By the row's name."""
