"""Situations of convolutions and matrix products: as QDQ, as QLinear operators, as integers.

Scales are powers of two, so that every sum is a number of float32 in any order of adding, and what
the two ways of writing say is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from qdqbridge.targets.conformance.case import CaseBody, ConformanceSituation, Node, body, const, op
from qdqbridge.targets.conformance.exact import Array, convolved, ends, spread, whole
from qdqbridge.targets.conformance.network_rows import QuantizationGrid, dq, q, ramp

PAIRS = (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"))
"""Types of activations and of weights that products have."""


@dataclass(frozen=True)
class ConvForm:
    """A convolution: shapes of its input and weights, and what it is given."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    pads: tuple[int, int] = (0, 0)
    stride: int = 1
    dilation: int = 1
    group: int = 1

    def attributes(self) -> dict[str, Any]:
        """Returns those of the node."""
        rank = len(self.x) - 2
        before, after = self.pads
        found: dict[str, Any] = {"kernel_shape": list(self.w[2:])}
        if any(self.pads):
            found["pads"] = [before] * rank + [after] * rank
        if self.stride > 1:
            found["strides"] = [self.stride] * rank
        if self.dilation > 1:
            found["dilations"] = [self.dilation] * rank
        if self.group > 1:
            found["group"] = self.group
        return found

    def sums(self, x: Array, w: Array) -> Array:
        """Returns the sums of products."""
        return convolved(
            x, w, pads=self.pads, stride=self.stride, dilation=self.dilation, group=self.group
        )


CONVS = {
    "plain": ConvForm((1, 2, 5, 5), (3, 2, 3, 3)),
    "padded": ConvForm((1, 2, 4, 4), (3, 2, 3, 3), pads=(1, 1)),
    "padded_at_the_end": ConvForm((1, 2, 4, 4), (3, 2, 2, 2), pads=(0, 1)),
    "strided": ConvForm((2, 2, 5, 5), (3, 2, 3, 3), pads=(1, 1), stride=2),
    "dilated": ConvForm((1, 2, 6, 6), (3, 2, 2, 2), dilation=3),
    "grouped": ConvForm((1, 4, 4, 4), (4, 2, 3, 3), pads=(1, 1), group=2),
    "depthwise": ConvForm((1, 3, 4, 4), (3, 1, 3, 3), pads=(1, 1), group=3),
    "pointwise": ConvForm((1, 4, 3, 3), (5, 4, 1, 1)),
    "one_axis": ConvForm((1, 2, 9), (3, 2, 3), pads=(1, 1)),
    "three_axes": ConvForm((1, 1, 3, 3, 3), (2, 1, 2, 2, 2)),
}


def _weights(kind: str, shape: tuple[int, ...], step: int = 29) -> Array:
    return ramp(kind, shape, step)


def _w_parameters(kind: str, count: int, per_channel: bool, zero: bool) -> tuple[Array, Array]:
    """Returns scales and zero points of weights; those of uint8 are never all zero."""
    low, high = ends(kind)
    if per_channel:
        scales = [2.0 ** (k % 3 - 4) for k in range(count)]
        zeros = [(low + high + 1) // 2 + (k if zero else 0) for k in range(count)]
        return const(scales, "float32"), const(zeros, kind)
    return const(0.125, "float32"), const((low + high + 1) // 2 + (3 if zero else 0), kind)


NEAR = Fraction(1, 1000)
"""How near a half no result of a case without ties comes."""


def _output(sums: Array, kind: str, *, ties: bool) -> QuantizationGrid:
    """Returns a grid on which most results of a product lie inside; without ties unless wanted.

    What is not near a half is the same if the quotient or the product of scales is rounded.
    """
    largest = max(abs(v) for v in sums.ravel())
    scale = Fraction(1, 32)
    while scale * 150 < largest:
        scale *= 2
    zero = 101 if kind == "uint8" else -11
    if ties:
        return QuantizationGrid(float(scale), zero, kind)
    # Scales of 7 bits, no power of two: results spread over all fractions, and one is found whose
    # are not near a half.
    for part in range(65, 128, 2):
        other = scale * part / 64
        if all(abs(v / other % 1 - Fraction(1, 2)) > NEAR for v in sums.ravel()):
            return QuantizationGrid(float(other), zero, kind)
    raise AssertionError("every scale has a result near a half")


BIASES = ("none", "dequantized", "dequantized_without_zero_point", "per_channel_float", "added")


def _case_of_conv(
    name: str, form: ConvForm, kinds: tuple[str, str], *, per_channel: bool = False,
    w_zero: bool = False, bias: str = "none", qlinear: bool = False, ties: bool = False,
) -> CaseBody:  # fmt: skip
    x, w = ramp(kinds[0], form.x, 41), _weights(kinds[1], form.w)
    before = QuantizationGrid(0.25, 117 if kinds[0] == "uint8" else -3, kinds[0])
    count = form.w[0]
    scales, zeros = _w_parameters(kinds[1], count, per_channel, w_zero)
    sums = form.sums(whole(x, before.zero), whole(w, zeros))
    channel = [1, count] + [1] * (len(form.x) - 2)
    units = spread(scales, (count,), 0).astype(object).reshape(channel)
    units = np.vectorize(lambda s: Fraction(float(s)) * Fraction(before.scale), otypes=[object])(
        units
    )
    b = const([k * 211 - 300 for k in range(count)], "int32")
    if bias != "none":
        sums = sums + b.astype(object).reshape(channel)
    real = sums * units
    after = _output(real, kinds[0], ties=ties)
    constants = before.constants("in") | after.constants("out")
    constants |= {"w": w, "w_scale": scales, "w_zero": zeros}
    found = {"y": after.nearest(real)}
    attributes = form.attributes()
    if qlinear:
        names = "x in_scale in_zero w w_scale w_zero out_scale out_zero"
        constants |= {} if bias == "none" else {"b": b}
        node = op("QLinearConv", names + ("" if bias == "none" else " b"), "y", **attributes)
        return body(name, [node], {"x": x}, constants, found)
    axis = {"axis": 0} if per_channel else {}
    nodes = [dq("x", "in", "r"), op("DequantizeLinear", "w w_scale w_zero", "v", **axis)]
    b_scale = const(
        np.vectorize(float)(units.ravel() if per_channel else units.ravel()[0]), "float32"
    )
    operands = "r v"
    if bias == "per_channel_float":
        constants["c"] = const(
            [float(b[k] * units.ravel()[k % units.size]) for k in range(count)], "float32"
        )
        operands += " c"
    elif bias == "added":
        values = [float(b[k] * units.ravel()[k % units.size]) for k in range(count)]
        constants["c"] = const(values, "float32").reshape(channel[1:])
    elif bias != "none":
        constants |= {"b": b, "b_scale": b_scale}
        names = "b b_scale"
        if bias == "dequantized":
            constants["b_zero"] = const(np.zeros(b_scale.shape), "int32")
            names += " b_zero"
        nodes.append(op("DequantizeLinear", names, "c", **axis))
        operands += " c"
    nodes.append(op("Conv", operands, "p" if bias == "added" else "f", **attributes))
    if bias == "added":
        nodes.append(op("Add", "p c", "f"))
    return body(name, [*nodes, q("f", "out", "y")], {"x": x}, constants, found)


def _forms(qlinear: bool) -> Iterator[CaseBody]:
    """Yields every form; the page of QLinearConv says nothing of ties: those are ``open_rows``."""
    for label, form in CONVS.items():
        for kinds in PAIRS:
            yield _case_of_conv(
                f"{label}_{kinds[0]}_{kinds[1]}", form, kinds, qlinear=qlinear, ties=not qlinear,
                w_zero=kinds[1] == "uint8",
            )  # fmt: skip


def _qdq_convs() -> Iterator[CaseBody]:
    yield from _forms(False)
    for kinds in PAIRS:
        for form in ("padded", "depthwise"):
            name = f"per_channel_{form}_{kinds[0]}_{kinds[1]}"
            yield _case_of_conv(
                name, CONVS[form], kinds, per_channel=True, w_zero=kinds[1] == "uint8", ties=True
            )


def _qlinear_convs() -> Iterator[CaseBody]:
    yield from _forms(True)


def _biases() -> Iterator[CaseBody]:
    for bias in BIASES[1:]:
        for per_channel in (False, True):
            for kinds in PAIRS[:2]:
                name = (
                    f"{bias}_{'per_channel' if per_channel else 'per_tensor'}_{kinds[0]}_{kinds[1]}"
                )
                yield _case_of_conv(
                    name, CONVS["padded"], kinds, per_channel=per_channel, bias=bias, ties=True
                )


def _qlinear_biases() -> Iterator[CaseBody]:
    for kinds in PAIRS:
        yield _case_of_conv(
            f"per_tensor_{kinds[0]}_{kinds[1]}",
            CONVS["padded"],
            kinds,
            bias="dequantized",
            qlinear=True,
        )


def _integer_convs() -> Iterator[CaseBody]:
    for label, form in CONVS.items():
        for zeros in (False, True):
            x, w = ramp("uint8", form.x, 41), _weights("uint8", form.w)
            x_zero, w_zero = (117, 131) if zeros else (0, 0)
            sums = form.sums(whole(x, x_zero), whole(w, w_zero))
            names = "x w" + (" x_zero w_zero" if zeros else "")
            constants = {"w": w}
            if zeros:
                constants |= {"x_zero": const(x_zero, "uint8"), "w_zero": const(w_zero, "uint8")}
            node = op("ConvInteger", names, "y", **form.attributes())
            found = {"y": sums.astype(np.int32)}
            name = f"{label}_{'zero_points' if zeros else 'no_zero_points'}"
            yield body(name, [node], {"x": x}, constants, found)


MATRICES = {
    "two_axes": ((3, 8), (8, 5)),
    "batches": ((2, 3, 8), (2, 8, 5)),
    "one_matrix_for_batches": ((2, 3, 8), (8, 5)),
    "one_row": ((1, 64), (64, 3)),
}


def _product(a: Array, b: Array) -> Array:
    return np.matmul(a, b)


def _integer_products() -> Iterator[CaseBody]:
    for label, (left, right) in MATRICES.items():
        for kinds in (*PAIRS, ("int8", "uint8")):
            a, b = ramp(kinds[0], left, 41), ramp(kinds[1], right, 29)
            for zeros in ("none", "tensor", "rows_and_columns"):
                if zeros == "rows_and_columns" and (len(left) > 2 or kinds[0] != "uint8"):
                    continue
                constants: dict[str, Array] = {"b": b}
                a_zero, b_zero = np.asarray(0), np.asarray(0)
                if zeros == "tensor":
                    a_zero = const(ends(kinds[0])[1] - 9, kinds[0])
                    b_zero = const(ends(kinds[1])[0] + 7, kinds[1])
                elif zeros == "rows_and_columns":
                    a_zero, b_zero = ramp(kinds[0], (left[0],), 91), ramp(kinds[1], (right[1],), 57)
                if zeros != "none":
                    constants |= {"a_zero": a_zero, "b_zero": b_zero}
                sums = _product(whole(a, a_zero, axis=0), whole(b, b_zero, axis=1))
                names = "a b" + ("" if zeros == "none" else " a_zero b_zero")
                found = {"y": sums.astype(np.int32)}
                name = f"{label}_{kinds[0]}_{kinds[1]}_{zeros}"
                yield body(name, [op("MatMulInteger", names, "y")], {"a": a}, constants, found)


def large_products() -> Iterator[CaseBody]:
    """Pairs of products that do not fit into 16 bits."""
    for kinds in PAIRS:
        for label, end in (("greatest", 1), ("least", 0)):
            # Instructions that add pairs of products in 16 bits saturate here, and nowhere else.
            a = np.full((2, 32), ends(kinds[0])[1], kinds[0])
            b = np.full((32, 3), ends(kinds[1])[end], kinds[1])
            sums = _product(whole(a), whole(b))
            name = f"{label}_{kinds[0]}_{kinds[1]}"
            node = op("MatMulInteger", "a b", "y")
            yield body(name, [node], {"a": a}, {"b": b}, {"y": sums.astype(np.int32)})


def _matrix_case(
    name: str, kinds: tuple[str, str], shapes: tuple[tuple[int, ...], tuple[int, ...]], *,
    per_column: bool = False, qlinear: bool = False, constant: bool = True, gemm: bool = False,
    bias: bool = False,
) -> CaseBody:  # fmt: skip
    a, b = ramp(kinds[0], shapes[0], 41), ramp(kinds[1], shapes[1], 29)
    before = QuantizationGrid(0.25, 117 if kinds[0] == "uint8" else -3, kinds[0])
    count = shapes[1][-1]
    scales, zeros = _w_parameters(kinds[1], count, per_column, kinds[1] == "uint8")
    sums = _product(whole(a, before.zero), whole(b, zeros, axis=b.ndim - 1))
    units = np.vectorize(lambda s: Fraction(float(s)) * Fraction(before.scale), otypes=[object])(
        scales
    )
    c = const([k * 211 - 300 for k in range(count)], "int32")
    real = (sums + c.astype(object) if bias else sums) * units
    after = _output(real, kinds[0], ties=True)
    constants = (
        before.constants("in") | after.constants("out") | {"w_scale": scales, "w_zero": zeros}
    )
    found = {"y": after.nearest(real)}
    # Gemm takes its second matrix turned, as frameworks write fully connected layers.
    stored_ = b.T.copy() if gemm else b
    inputs = {"a": a} if constant else {"a": a, "b": stored_}
    constants |= {"b": stored_} if constant else {}
    if qlinear:
        names = "a in_scale in_zero b w_scale w_zero out_scale out_zero"
        return body(name, [op("QLinearMatMul", names, "y")], inputs, constants, found)
    axis = {"axis": 0 if gemm else b.ndim - 1} if per_column else {}
    nodes: list[Node] = [
        dq("a", "in", "r"),
        op("DequantizeLinear", "b w_scale w_zero", "v", **axis),
    ]
    operands = "r v"
    if bias:
        flat = [float(u) for u in np.broadcast_to(units, (count,))]
        constants |= {"c": c, "c_scale": const(flat if per_column else flat[0], "float32")}
        nodes.append(
            op("DequantizeLinear", "c c_scale", "d", **({"axis": 0} if per_column else {}))
        )
    if gemm:
        nodes.append(op("Gemm", operands + (" d" if bias else ""), "f", transB=1))
    else:
        nodes.append(op("MatMul", operands, "p" if bias else "f"))
        nodes += [op("Add", "p d", "f")] if bias else []
    return body(name, [*nodes, q("f", "out", "y")], inputs, constants, found)


def _qdq_products() -> Iterator[CaseBody]:
    for label, shapes in MATRICES.items():
        for kinds in PAIRS:
            yield _matrix_case(f"{label}_{kinds[0]}_{kinds[1]}", kinds, shapes)
    for kinds in PAIRS:
        two = MATRICES["two_axes"]
        end = f"{kinds[0]}_{kinds[1]}"
        yield _matrix_case(f"two_inputs_{end}", kinds, two, constant=False)
        yield _matrix_case(f"per_column_{end}", kinds, two, per_column=True)
        yield _matrix_case(f"bias_{end}", kinds, two, bias=True)
        yield _matrix_case(f"bias_per_column_{end}", kinds, two, bias=True, per_column=True)
        yield _matrix_case(f"gemm_{end}", kinds, two, gemm=True, bias=True)
        yield _matrix_case(
            f"gemm_per_column_{end}", kinds, two, gemm=True, bias=True, per_column=True
        )


def _qlinear_products() -> Iterator[CaseBody]:
    for label, shapes in MATRICES.items():
        for kinds in PAIRS:
            yield _matrix_case(f"{label}_{kinds[0]}_{kinds[1]}", kinds, shapes, qlinear=True)
    for kinds in PAIRS:
        two = MATRICES["two_axes"]
        yield _matrix_case(
            f"two_inputs_{kinds[0]}_{kinds[1]}", kinds, two, qlinear=True, constant=False
        )


SUMS = "Sums of dequantized numbers, which float32 has in any order; then QuantizeLinear's formula."
NEVER = (
    "The production MUST never overflow. The accumulation may overflow if and only if in 32 bits."
)
PRODUCT = "For (x / y_scale), it is rounding to nearest ties to even."
ROWS = (
    ConformanceSituation("conv_qdq", "Conv-11 and QuantizeLinear-19", SUMS, _qdq_convs),
    ConformanceSituation("conv_qdq_bias", "Conv-11 and DequantizeLinear-19", SUMS, _biases),
    ConformanceSituation(
        "qlinearconv", "QLinearConv-10",
        "The convolution consumes a quantized input tensor, its scale and zero point, and computes "
        "the quantized output.", _qlinear_convs,
    ),
    ConformanceSituation(
        "qlinearconv_bias", "QLinearConv-10",
        "Bias must be quantized using scale = x_scale * w_scale and zero_point = 0.",
        _qlinear_biases,
    ),
    ConformanceSituation("convinteger", "ConvInteger-10", NEVER, _integer_convs),
    ConformanceSituation("matmulinteger", "MatMulInteger-10", NEVER, _integer_products),
    ConformanceSituation("matmulinteger_large", "MatMulInteger-10", NEVER, large_products),
    ConformanceSituation(
        "matmul_qdq", "MatMul-13, Gemm-13 and QuantizeLinear-19", SUMS, _qdq_products
    ),
    ConformanceSituation("qlinearmatmul", "QLinearMatMul-10", PRODUCT, _qlinear_products),
)  # fmt: skip
"""The situations."""
