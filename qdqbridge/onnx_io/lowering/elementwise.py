"""com.microsoft's QLinearAdd, Mul, Concat, Where, Sigmoid, LeakyRelu and Softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.onnx_io.lowering.context import LoweringContext, Perm, common_source, transposed

Lower = Callable[[LoweringContext], None]


def _finish(
    context: LoweringContext, real: str, scale: str, zero_point: str, like: str, perm: Perm | None
) -> None:
    """Quantizes, and turns the result where the operands were read before a transposition."""
    output = context.proto.output[0]
    stored = context.quantize(real, scale, zero_point, like, "" if perm else output)
    if perm:
        transposed(context, stored, perm, output)


def binary(op_type: str) -> Lower:
    """Returns the lowering of QLinearAdd or QLinearMul."""

    def lower(context: LoweringContext) -> None:
        """``Q(op(DQ(a), DQ(b)))``.

        Against onnxruntime 1.31's kernels, which round ``v + zy`` instead of ``v``: 1 LSB at
        midpoints where zy is odd (scales that are powers of two: 6.6 % of QLinearAdd's results,
        2.5 % of QLinearMul's; other scales 1 of 120,000; even zy 0). Source: onnxruntime
        docs/ContribOperators.md, core/mlas/lib/qladd.cpp, qlmul.cpp.
        """
        a, sa, za, b, sb, zb, sy, zy = (context.input(i) for i in range(8))
        (first, second), perm = common_source(context, (a, b))
        operands = [context.dequantize(first, sa, za), context.dequantize(second, sb, zb)]
        _finish(context, context.op(op_type, operands), sy, zy, a, perm)

    return lower


def unary(op_type: str, *attributes: str) -> Lower:
    """Returns the lowering of QLinearSigmoid or QLinearLeakyRelu."""

    def lower(context: LoweringContext) -> None:
        """``Q(op(DQ(x)))``.

        Against onnxruntime 1.31's kernels, which look up a table: 0 of 160,000 differ.
        Source: onnxruntime docs/ContribOperators.md,
        contrib_ops/cpu/quantization/qlinear_activations.cc.
        """
        x, sx, zx, sy, zy = (context.input(i) for i in range(5))
        (source,), perm = common_source(context, (x,))
        given: dict[str, Any] = {name: context.float_(name, 0.01) for name in attributes}
        real = context.op(op_type, [context.dequantize(source, sx, zx)], **given)
        _finish(context, real, sy, zy, x, perm)

    return lower


def concat(context: LoweringContext) -> None:
    """``Q(Concat(DQ(x)…))``; the parameters of the result come first.

    Against onnxruntime 1.31's kernel, which looks up a table per input: 0 of 62,000 differ.
    Source: onnxruntime docs/ContribOperators.md.
    """
    inputs = list(context.proto.input)
    if len(inputs) % 3 != 2:
        raise context.fault(
            f"it has {len(inputs)} inputs", why="they are y_scale, y_zero_point, (x, scale, zero)…"
        )
    sy, zy, rest = inputs[0], inputs[1], inputs[2:]
    sources, perm = common_source(context, rest[::3])
    axis = context.int_("axis", 0)
    if perm:
        axis = perm[axis]
    pairs = zip(sources, rest[1::3], rest[2::3], strict=True)
    operands = [context.dequantize(x, s, z) for x, s, z in pairs]
    _finish(context, context.op("Concat", operands, axis=axis), sy, zy, rest[0], perm)


def where(context: LoweringContext) -> None:
    """``Q(Where(condition, DQ(x), DQ(y)))``.

    Against onnxruntime 1.31's kernel, which looks up tables: 0 of 48,000 differ.
    Source: onnxruntime docs/ContribOperators.md.
    """
    condition, x, sx, zx, y, sy, zy, sz, zz = (context.input(i) for i in range(9))
    operands = [condition, context.dequantize(x, sx, zx), context.dequantize(y, sy, zy)]
    _finish(context, context.op("Where", operands), sz, zz, x, None)


def softmax(context: LoweringContext) -> None:
    """``Q(Softmax(DQ(x)))`` with the meaning of ``axis`` in the opset that ``opset`` names.

    Against onnxruntime 1.31's kernel, which divides sums from a table of exponentials: with the
    scale 1/256 that quantize_static gives it 0 of 48,000 differ; with 1/255 (a fused QDQ file)
    3.4 % by 1 LSB, 12 % in one trained attention. Source: onnxruntime docs/ContribOperators.md,
    contrib_ops/cpu/quantization/qlinear_softmax.cc.
    """
    x, sx, zx, sy, zy = (context.input(i) for i in range(5))
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
    context.quantize(y, sy, zy, x, context.proto.output[0])


def reduce_mean(context: LoweringContext) -> None:
    """``Q(ReduceMean(DQ(x)))``.

    onnxruntime 1.31 has no kernel for it on the CPU; the contract is the row's.
    Source: onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, sy, zy = (context.input(i) for i in range(5))
    axes = list(context.ints("axes", ()))
    operands = [context.dequantize(x, sx, zx)]
    given: dict[str, Any] = {"keepdims": int(context.flag("keepdims", default=True))}
    if axes and context.main_opset >= 18:
        operands.append(context.enter(np.array(axes, np.int64), "axes"))
    elif axes:
        given["axes"] = axes
    y = context.op("ReduceMean", operands, **given)
    context.quantize(y, sy, zy, x, context.proto.output[0])
