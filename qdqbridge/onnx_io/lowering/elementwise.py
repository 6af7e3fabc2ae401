"""com.microsoft's QLinearAdd, Mul, Concat, Where, Sigmoid, LeakyRelu and Softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qdqbridge.onnx_io.lowering.layout import Perm, common_source, transposed
from qdqbridge.onnx_io.lowering.site import LoweringSite

Lower = Callable[[LoweringSite], None]


def _finish(
    site: LoweringSite, real: str, scale: str, zero_point: str, like: str, perm: Perm | None
) -> None:
    """Quantizes, and turns the result where the operands were read before a transposition."""
    output = site.proto.output[0]
    stored = site.quantize(real, scale, zero_point, like, "" if perm else output)
    if perm:
        transposed(site, stored, perm, output)


def binary(op_type: str) -> Lower:
    """Returns the lowering of QLinearAdd or QLinearMul."""

    def lower(site: LoweringSite) -> None:
        """``Q(op(DQ(a), DQ(b)))``.

        Against onnxruntime 1.31's kernels, which round ``v + zy`` instead of ``v``: 1 LSB at
        midpoints where zy is odd (scales that are powers of two: 6.6 % of QLinearAdd's results,
        2.5 % of QLinearMul's; other scales 1 of 120,000; even zy 0). Source: onnxruntime
        docs/ContribOperators.md, core/mlas/lib/qladd.cpp, qlmul.cpp.
        """
        a, sa, za, b, sb, zb, sy, zy = (site.input(i) for i in range(8))
        (first, second), perm = common_source(site, (a, b))
        operands = [site.dequantize(first, sa, za), site.dequantize(second, sb, zb)]
        _finish(site, site.op(op_type, operands), sy, zy, a, perm)

    return lower


def unary(op_type: str, *attributes: str) -> Lower:
    """Returns the lowering of QLinearSigmoid or QLinearLeakyRelu."""

    def lower(site: LoweringSite) -> None:
        """``Q(op(DQ(x)))``.

        Against onnxruntime 1.31's kernels, which look up a table: 0 of 160,000 differ.
        Source: onnxruntime docs/ContribOperators.md,
        contrib_ops/cpu/quantization/qlinear_activations.cc.
        """
        x, sx, zx, sy, zy = (site.input(i) for i in range(5))
        (source,), perm = common_source(site, (x,))
        given: dict[str, Any] = {name: site.float_(name, 0.01) for name in attributes}
        real = site.op(op_type, [site.dequantize(source, sx, zx)], **given)
        _finish(site, real, sy, zy, x, perm)

    return lower


def concat(site: LoweringSite) -> None:
    """``Q(Concat(DQ(x)…))``; the parameters of the result come first.

    Against onnxruntime 1.31's kernel, which looks up a table per input: 0 of 62,000 differ.
    Source: onnxruntime docs/ContribOperators.md.
    """
    inputs = list(site.proto.input)
    if len(inputs) % 3 != 2:
        raise site.fault(
            f"it has {len(inputs)} inputs", why="they are y_scale, y_zero_point, (x, scale, zero)…"
        )
    sy, zy, rest = inputs[0], inputs[1], inputs[2:]
    sources, perm = common_source(site, rest[::3])
    axis = site.int_("axis", 0)
    if perm:
        axis = perm[axis]
    pairs = zip(sources, rest[1::3], rest[2::3], strict=True)
    operands = [site.dequantize(x, s, z) for x, s, z in pairs]
    _finish(site, site.op("Concat", operands, axis=axis), sy, zy, rest[0], perm)


def where(site: LoweringSite) -> None:
    """``Q(Where(condition, DQ(x), DQ(y)))``.

    Against onnxruntime 1.31's kernel, which looks up tables: 0 of 48,000 differ.
    Source: onnxruntime docs/ContribOperators.md.
    """
    condition, x, sx, zx, y, sy, zy, sz, zz = (site.input(i) for i in range(9))
    operands = [condition, site.dequantize(x, sx, zx), site.dequantize(y, sy, zy)]
    _finish(site, site.op("Where", operands), sz, zz, x, None)


def softmax(site: LoweringSite) -> None:
    """``Q(Softmax(DQ(x)))`` with the meaning of ``axis`` in the opset that ``opset`` names.

    Against onnxruntime 1.31's kernel, which divides sums from a table of exponentials: with the
    scale 1/256 that quantize_static gives it 0 of 48,000 differ; with 1/255 (a fused QDQ file)
    3.4 % by 1 LSB, 12 % in one trained attention. Source: onnxruntime docs/ContribOperators.md,
    contrib_ops/cpu/quantization/qlinear_softmax.cc.
    """
    x, sx, zx, sy, zy = (site.input(i) for i in range(5))
    flat = site.int_("opset", 13) < 13
    axis = site.int_("axis", 1 if flat else -1)
    real = site.dequantize(x, sx, zx)
    if flat == (site.main_opset < 13) or axis == -1:
        y = site.op("Softmax", [real], axis=axis)
    elif flat:  # one axis of all that follow, then back
        rows = site.op("Softmax", [site.op("Flatten", [real], axis=axis)], axis=-1)
        y = site.op("Reshape", [rows, site.op("Shape", [real])])
    else:
        raise site.refusal(
            f"its axis {axis} is one of opset {site.int_('opset', 13)}, the model's opset is older",
            f"Softmax of opset {site.main_opset} flattens all axes from {axis} on",
            "convert the model to opset 13 or newer",
        )
    site.quantize(y, sy, zy, x, site.proto.output[0])


def reduce_mean(site: LoweringSite) -> None:
    """``Q(ReduceMean(DQ(x)))``.

    onnxruntime 1.31 has no kernel for it on the CPU; the contract is the row's.
    Source: onnxruntime docs/ContribOperators.md.
    """
    x, sx, zx, sy, zy = (site.input(i) for i in range(5))
    axes = list(site.ints("axes", ()))
    operands = [site.dequantize(x, sx, zx)]
    given: dict[str, Any] = {"keepdims": int(site.flag("keepdims", default=True))}
    if axes and site.main_opset >= 18:
        operands.append(site.enter(np.array(axes, np.int64), "axes"))
    elif axes:
        given["axes"] = axes
    y = site.op("ReduceMean", operands, **given)
    site.quantize(y, sy, zy, x, site.proto.output[0])
