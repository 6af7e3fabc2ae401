"""com.microsoft's QLinearAdd, Mul, Concat, Where, Sigmoid, LeakyRelu and Softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import (
    LoweringContext,
    Perm,
    common_source,
    reading_rule,
    reading_rule_of_any,
    transposed,
)

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
