"""LinearAttention: a state per head that every token decays, corrects, adds to and reads.

Tokens stand in line, so it is one function of loops. Every length may be open; a state of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te

from qdqbridge.core.ops.attributes import NormAttrs
from qdqbridge.core.ops.convolution import CAUSAL_CONV, CausalConvAttrs
from qdqbridge.core.ops.dynamic import LAST_OF_BLOCK, SMALLEST
from qdqbridge.core.ops.experts import EXPERTS, GATED, INTERLEAVED, STORED_EXPERTS, ExpertsAttrs
from qdqbridge.core.ops.normalization import RMS_NORMALIZATION
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import stage, tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.elementwise import (
    Composition,
    CompositionContext,
    loops,
    of_row,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root

# Gates of com.microsoft: those of a LinearAttention, of the norm of its results, of a sum.


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
    norm = NormAttrs(len(shape), context.onnx.float_("epsilon", 1e-5))
    normal = context("reshape", context.steps(RMS_NORMALIZATION, norm, [x, scale]), shape)
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


_REAL = "float32"
_RULES = ("linear", "gated", "delta", "gated_delta")


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """What the loops compute.

    Attributes:
        heads: States, each of a head of values.
        keys: Heads of keys; each writes into as many states that stand side by side.
        queries: Heads of queries, which share states or are shared by them in the same way.
        scale: What results are multiplied by.
        gated: The state decays.
        corrected: What the state holds of a key already is taken off its value.
    """

    heads: int
    keys: int
    queries: int
    scale: float
    gated: bool
    corrected: bool

    @property
    def results(self) -> int:
        """Heads of results: those of the queries, or one of each state where these are more."""
        return max(self.heads, self.queries)


def _linear_attention(context: CompositionContext) -> Sequence[Expr]:
    """``S = exp(g) S + k outer (beta (v - S' k)); y = scale S' q``, from the past's state on.

    Source: ONNX LinearAttention-27; onnxruntime docs/ContribOperators.md, whose operator has keys
    and queries that several states share, and windows of states as well.
    """
    rule = context.onnx.string("update_rule", "gated_delta")
    if rule not in _RULES:
        raise NoRow(f"its update rule is '{rule}'")
    heads, queries = (context.onnx.int_(name, 0) for name in ("kv_num_heads", "q_num_heads"))
    if heads < 1 or queries < 1 or max(queries, heads) % min(queries, heads):
        raise NoRow(f"{queries} heads of queries do not share {heads} states evenly")
    if context.onnx.int_("state_window", 0):
        raise NoRow("it keeps a window of states")
    given = [wide(context, context.arg(index)) for index in range(3)]
    batch, length, _ = context.extents(given[0])
    keys, values = _head(context, given[0], queries), _head(context, given[2], heads)
    held = _heads(context, given[1], keys)
    if heads % held:
        raise NoRow(f"{held} heads of keys do not share {heads} states evenly")
    recurrence = _Recurrence(
        heads, held, queries, context.onnx.float_("scale", 0.0) or 1 / math.sqrt(keys),
        "gated" in rule, "delta" in rule,
    )  # fmt: skip
    operands = [
        _by_heads(context, x, (batch, length, count, size))
        for x, count, size in zip(given, (queries, held, heads), (keys, keys, values), strict=True)
    ]
    for index, needed in ((4, recurrence.gated), (5, recurrence.corrected)):
        if needed != context.has(index):
            raise NoRow(f"its update rule is '{rule}', of other operands")
        if needed:
            x = wide(context, context.arg(index))
            width = context.extents(x)[-1]
            if not isinstance(width, int):
                raise NoRow("the width of an operand is open")
            count = 1 if width == 1 else heads
            operands.append(_by_heads(context, x, (batch, length, count, width // count)))
    state = (batch, heads, keys, values)
    if context.has(3):
        operands.append(_by_heads(context, wide(context, context.arg(3)), state))
    shapes = [(batch, length, recurrence.results, values), state]
    made = _call_linear_attention(context, recurrence, operands, shapes)
    flat = context("reshape", made[0], (batch, length, recurrence.results * values))
    kept = context.dtype(context.arg(3)) if context.has(3) else context.dtype(context.arg(0))
    return [context.cast(flat, context.dtype(context.arg(0))), context.cast(made[1], kept)]


def _head(context: CompositionContext, x: Expr, heads: int) -> int:
    width = context.extents(x)[-1]
    if heads < 1 or not isinstance(width, int) or width % heads:
        raise NoRow(f"the width of its operand is {width}, of {heads} heads")
    return width // heads


def _heads(context: CompositionContext, x: Expr, size: int) -> int:
    width = context.extents(x)[-1]
    if not isinstance(width, int) or width % size:
        raise NoRow(f"the width of its keys is {width}, of heads of {size}")
    return width // size


def _by_heads(context: CompositionContext, x: Expr, shape: tuple[Any, ...]) -> Expr:
    """Returns an operand by heads; batch and length are the queries', which the run checks."""
    for have, want in zip(context.extents(x)[:2], shape[:2], strict=True):
        context.emitter.need_same(have, want)
    return context("reshape", x, shape)


def _call_linear_attention(
    context: CompositionContext, recurrence: _Recurrence, operands: Sequence[Expr],
    shapes: Sequence[tuple[Any, ...]],
) -> list[Expr]:  # fmt: skip
    """Emits a call of the loops; returns results by heads, and the state."""
    extents = [context.extents(x) for x in operands]
    function = _linear_attention_primfunc(recurrence, extents)
    variable = context.emitter.builder.add_func(function, "linear_attention")
    open_shapes: Any = shapes
    types: Any = [relax.TensorType(shape, _REAL) for shape in open_shapes]
    args: Any = list(operands)
    both = context.emitter.emit(relax.call_tir(variable, args, types))
    return [context.emitter.emit(context.emitter.item(both, index)) for index in range(2)]


def _linear_attention_primfunc(r: _Recurrence, extents: Sequence[Sequence[Any]]) -> Any:
    """Returns the PrimFunc ``(q, k, v, decay?, beta?, past?, y, state)``, all by heads."""
    # A PrimFunc has no names of its caller: open extents become variables of its own.
    opened: dict[str, Any] = {}

    def own(extent: Any) -> Any:
        if isinstance(extent, int):
            return extent
        return opened.setdefault(str(extent), tirx.Var(f"n{len(opened)}", "int64"))

    shapes = [[own(extent) for extent in shape] for shape in extents]
    (batch, length, _, keys), values = shapes[0], shapes[2][3]
    readers, sharing = r.results // r.heads, r.results // r.queries

    def body() -> None:
        given = [
            T.arg(f"x{index}", T.buffer(tuple(shape), _REAL)) for index, shape in enumerate(shapes)
        ]
        y = T.arg("y", T.buffer((batch, length, r.results, values), _REAL))
        state = T.arg("state", T.buffer((batch, r.heads, keys, values), _REAL))
        q, k, v, *rest = given
        decay = rest.pop(0) if r.gated else None
        beta = rest.pop(0) if r.corrected else None
        with root():
            sums = T.alloc_buffer((values,), _REAL)
            with T.serial(batch) as b, T.serial(r.heads) as h:
                with T.serial(keys) as i, T.serial(values) as j:
                    first = rest[0][b, h, i, j] if rest else tirx.const(0.0, _REAL)
                    T.buffer_store(state, first, [b, h, i, j])
                with T.serial(length) as t:
                    if decay is not None:
                        _decay(decay, state, (b, h, t), (keys, values))
                    own = h // (r.heads // r.keys)
                    _write((k, own), v, beta, state, sums, (b, h, t), (keys, values))
                    with T.serial(readers) as g, T.serial(values) as j:
                        reader = h * readers + g
                        at = [b, t, reader, j]
                        T.buffer_store(y, tirx.const(0.0, _REAL), at)
                        with T.serial(keys) as i:
                            part = q[b, t, reader // sharing, i] * state[b, h, i, j]
                            T.buffer_store(y, tirx.BufferLoad(y, at) + part, at)
                        scaled = tirx.BufferLoad(y, at) * tirx.const(r.scale, _REAL)
                        T.buffer_store(y, scaled, at)

    return prim_func(body)


def _decay(decay: Any, state: Any, at: tuple[Any, Any, Any], sizes: tuple[int, int]) -> None:
    """Multiplies the state of a head by ``exp(g)``, of the head or of each of its rows."""
    b, h, t = at
    one = int(decay.shape[3]) == 1
    with T.serial(sizes[0]) as i, T.serial(sizes[1]) as j:
        factor = tirx.exp(decay[b, t, h, 0 if one else i])
        T.buffer_store(state, state[b, h, i, j] * factor, [b, h, i, j])


def _write(
    key: tuple[Any, Any], v: Any, beta: Any, state: Any, sums: Any, at: tuple[Any, Any, Any],
    sizes: tuple[int, int],
) -> None:  # fmt: skip
    """Adds a token's key and value to the state of a head, corrected by what it holds already.

    Args:
        key: The keys, and which of their heads it is.
        v: The values.
        beta: How much is written; None: all.
        sums: Room for a value.
        at: Sequence, state and token.
        sizes: Of a key and of a value.
    """
    b, h, t = at
    k, own = key
    keys, values = sizes
    with T.serial(values) as j:
        T.buffer_store(sums, v[b, t, h, j], [j])
        if beta is not None:
            with T.serial(keys) as i:
                held = state[b, h, i, j] * k[b, t, own, i]
                T.buffer_store(sums, sums[j] - held, [j])
            weight = beta[b, t, 0 if int(beta.shape[2]) == 1 else h, 0]
            T.buffer_store(sums, sums[j] * weight, [j])
    with T.serial(keys) as i, T.serial(values) as j:
        added = state[b, h, i, j] + k[b, t, own, i] * sums[j]
        T.buffer_store(state, added, [b, h, i, j])


LINEAR_ATTENTION: Mapping[str, Composition] = {"LinearAttention": _linear_attention}
"""By the operator's name in ONNX's own domain, and in com.microsoft."""


# ---- experts -------------------------------------------------------------------------------------
# Mixtures of experts and causal convolutions: loops that read only the weights that they need.


_Weight = Callable[[Expr, Expr, Expr], Expr]


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
    usual = context("greater_equal", top, context.number(SMALLEST, _REAL))
    last, one, none = (context.number(n, _REAL) for n in (LAST_OF_BLOCK, 1, 0))
    safe = context("where", usual, top, one)
    codes = context("round", context("multiply", parts, context("divide", last, safe)))
    real = context("where", usual, context("multiply", codes, context("divide", safe, last)), none)
    return context("reshape", real, shape)


def _as_floats(tensors: Sequence[te.Tensor], terms: int) -> _Weight:
    del terms
    weights = tensors[0]
    return lambda e, n, k: weights(e, n, k).astype(_REAL)


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
            return (number - zero).astype(_REAL) * scale

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
        # A token's data are one row for all its experts in the first layer, and one for each behind
        # it.
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
        high, low = (context.number(sign * a.swiglu_limit, _REAL) for sign in (1, -1))
        x = context("minimum", x, high)
        other = context("maximum", context("minimum", other, high), low)
    gate = context("sigmoid", context("multiply", x, context.number(a.activation_alpha, _REAL)))
    shifted = context("add", other, context.number(a.activation_beta, _REAL))
    return context("multiply", context("multiply", x, gate), shifted)


def _causal(context: CompositionContext, a: CausalConvAttrs) -> Sequence[Expr]:
    """As :data:`qdqbridge.core.ops.convolution.CAUSAL_CONV` says."""
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
        past = context("zeros", (batch, channels, reach), _REAL)
    whole = context("concat", [past, x], axis=2)

    def convolved(data: te.Tensor, taken: te.Tensor, like: te.Tensor) -> te.Tensor:
        def element(b: Expr, c: Expr, t: Expr) -> Expr:
            parts = (data(b, c, t + j * a.dilation) * taken(c, 0, j) for j in range(taps))
            return sum(parts, start=tirx.const(0.0, _REAL))

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
