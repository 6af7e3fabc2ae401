"""Relay's quantize, dequantize and requantize round halves to even; elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.numerics import codes, dequantize, multiplier, quantize, requantize
from tests.tvm.dialect.contract import contract, every_code, params
from tests.tvm.dialect.elementwise import ROWS
from tests.tvm.relay.relay_cases import TARGETS, Cases, all_args, const, scale_of, zero_of

CODES = ("int8", "uint8", "int16", "uint16")


@pytest.mark.parametrize("target", TARGETS)
def test_quantize_and_dequantize(target: str) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(target)
    for dtype in CODES:
        p = params(dtype, 0.5, 3)
        x = (np.arange(-600, 600, dtype=np.float32) * np.float32(0.25)).reshape(2, -1)
        cases.add(
            "qnn.quantize", [x, scale_of(p), zero_of(p)], {"out_dtype": dtype}, quantize(x, p)
        )
        y = every_code(rng, dtype, (3, 50))
        cases.add("qnn.dequantize", [y, scale_of(p), zero_of(p)], {}, dequantize(y, p))
        scales, zeros = [0.1, 0.37, 1.0], [3, 0, 5]
        q = params(dtype, scales, zeros, axis=0)
        f = (rng.standard_normal((3, 400)) * 30).astype(np.float32)
        attrs = {"axis": 0, "out_dtype": dtype}
        cases.add("qnn.quantize", [f, scale_of(q), zero_of(q)], attrs, quantize(f, q))
        cases.add("qnn.dequantize", [y, scale_of(q), zero_of(q)], {"axis": 0}, dequantize(y, q))
    cases.check()


@pytest.mark.parametrize("target", TARGETS)
def test_requantize(target: str) -> None:
    rng = np.random.default_rng(1)
    cases = Cases(target)
    for source in CODES:
        for result in CODES:
            a, b = params(source, 0.031, 7), params(result, 0.0113, 101)
            x = codes(a)[:: 1 if source.endswith("8") else 37].reshape(2, -1)
            cases.add(
                "qnn.requantize",
                [x, *all_args(a, b)],
                {"out_dtype": result},
                quantize(dequantize(x, a), b),
            )
    for wide in ("int32", "int64"):
        x = rng.integers(-(1 << 20), 1 << 20, (2, 3, 500)).astype(wide)
        scale = np.asarray([1e-5, 3.3e-4, 0.5], np.float32)
        for dtype in CODES:
            p = params(dtype, 0.037, 5)
            column = scale.reshape(-1, 1)
            expected = requantize(x, multiplier(column, denominator=p.scale), p)
            args = [x, const(scale, "float32"), const(0, "int32"), scale_of(p), zero_of(p)]
            cases.add("qnn.requantize", args, {"axis": 1, "out_dtype": dtype}, expected)
    ties = np.arange(-600, 600, dtype=np.int32)
    p = params("int8", 2.0, 3)
    args = [ties, const(0.5, "float32"), const(0, "int32"), scale_of(p), zero_of(p)]
    expected = np.clip(np.rint(ties / 4) + 3, -128, 127).astype(np.int8)
    for compute in ("float32", "float64", "int64"):
        cases.add("qnn.requantize", args, {"compute_dtype": compute}, expected)
    cases.check()


@pytest.mark.parametrize("target", TARGETS)
def test_binary(target: str) -> None:
    from qdqbridge.core.graph.operator import NO_ATTRIBUTES

    rng = np.random.default_rng(2)
    cases = Cases(target)
    shapes = [((3, 4, 50), (3, 4, 50)), ((3, 1, 50), (40, 1)), ((1,), (2, 3, 400)), ((), (700,))]
    for name, row in ROWS.items():
        for dtype, (sa, sb) in zip(CODES, shapes, strict=True):
            fine = 1.0 if dtype.endswith("8") else 1 / 256
            pa, pb = params(dtype, 0.031 * fine, 5), params(dtype, 0.0177 * fine, 97)
            py = params(dtype, 0.0213 * fine, 11)
            a, b = every_code(rng, dtype, sa), every_code(rng, dtype, sb)
            if row == "PRelu" and np.broadcast_shapes(sa, sb) != sa:
                continue  # a slope is no larger than its input
            expected = contract(row, NO_ATTRIBUTES, (a, b), (pa, pb), py)
            cases.add(f"qnn.{name}", [a, b, *all_args(pa, pb, py)], {}, expected)
    p8, p16, py = params("uint8", 0.031, 5), params("int16", 0.0177, 0), params("int8", 0.02, 1)
    a, b = every_code(rng, "uint8", (4, 64)), every_code(rng, "int16", (4, 64))
    f = rng.standard_normal((4, 64)).astype(np.float32)
    for x, y, px, pz in ((a, b, p8, p16), (a, f, p8, None), (f, a, None, p8)):
        expected = contract("Add", NO_ATTRIBUTES, (x, y), (px, pz), py)
        node = cases.add("qnn.add", [x, y, *all_args(px, pz, py)], {"out_dtype": "int8"}, expected)
        assert node.op.name == "qnn.qdq_add"
    cases.check()


def test_what_relay_cannot_carry_has_another_name() -> None:
    p, q = params("uint16", 0.1, 3), params("int8", 0.1, 3)
    x16: Any = np.zeros((1, 2, 2), np.uint16)
    x8: Any = np.zeros((1, 2, 2), np.int8)
    cases = Cases()
    names = [
        cases.add(name, args, attrs, x8).op.name
        for name, args, attrs in (
            ("qnn.requantize", [x16, *all_args(p, q)], {"out_dtype": "int8"}),
            ("qnn.requantize", [x8, *all_args(q, q)], {"out_dtype": "int8"}),
            (
                "qnn.quantize",
                [x8.astype("float32"), *all_args(q)],
                {"out_dtype": "int8", "rounding": "UPWARD"},
            ),
            ("qnn.softmax", [x16, *all_args(p, p)], {"axis": [1, 2]}),
            ("qnn.softmax", [x16, *all_args(p, p)], {}),
        )
    ]
    assert names == [
        "qnn.qdq_requantize",
        "qnn.requantize",
        "qnn.qdq_quantize",
        "qnn.qdq_softmax",
        "qnn.softmax",
    ]
