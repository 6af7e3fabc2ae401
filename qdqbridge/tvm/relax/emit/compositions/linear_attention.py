"""LinearAttention: a state per head that every token decays, corrects, adds to and reads.

Tokens stand in line, so it is one function of loops. Every length may be open; a state of float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from qdqbridge.core.ops.attributes import NormAttrs
from qdqbridge.core.ops.normalization import RMS_NORMALIZATION
from qdqbridge.onnx_io.codecs.view import NoRow
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.qnn.emit.emitter import Expr
from qdqbridge.tvm.relax.emit.compositions.context import Composition, CompositionContext, wide
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root

# --------------------------------------------------------------------------------------------------
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


# --------------------------------------------------------------------------------------------------

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
        state: The states.
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
