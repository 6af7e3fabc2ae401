"""Every situation, and every case of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from math import ceil, floor

import numpy as np
from onnx import TensorProto

from qdqbridge.targets.conformance import network_rows, product_rows, quantize_rows
from qdqbridge.targets.conformance.case import (
    CaseBody,
    ConformanceCase,
    ConformanceSituation,
    body,
    const,
    op,
)
from qdqbridge.targets.conformance.exact import (
    TYPES,
    Array,
    convolved,
    ends,
    fractions_of,
    nearest,
    quantized,
    whole,
)
from qdqbridge.targets.conformance.network_rows import BYTES, ramp

# ---- Situations in which ONNX's text leaves a choice: each reading of it, and what comes of it ---


HALF = Fraction(1, 2)


def _up(value: Fraction) -> int:
    return floor(value + HALF)


def _away(value: Fraction) -> int:
    return floor(value + HALF) if value > 0 else ceil(value - HALF)


ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "Ties to even, as QuantizeLinear and QLinearMatMul say": round,
    "Ties away from zero": _away,
    "Ties upwards": _up,
}


def _qlinear_ties() -> Iterator[CaseBody]:
    for kind in BYTES:
        for size in (1, 2):
            x = ramp(kind, (1, 2, 5, 5), 41)
            signs = [(k % 3 - 1) * 64 for k in range(6 * size * size)]  # every second sum is a tie
            w = const(signs, "int8").reshape(3, 2, size, size)
            zero = 117 if kind == "uint8" else -3
            sums = convolved(whole(x, zero), whole(w))
            unit = Fraction(1, 128)
            allowed: list[tuple[str, Array]] = []
            low, high = ends(kind)
            for reading, rounded in ROUNDINGS.items():
                found = [min(max(rounded(v * unit) + zero, low), high) for v in sums.ravel()]
                allowed.append((reading, const(found, kind).reshape(sums.shape)))
            constants = {
                "s": const(0.25, "float32"), "z": const(zero, kind), "w": w,
                "ws": const(0.125, "float32"), "wz": const(0, "int8"),
                "ys": const(4, "float32"),
            }  # fmt: skip
            node = op("QLinearConv", "x s z w ws wz ys z", "y")
            yield body(f"{kind}_{size}x{size}", [node], {"x": x}, constants, {"y": allowed})


def _halves_before_23() -> Iterator[CaseBody]:
    for kind in (*BYTES, "int16"):
        for opset in (19, 21):
            if kind == "int16" and opset < 21:
                continue
            x = const([k * 0.1 + 0.05 for k in range(-90, 90)], "float16")
            scale, zero = const(0.1, "float16"), const(3, kind)
            allowed = [
                (reading, quantized(x, scale, zero, kind, precision=floats))
                for reading, floats in (
                    ("The division is of float32", "float32"),
                    ("The division is of float16, as opset 23 says", "float16"),
                )
            ]
            node = op("QuantizeLinear", "x scale zero", "y")
            constants = {"scale": scale, "zero": zero}
            yield body(
                f"{kind}_opset{opset}", [node], {"x": x}, constants, {"y": allowed}, opset=opset
            )


def _large_int32() -> Iterator[CaseBody]:
    for to, number, steps in (
        ("int16", 1.1 * 2**10, [16778291, 16780543, -16781671, 16782797, -16786177]),
        ("int8", 1.1 * 2**18, [16868967, 17157325, -17445685, 18022401, -19464191]),
    ):
        scale = const(number, "float32")
        x, zero = const(steps, "int32"), const(0, to)
        short = np.asarray([float(nearest(Fraction(v), "float32")) for v in steps])
        allowed = [
            ("Integers become float32, then they are divided", quantized(short, scale, zero, to)),
            ("The quotient is rounded once", quantized(x, scale, zero, to)),
        ]
        constants = {"scale": scale, "zero": zero}
        node = op("QuantizeLinear", "x scale zero", "y")
        yield body(to, [node], {"x": x}, constants, {"y": allowed}, opset=23)


def _products(x: list[int], scale: Array, to: str) -> Array:
    values = [float(nearest(v * Fraction(float(scale)), to)) for v in map(Fraction, x)]
    return np.asarray(values).astype(TYPES[to])


def _large_differences() -> Iterator[CaseBody]:
    steps = [2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**30 + 33, 2**31 - 1, -(2**31) + 1, 7, -3]
    for number in (0.1, 0.7, 3.0):
        scale = const(number, "float32")
        short = [int(nearest(Fraction(v), "float32")) for v in steps]
        allowed = [
            (
                "Integers become float32, then they are multiplied",
                _products(short, scale, "float32"),
            ),
            ("The product is rounded once", _products(steps, scale, "float32")),
        ]
        node = op("DequantizeLinear", "x scale", "y")
        name = f"scale_{str(number).replace('.', '_')}"
        yield body(name, [node], {"x": const(steps, "int32")}, {"scale": scale}, {"y": allowed})


def _int32_zero_points() -> Iterator[CaseBody]:
    steps, scale = list(range(-9, 10)), const(0.25, "float32")
    for zero in (1, -7, 1000):
        allowed = [
            (
                "The formula: the zero point is subtracted",
                _products([v - zero for v in steps], scale, "float32"),
            ),
            ("There is no zero point: it is not looked at", _products(steps, scale, "float32")),
        ]
        node = op("DequantizeLinear", "x scale zero", "y")
        constants = {"scale": scale, "zero": const(zero, "int32")}
        name = f"zero_{str(zero).replace('-', 'minus_')}"
        yield body(name, [node], {"x": const(steps, "int32")}, constants, {"y": allowed})


def _scales_to_other_types() -> Iterator[CaseBody]:
    for kind in BYTES:
        x, scale = ramp(kind, (256,), 1), const(0.1, "float32")
        numbers = [int(v) for v in x]
        short = const(float(scale), "float16")
        wide = _products(numbers, scale, "float32")
        twice = [float(nearest(v, "float16")) for v in fractions_of(wide)]
        allowed = [
            ("The product is rounded once, to float16", _products(numbers, scale, "float16")),
            (
                "The scale becomes float16, then it is multiplied",
                _products(numbers, short, "float16"),
            ),
            ("The product of float32 becomes float16", const(twice, "float16")),
        ]
        node = op("DequantizeLinear", "x scale", "y", output_dtype=TensorProto.FLOAT16)
        yield body(kind, [node], {"x": x}, {"scale": scale}, {"y": allowed}, opset=23)


def _data_to_other_types() -> Iterator[CaseBody]:
    for kind in (*BYTES, "int16"):
        scale, zero = const(0.1, "float16"), const(3, kind)
        near = [1 + m * 2.0**-14 for m in range(-9, 10)]  # a half of the scale away, or nearly
        every = [(k + 0.5) * float(scale) * n for k in range(1, 60) for n in near]
        x = const(every, "float32")
        short = x.astype(np.float16)
        allowed = [
            ("Data become float16, then they are divided", quantized(short, scale, zero, kind)),
            ("The quotient is rounded once, to float16", quantized(x, scale, zero, kind)),
        ]
        constants = {"scale": scale, "zero": zero}
        node = op("QuantizeLinear", "x scale zero", "y")
        yield body(kind, [node], {"x": x}, constants, {"y": allowed}, opset=23)


OPEN_ROWS = (
    ConformanceSituation(
        "qlinearconv_ties", "QLinearConv-10", "The page says nothing of how results are rounded.",
        _qlinear_ties,
    ),
    ConformanceSituation(
        "quantize_float16_before_opset_23", "QuantizeLinear-19 and 21",
        "Nothing says in which precision halves are divided.", _halves_before_23,
    ),
    ConformanceSituation(
        "quantize_large_int32", "QuantizeLinear-23",
        "The type of y_scale determines the precision of the division; nothing says if integers "
        "are rounded before it.", _large_int32,
    ),
    ConformanceSituation(
        "dequantize_large_int32", "DequantizeLinear-13",
        "Nothing says if the difference is rounded before the product.", _large_differences,
    ),
    ConformanceSituation(
        "dequantize_int32_zero_point", "DequantizeLinear-13",
        "There's no zero point (zero point is supposed to be 0); nothing says what another "
        "one does.",
        _int32_zero_points,
    ),
    ConformanceSituation(
        "dequantize_scale_to_float16", "DequantizeLinear-23",
        "The output type determines the precision of the multiplication; nothing says when the "
        "scale is rounded.", _scales_to_other_types,
    ),
    ConformanceSituation(
        "quantize_float32_by_float16", "QuantizeLinear-23",
        "The type of y_scale determines the precision of the division; nothing says if data are "
        "rounded before it.", _data_to_other_types,
    ),
)  # fmt: skip
"""The situations."""


# ---- Every situation, and every case of it -------------------------------------------------------


SITUATIONS: tuple[ConformanceSituation, ...] = (
    *quantize_rows.ROWS,
    *quantize_rows.DEQUANTIZED_ROWS,
    *network_rows.ROWS,
    *product_rows.ROWS,
    *OPEN_ROWS,
)
"""All of them; those of ``open_rows`` are those in which the text leaves a choice."""


@cache
def cases() -> tuple[ConformanceCase, ...]:
    """Returns all cases, the situations' one after the other."""
    return tuple(ConformanceCase(each, made) for each in SITUATIONS for made in each.bodies())
