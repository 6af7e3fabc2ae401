"""Operators of com.microsoft element by element, with norms and Gelus; layers of batches first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.ops.unary import HARD_SIGMOID, LEAKY_RELU
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import (
    MICROSOFT,
    LoweringContext,
    Perm,
    common_source,
    reading_rule,
    reading_rule_of_any,
    transposed,
)

# ---- com.microsoft's QLinearAdd, Mul, Concat, Where, Sigmoid, LeakyRelu and Softmax --------------


_OF_ONE = ("x", "sx", "zx?", "sy", "zy?")


def _finish(
    context: LoweringContext, real: Value, scale: Value, zero_point: Value, like: Value,
    perm: Perm | None,
) -> Value:  # fmt: skip
    """Quantizes, and turns the result where the operands were read before a transposition."""
    stored = context.quantize(real, scale, zero_point, like, "" if perm else context.output)
    return transposed(context, stored, perm, context.output) if perm else stored


def _binary(op_type: str) -> Rule:
    """Returns the rule of QLinearAdd or QLinearMul."""
    operands = ("a", "sa", "za?", "b", "sb", "zb?", "sy", "zy?")

    @reading_rule(f"qlinear-{op_type.lower()}", (f"com.microsoft::QLinear{op_type}", *operands))
    def lower(context: LoweringContext) -> Value:
        """``QLinearAdd(a, b) -> Q(Add(DQ(a), DQ(b)))``, and so QLinearMul.

        Against onnxruntime 1.31's kernels, which round ``v + zy`` instead of ``v``: 1 LSB at
        midpoints where zy is odd (scales that are powers of two: 6.6 % of QLinearAdd's results,
        2.5 % of QLinearMul's; other scales 1 of 120,000; even zy 0). Source: onnxruntime
        docs/ContribOperators.md, core/mlas/lib/qladd.cpp, qlmul.cpp.
        """
        a, sa, za, b, sb, zb, sy, zy = context.inputs(8)
        (first, second), perm = common_source((a, b))
        operands = [context.dequantize(first, sa, za), context.dequantize(second, sb, zb)]
        return _finish(context, context.op(op_type, operands), sy, zy, a, perm)

    return lower


def _unary(op_type: str, name: str, *attributes: str) -> Rule:
    """Returns the rule of QLinearSigmoid or QLinearLeakyRelu."""

    @reading_rule(f"qlinear-{name}", (f"com.microsoft::QLinear{op_type}", *_OF_ONE))
    def lower(context: LoweringContext) -> Value:
        """``QLinearSigmoid(x) -> Q(Sigmoid(DQ(x)))``, and so QLinearLeakyRelu.

        Against onnxruntime 1.31's kernels, which look up a table: 0 of 160,000 differ.
        Source: onnxruntime docs/ContribOperators.md,
        contrib_ops/cpu/quantization/qlinear_activations.cc.
        """
        x, sx, zx, sy, zy = context.inputs(5)
        (source,), perm = common_source((x,))
        given: dict[str, Any] = {name: context.float_(name, 0.01) for name in attributes}
        real = context.op(op_type, [context.dequantize(source, sx, zx)], **given)
        return _finish(context, real, sy, zy, x, perm)

    return lower


@reading_rule_of_any("qlinear-concat", "com.microsoft::QLinearConcat")
def qlinear_concat(context: LoweringContext) -> Value:
    """``QLinearConcat(x…) -> Q(Concat(DQ(x)…))``; the parameters of the result come first.

    Against onnxruntime 1.31's kernel, which looks up a table per input: 0 of 62,000 differ.
    Source: onnxruntime docs/ContribOperators.md.
    """
    inputs = context.inputs(len(context.operands))
    if len(inputs) % 3 != 2 or len(inputs) < 5:
        raise context.fault(
            f"it has {len(inputs)} inputs", why="they are y_scale, y_zero_point, (x, scale, zero)…"
        )
    sy, zy, rest = inputs[0], inputs[1], inputs[2:]
    sources, perm = common_source(rest[::3])
    axis = context.int_("axis", 0)
    if perm:
        axis = perm[axis]
    pairs = zip(sources, rest[1::3], rest[2::3], strict=True)
    operands = [context.dequantize(x, s, z) for x, s, z in pairs]
    return _finish(context, context.op("Concat", operands, axis=axis), sy, zy, rest[0], perm)


@reading_rule(
    "qlinear-where",
    ("com.microsoft::QLinearWhere", "condition", "x", "sx", "zx", "y", "sy", "zy", "sz", "zz"),
)
def qlinear_where(context: LoweringContext) -> Value:
    """``QLinearWhere(condition, x, y) -> Q(Where(condition, DQ(x), DQ(y)))``.

    Against onnxruntime 1.31's kernel, which looks up tables: 0 of 48,000 differ.
    Source: onnxruntime docs/ContribOperators.md.
    """
    condition, x, sx, zx, y, sy, zy, sz, zz = context.inputs(9)
    operands = [condition, context.dequantize(x, sx, zx), context.dequantize(y, sy, zy)]
    return _finish(context, context.op("Where", operands), sz, zz, x, None)


@reading_rule("qlinear-softmax", ("com.microsoft::QLinearSoftmax", *_OF_ONE))
def qlinear_softmax(context: LoweringContext) -> Value:
    """``QLinearSoftmax(x) -> Q(Softmax(DQ(x)))``; ``axis`` means what it does in its ``opset``.

    Against onnxruntime 1.31's kernel, which divides sums from a table of exponentials: with the
    scale 1/256 that quantize_static gives it 0 of 48,000 differ; with 1/255 (a fused QDQ file)
    3.4 % by 1 LSB, 12 % in one trained attention. Source: onnxruntime docs/ContribOperators.md,
    contrib_ops/cpu/quantization/qlinear_softmax.cc.
    """
    x, sx, zx, sy, zy = context.inputs(5)
    flat = context.int_("opset", 13) < 13
    axis = context.int_("axis", 1 if flat else -1)
    real = context.dequantize(x, sx, zx)
    if flat == (context.main_opset < 13) or axis == -1:
        y = context.op("Softmax", [real], axis=axis)
    elif flat:  # one axis of all that follow, then back
        rows = context.op("Softmax", [context.op("Flatten", [real], axis=axis)], axis=-1)
        y = context.op("Reshape", [rows, context.op("Shape", [real])])
    else:
        raise context.refusal(
            f"its axis {axis} is one of opset {context.int_('opset', 13)}, "
            "the model's opset is older",
            f"Softmax of opset {context.main_opset} flattens all axes from {axis} on",
            "convert the model to opset 13 or newer",
        )
    return context.quantize(y, sy, zy, x, context.output)


@reading_rule("qlinear-reduce-mean", ("com.microsoft::QLinearReduceMean", *_OF_ONE))
def qlinear_reduce_mean(context: LoweringContext) -> Value:
    """``QLinearReduceMean(x) -> Q(ReduceMean(DQ(x)))``.

    onnxruntime 1.31 has no kernel for it on the CPU; the contract is the row's.
    Source: onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, sy, zy = context.inputs(5)
    axes = list(context.ints("axes", ()))
    operands = [context.dequantize(x, sx, zx)]
    given: dict[str, Any] = {"keepdims": int(context.flag("keepdims", default=True))}
    if axes and context.main_opset >= 18:
        operands.append(context.enter(np.array(axes, np.int64), "axes"))
    elif axes:
        given["axes"] = axes
    y = context.op("ReduceMean", operands, **given)
    return context.quantize(y, sy, zy, x, context.output)


RULES: tuple[Rule, ...] = (
    _binary("Add"),
    _binary("Mul"),
    qlinear_concat,
    qlinear_where,
    _unary("Sigmoid", "sigmoid"),
    _unary("LeakyRelu", "leaky-relu", "alpha"),
    qlinear_softmax,
    qlinear_reduce_mean,
)


# ---- the activations that onnxruntime fuses into other operators ---------------------------------

_PLAIN = ("Relu", "Tanh", "Sigmoid")
_WITH_PARAMETERS = {row.name: row for row in (LEAKY_RELU, HARD_SIGMOID)}


def activated(
    context: LoweringContext, kind: str, params: Sequence[float], x: Value, result: str
) -> Value:
    """Returns an activation of ``x``.

    Args:
        context: The node.
        kind: ONNX's name of it.
        params: Its parameters, in the order of onnxruntime's ``activation_params``.
        x: The tensor.
        result: Name of the result.

    Raises:
        NoNewForm: onnxruntime has no such fused activation.
    """
    if kind in _PLAIN:
        return context.op(kind, [x], result)
    if kind in _WITH_PARAMETERS:
        row = _WITH_PARAMETERS[kind]
        attributes: dict[str, Any] = dict(row.onnx[0].defaults)
        attributes.update(zip(row.fields, params, strict=False))
        return context.op(kind, [x], result, **attributes)
    if kind == "Clip" and len(params) == 2:
        return clipped(context, x, params[0], params[1], np.float32, result)
    raise context.refusal(
        f"the fused activation '{kind}' is unknown",
        f"known: {', '.join((*_PLAIN, *_WITH_PARAMETERS))}, Clip",
        "save the model without extended optimizations",
    )


def clipped(
    context: LoweringContext,
    x: Value,
    low: float,
    high: float,
    dtype: type[np.generic],
    result: str = "",
) -> Value:
    """Returns ``Clip(x, low, high)`` in the form of the model's opset."""
    if context.main_opset < 11:
        return context.op("Clip", [x], result, min=float(low), max=float(high))
    bounds = [context.enter(np.array(bound, dtype), "bound") for bound in (low, high)]
    return context.op("Clip", [x, *bounds], result)


SKIP = {True: "SkipLayerNormalization", False: "SkipSimplifiedLayerNormalization"}
"""The variant of a norm whose operand was added in the same node, by whether it takes the mean."""

WITH_BIAS = "+bias"
"""Behind the variant: a constant bias was added there, too."""

DATA = "@"
"""Behind that: the tensor that has the shape of the sum; the other one may be repeated. Behind the
variant of a Gelu, the tensor of the bias."""

BIAS_GELU = "com.microsoft::BiasGelu"
"""The variant of a Gelu to whose operand the same node adds a bias."""


def _skip_norm(*, centred: bool) -> Rule:
    """Returns the rule of SkipLayerNormalization, or of its form without a mean."""
    name = SKIP[centred]
    operands = ("x", "skip", "gamma", *(("beta?",) if centred else ()), "bias?")
    kebab = "skip-layer-normalization" if centred else "skip-simplified-layer-normalization"

    @reading_rule(kebab, (f"{MICROSOFT}::{name}", *operands))
    def lower(context: LoweringContext) -> Sequence[Value]:
        """``SkipLayerNormalization(x, skip, bias) -> LayerNormalization(x + skip + bias)``.

        Over the last axis; the sum is result 3.
        Source: onnxruntime docs/ContribOperators.md.
        """
        outputs = context.proto.output
        extra = [i for i in range(len(outputs)) if context.wants(i) and i not in (0, 3)]
        if extra:
            raise context.refusal(
                "its mean or deviation is a result",
                f"result {extra[0]} ('{outputs[extra[0]]}') is only of use in training",
                "export the model for inference",
            )
        x, skip, gamma, *more = context.inputs(len(operands))
        total, bias, beta = outputs[3] if context.wants(3) else "", more[-1], more[0]
        value = context.op("Add", [x, skip], "" if bias else total)
        if bias:
            value = context.op("Add", [value, bias], total)
        plain = "LayerNormalization" if centred else "SimplifiedLayerNormalization"
        variant = f"{name}{WITH_BIAS if bias else ''}{DATA}{context.proto.input[0]}"
        y = context.op(
            plain, [value, gamma, beta if centred else None], context.output,
            variant=variant, axis=-1, epsilon=context.float_("epsilon", 1e-12),
        )  # fmt: skip
        return [y, value] if total else [y]

    return lower


@reading_rule("bias-gelu", (f"{MICROSOFT}::BiasGelu", "a", "b"))
def bias_gelu(context: LoweringContext) -> Value:
    """``BiasGelu(a, b) -> Gelu(a + b)``.

    Source: onnxruntime docs/ContribOperators.md.
    """
    total = context.op("Add", context.inputs(2))
    variant = f"{BIAS_GELU}{DATA}{context.proto.input[1]}"
    return context.op("Gelu", [total], context.output, domain=MICROSOFT, variant=variant)


@reading_rule("fast-gelu", (f"{MICROSOFT}::FastGelu", "x", "bias?"))
def fast_gelu(context: LoweringContext) -> Value | None:
    """``FastGelu(x, bias) -> FastGelu(x + bias)``: the bits of ONNX's Gelu by tanh.

    So in onnxruntime 1.32, but of half floats. Source: onnxruntime docs/ContribOperators.md.
    """
    x, bias = context.inputs(2)
    variant = f"FastGelu{WITH_BIAS}{DATA}{context.proto.input[1]}" if bias else ""
    x = context.op("Add", [x, bias]) if bias else x
    return context.op("FastGelu", [x], context.output, domain=MICROSOFT, variant=variant)


NORM_RULES: tuple[Rule, ...] = (
    _skip_norm(centred=True),
    _skip_norm(centred=False),
    bias_gelu,
    fast_gelu,
)


# ---- recurrent -----------------------------------------------------------------------------------
# LSTM, GRU and RNN of batches first (``layout=1``), as those of steps first between Transposes.
#
# onnxruntime 1.32 has no kernel for ``layout=1``, and ONNX's reference leaves out lengths, clips
# and directions.


# ---- com.microsoft's RelativePositionBias, the bias of T5's attentions, as ONNX's Gathers --------

_MOST = 4096
"""The longest distance, and the most buckets, of which a table is made."""


@reading_rule(
    "relative-position-bias", ("com.microsoft::RelativePositionBias", "bias", "queries", "keys")
)
def relative_position_bias(context: LoweringContext) -> Value:
    """``RelativePositionBias(bias, queries, keys) -> Gather(bias, buckets of distances)``.

    A number per head and distance of two tokens, distances in buckets that grow with them.

    onnxruntime has a kernel for CUDA only. It takes logarithms of float32 at run time; the buckets
    here are those of exact arithmetic, in a table. The bias is stored by heads, against its shape.
    Source: onnxruntime docs/ContribOperators.md, contrib_ops/cuda/bert/relative_attn_bias_impl.cu,
    test/contrib_ops/relative_attention_bias_test.cc.
    """
    shape, reach = context.shape(0), context.int_("max_distance", 0)
    extents = () if shape is None else tuple(n for n in shape if isinstance(n, int))
    if shape is None or len(shape) != 2 or len(extents) != 2:
        raise context.refusal(
            "the extents of its bias are unknown",
            f"input 0 ('{context.proto.input[0]}') has the shape {shape}",
            "make it an initializer",
        )
    both, (buckets, heads) = context.flag("is_bidirectional"), extents
    side = buckets // 2 if both else buckets
    if not 0 < side // 2 < reach <= _MOST or side > _MOST:
        raise context.refusal(
            f"no table is made of {buckets} buckets up to distance {reach}",
            f"half of one side's have to be less than the distance, and both at most {_MOST}",
            "leave it to onnxruntime",
        )
    queries, keys = (_places(context, index) for index in (1, 2))
    column = context.op("Reshape", [queries, context.enter(np.array([-1, 1]), "column")])
    low, high = (context.enter(np.int64(n), "end") for n in (-reach, reach if both else 0))
    away = context.op("Sub", [keys, column])
    away = context.op("Min", [context.op("Max", [away, low]), high])
    index = context.op("Sub", [away, low])
    table = context.enter(_buckets(side, reach, both=both), "buckets")
    by_heads = context.enter(np.array([1, heads, buckets]), "heads")
    bias = context.op("Reshape", [context.operand(0), by_heads])
    chosen = context.op("Gather", [table, index])
    return context.op("Gather", [bias, chosen], context.output, axis=2)


def _places(context: LoweringContext, index: int) -> Value:
    """Returns the tensor of all positions below a length."""
    scalar = context.enter(np.zeros(0, np.int64), "scalar")
    length = context.op("Reshape", [context.operand(index), scalar])
    zero, one = (context.enter(np.int64(n), "step") for n in (0, 1))
    return context.op("Range", [zero, length, one])


def _buckets(side: int, reach: int, *, both: bool) -> NDArray[np.int64]:
    """Returns the bucket of every position of a key relative to its query, from -reach on.

    Args:
        side: How many buckets the keys on one side of a query have.
        reach: The distance from which on all are in the last of them.
        both: Keys behind a query have buckets of their own; otherwise that of distance 0.
    """
    starts = [*range(1, side // 2 + 1), *_starts(side, reach)]
    before = np.searchsorted(starts, np.arange(reach + 1), side="right")
    behind = before[1:] + side if both else before[:0]
    return np.concatenate([before[::-1], behind]).astype(np.int64)


def _starts(side: int, reach: int) -> list[int]:
    """Returns the least distance of each bucket that has several.

    Of ``exact = side // 2`` and ``wide = side - exact``, distance d is in bucket ``exact +
    floor(log(d / exact) / log(reach / exact) * wide)``, but none beyond the last.
    """
    exact = side // 2
    wide, starts = side - exact, list[int]()
    for step in range(1, wide):
        needed = reach**step * exact ** (wide - step)
        start = max(exact, int(exact * (reach / exact) ** (step / wide)) - 1)
        while start**wide < needed:
            start += 1
        starts.append(start)
    return starts


_BATCH_SECOND: Perm = (1, 0, 2)
_OPERANDS = (0, 5, 6)
"""The input, and what is carried at first."""

_RESULTS: Mapping[int, Perm] = {0: (2, 0, 1, 3), 1: _BATCH_SECOND, 2: _BATCH_SECOND}
"""From (steps, directions, batch, size) and (directions, batch, size) on."""


_STEPS_FIRST = (
    ("LSTM", "GRU", "RNN"),
    "x", "w", "r", "bias?", "lengths?", "first_hidden?", "first_cell?", "peepholes?",
)  # fmt: skip


@reading_rule("recurrent-of-batches", _STEPS_FIRST)
def steps_first(context: LoweringContext) -> list[Value] | None:
    """``LSTM(x, layout=1) -> Transpose(LSTM(Transpose(x)))``; so GRU and RNN, and all results.

    Source: ONNX LSTM-22, attribute ``layout``.
    """
    if not context.int_("layout", 0):
        return None
    operands = list(context.operands)
    for index in _OPERANDS:
        value = context.optional(index)
        if value is not None:
            operands[index] = transposed(context, value, _BATCH_SECOND)
    outputs = context.proto.output
    first = next(name for name in outputs if name)
    names = [context.maker.fresh(f"{first}.steps_first") if name else "" for name in outputs]
    given = context.same_attributes("layout")
    made = iter(context.several(context.op_type, operands, names, **given))
    return [
        transposed(context, next(made), _RESULTS[index], name)
        for index, name in enumerate(outputs)
        if name
    ]


RECURRENT_RULES: tuple[Rule, ...] = (steps_first, relative_position_bias)
