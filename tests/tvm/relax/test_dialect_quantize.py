"""qnn.quantize, qnn.dequantize and qnn.requantize."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tvm import relax

from qdqbridge.core.graph.numerics import codes, dequantize, multiplier, quantize, requantize
from qdqbridge.errors import GraphError
from qdqbridge.tvm.qnn.dialect.quantize import fixed_point
from qdqbridge.tvm.relax import dialect
from qdqbridge.tvm.relax.dialect import tensor_type
from tests.tvm.relax.dialect_cases import Array, Cases, every_code, params, scale_of, zero_of
from tests.tvm.relax.targets import TARGETS

CODES = ["int8", "uint8", "int16", "uint16"]


@pytest.mark.parametrize("target", TARGETS, ids=["unoptimized", "host"])
def test_halves_round_to_even_then_saturate(target: Any) -> None:
    x = np.asarray([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5, -128.5, -129.5]], np.float32)
    wanted = {
        "TONEAREST_EVEN": [0, 2, 2, 0, -2, -2, 126, 127, -128, -128],
        "TONEAREST": [1, 2, 3, -1, -2, -3, 127, 127, -128, -128],
        "UPWARD": [1, 2, 3, 0, -1, -2, 127, 127, -128, -128],
    }
    cases = Cases(target)
    p = params("int8", 1.0)
    for rounding, values in wanted.items():
        attrs = {"out_dtype": "int8", "rounding": rounding}
        expected = np.asarray([values], np.int8)
        cases.add("qnn.quantize", [x, scale_of(p), zero_of(p)], attrs, expected)
        nearly = np.asarray([[0.49999997, -0.49999997, 8388609.0, -8388609.0]], np.float32)
        cases.add(
            "qnn.quantize",
            [nearly, scale_of(p), zero_of(p)],
            {**attrs, "out_dtype": "int32"},
            np.asarray([[0, 0, 8388609, -8388609]], np.int32),
        )
    cases.check()


@pytest.mark.parametrize("dtype", CODES)
def test_quantize_and_dequantize(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(scale=200, size=(3, 5, 7)).astype(np.float32)
    x[0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    cases = Cases()
    for p in (params(dtype, 0.73, 5), params(dtype, [0.7, 1.3, 0.1, 2.0, 9.0], [1, 2, 3, 4, 0], 1)):
        attrs = {"axis": 1}
        args = [scale_of(p), zero_of(p)]
        cases.add("qnn.quantize", [x, *args], {**attrs, "out_dtype": dtype}, quantize(x, p))
        q = every_code(rng, dtype, (2, 5, 60))
        cases.add("qnn.dequantize", [q, *args], attrs, dequantize(q, p))
        with np.errstate(over="ignore"):
            half = dequantize(q, p).astype(np.float16)
        cases.add("qnn.dequantize", [q, *args], {**attrs, "out_dtype": "float16"}, half)
    cases.check()


@pytest.mark.parametrize("wide", ["int32", "int64"])
def test_requantize_multiplies_accumulators(wide: str) -> None:
    rng = np.random.default_rng(1)
    limit = 1 << (31 if wide == "int32" else 40)
    x = rng.integers(-limit, limit, (2, 4, 300)).astype(wide) // (1 << 20)
    x[0, 0, 0], x[0, 0, 1] = limit - 1, -limit
    x = x.astype(wide)
    cases = Cases()
    for dtype in CODES:
        p = params(dtype, 0.37, 3)
        for scales in (0.0123, [0.01, 0.002, 0.185, 0.3]):
            scale = np.asarray(scales, np.float32)
            column = scale.reshape(-1, 1) if scale.ndim else scale
            expected = requantize(x, multiplier(column, denominator=p.scale), p)
            args = [x, relax.const(scale), relax.const(0, "int32"), scale_of(p), zero_of(p)]
            cases.add("qnn.requantize", args, {"axis": 1, "out_dtype": dtype}, expected)
        args[2] = relax.const(-11, "int32")
        expected = requantize(x + 11, multiplier(column, denominator=p.scale), p)
        if wide == "int64":
            cases.add("qnn.requantize", args, {"axis": 1, "out_dtype": dtype}, expected)
    cases.check()


def test_requantize_of_codes_divides() -> None:
    cases = Cases()
    for source in CODES:
        for target in CODES:
            a, b = params(source, 0.031, 7), params(target, 0.0113, 101)
            x = codes(a).reshape(4, -1)
            expected = quantize(dequantize(x, a), b)
            args = [x, scale_of(a), zero_of(a), scale_of(b), zero_of(b)]
            cases.add("qnn.requantize", args, {"out_dtype": target}, expected)
    cases.check()


def _rounded(value: Fraction, rounding: str) -> int:
    floor = value.numerator // value.denominator
    rest = value - floor
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    up = {
        "UPWARD": True,
        "TONEAREST": value > 0,
        "TONEAREST_EVEN": floor % 2 == 1,
    }[rounding]
    return floor + up


@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "TONEAREST", "UPWARD"])
@pytest.mark.parametrize("compute", ["float32", "float64", "int64"])
def test_requantize_rounding_modes(compute: str, rounding: str) -> None:
    """A power of two as multiplier makes every compute type exact, ties included."""
    x: Array = np.arange(-600, 600, dtype=np.int32).reshape(2, -1)
    exact = [_rounded(Fraction(int(v), 4) + 0, rounding) + 3 for v in x.flat]
    expected = np.clip(exact, -128, 127).astype(np.int8).reshape(x.shape)
    p = params("int8", 2.0, 3)
    for target in TARGETS:
        cases = Cases(target)
        args = [x, relax.const(0.5, "float32"), relax.const(0, "int32"), scale_of(p), zero_of(p)]
        attrs = {"rounding": rounding, "compute_dtype": compute}
        cases.add("qnn.requantize", args, attrs, expected)
        cases.check()


def test_fixed_point_is_relays() -> None:
    """``(x * m + half) >> shift`` with 0.3 as a Q31 number m; see relay/qnn/utils.cc."""
    x = np.asarray([[1, 5, 10, 1000, 123456789, -5, -123456789]], np.int64)
    fixed, shift = fixed_point(np.asarray([0.3], np.float32), np.asarray([1.0], np.float32))
    ratio = Fraction(float(np.float32(0.3)))
    assert int(fixed[0]) == round(ratio * (1 << 31) * (1 << -int(shift[0])))
    total = 31 - int(shift[0])
    wanted = [(int(v) * int(fixed[0]) + (1 << (total - 1))) >> total for v in x.flat]
    cases = Cases()
    args = [x, *(relax.const(v, d) for v, d in ((0.3, "float32"), (0, "int32"), (1.0, "float32")))]
    attrs = {"rounding": "UPWARD", "compute_dtype": "int64", "out_dtype": "int32"}
    cases.add(
        "qnn.requantize", [*args, relax.const(0, "int32")], attrs, np.asarray([wanted], np.int32)
    )
    cases.check()


BAD: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("qnn.nothing", [], {}, "has no operator"),
    ("qnn.quantize", [1.0], {}, "1 arguments given"),
    ("qnn.quantize", ["float32", 1.0, 0], {}, "missing attributes ['out_dtype']"),
    ("qnn.quantize", ["float32", 1.0, 0], {"out_type": "int8"}, "unknown attributes ['out_type']"),
    ("qnn.quantize", ["int32", 1.0, 0], {"out_dtype": "int8"}, "data has dtype int32"),
    ("qnn.quantize", ["float32", 1.0, 0], {"out_dtype": "float16"}, "out_dtype is float16"),
    ("qnn.quantize", ["float32", 1, 0], {"out_dtype": "int8"}, "output_scale has dtype int32"),
    ("qnn.dequantize", ["int8", [1.0, 2.0], 0], {"axis": 1}, "2 entries for 3"),
    ("qnn.dequantize", ["int8", 1.0, 0], {"axis": 2}, "axis is 2 for 2 axes"),
    ("qnn.requantize", ["int32", 1.0, 0, [1.0, 2.0], 0], {}, "output_scale has 2 entries"),
    ("qnn.requantize", ["int32", 1.0, 0, 1.0, 0], {"rounding": "UP"}, "rounding is 'UP'"),
]


@pytest.mark.parametrize(("name", "args", "attrs", "reason"), BAD)
def test_wrong_calls_say_what_is_wrong(
    name: str, args: list[Any], attrs: dict[str, Any], reason: str
) -> None:
    def expression(value: Any) -> Any:
        if isinstance(value, str):
            return relax.Var("x", tensor_type([2, 3], value))
        array = np.asarray(value)
        return relax.const(array.astype(np.float32 if array.dtype.kind == "f" else np.int32))

    with pytest.raises(GraphError) as error:
        relax.BlockBuilder().normalize(
            dialect.call(name, [expression(value) for value in args], attrs)
        )
    assert reason in str(error.value)
