"""qnn.add and its relatives, qnn.where, qnn.power and qnn.concatenate, on each host."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import AxisAttrs
from tests.tvm.dialect.contract import Host, contract, every_code, params

ROWS = {
    "add": "Add",
    "subtract": "Sub",
    "mul": "Mul",
    "divide": "Div",
    "minimum": "Min",
    "maximum": "Max",
    "prelu": "PRelu",
}


@pytest.mark.parametrize("target", [0, 1], ids=["plain", "fused"])
def test_binary_operators_agree_with_the_table(host: Host, target: int) -> None:
    rng = np.random.default_rng(1)
    cases = host.cases(host.targets[target])
    shapes = [((3, 4, 50), (3, 4, 50)), ((3, 1, 50), (40, 1)), ((1,), (2, 3, 400)), ((), (700,))]
    for name, row in ROWS.items():
        for dtype, (sa, sb) in zip(("int8", "uint8", "int16", "uint16"), shapes, strict=True):
            fine = 1.0 if dtype.endswith("8") else 1 / 256
            pa, pb = params(dtype, 0.031 * fine, 5), params(dtype, 0.0177 * fine, -3 + 100)
            py = params(dtype, 0.0213 * fine, 11)
            a, b = every_code(rng, dtype, sa), every_code(rng, dtype, sb)
            if row == "PRelu" and np.broadcast_shapes(sa, sb) != sa:
                continue  # a slope is no larger than its input
            expected = contract(row, NO_ATTRIBUTES, (a, b), (pa, pb), py)
            cases.add(f"qnn.{name}", [a, b, *host.all_args(pa, pb, py)], {}, expected)
    cases.check()


def test_ties_and_saturation_of_add(host: Host) -> None:
    """Exact halves round to even, and sums beyond the range stop at its ends."""
    p, q = params("int8", 0.5), params("int8", 1.0)
    a, b = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    a, b = a.astype(np.int8), b.astype(np.int8)
    total = np.rint((a.astype(np.float64) + b) * 0.5)
    cases = host.cases()
    cases.add("qnn.add", [a, b, *host.all_args(p, p, q)], {}, total.astype(np.int8))
    full = np.clip(a.astype(np.int64) + b, -128, 127).astype(np.int8)
    cases.add("qnn.add", [a, b, *host.all_args(q, q, q)], {}, full)
    cases.check()


@pytest.mark.parametrize("target", [0, 1], ids=["plain", "fused"])
def test_products_are_not_fused_with_the_addition(host: Host, target: int) -> None:
    """Sums that lie near a half show whether LLVM contracted ``a * sa + b * sb``."""
    a, b = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    pair = a.astype(np.int8), b.astype(np.int8)
    cases = host.cases(host.targets[target])
    for numerator in (0.1, 0.3, 0.7):
        p, q = params("int8", numerator), params("int8", 2 * np.float32(numerator))
        for name in ("add", "subtract"):
            expected = contract(ROWS[name], NO_ATTRIBUTES, pair, (p, p), q)
            cases.add(f"qnn.{name}", [*pair, *host.all_args(p, p, q)], {}, expected)
    cases.check()


def test_float_operands_and_channels(host: Host) -> None:
    rng = np.random.default_rng(2)
    py = params("int8", 0.05, 4)
    per_channel = params("int8", [0.01, 0.02, 0.03], [1, 2, 3], axis=1)
    x, y = every_code(rng, "int8", (2, 3, 5)), every_code(rng, "int8", (3, 5))
    real = rng.normal(size=(2, 3, 5)).astype(np.float32)
    real[0, 0, :2] = np.nan, np.inf
    cases = host.cases()
    flat = per_channel.with_axis(0)
    for name in ("add", "mul"):
        row = ROWS[name]
        expected = contract(row, NO_ATTRIBUTES, (x, y), (per_channel, flat), py)
        attrs = {"lhs_axis": 1, "rhs_axis": 0}
        cases.add(f"qnn.{name}", [x, y, *host.all_args(per_channel, flat, py)], attrs, expected)
        for pair, types in (((real, x), (None, py)), ((x, real), (py, None))):
            expected = contract(row, NO_ATTRIBUTES, pair, types, py)
            cases.add(f"qnn.{name}", [*pair, *host.all_args(*types, py)], {}, expected)
    cases.check()


def test_power_is_a_table(host: Host) -> None:
    rng = np.random.default_rng(3)
    pa, pb, py = params("uint8", 0.02, 3), params("int8", 0.03, -2), params("uint8", 0.04, 9)
    a, b = every_code(rng, "uint8", (3, 4, 50)), every_code(rng, "int8", (4, 1))
    wide, sixteen = params("int16", 0.001, 5), every_code(rng, "int16", (2, 50))
    cases = host.cases()
    expected = contract("Pow", NO_ATTRIBUTES, (a, b), (pa, pb), py)
    cases.add("qnn.power", [a, b, *host.all_args(pa, pb, py)], {}, expected)
    two = np.asarray(2.5, np.float32)
    expected = contract("Pow", NO_ATTRIBUTES, (a, two), (pa, None), py)
    cases.add("qnn.power", [a, host.const(two), *host.all_args(pa, None, py)], {}, expected)
    code = np.asarray([90], np.int8)
    expected = contract("Pow", NO_ATTRIBUTES, (sixteen, code), (wide, pb), wide)
    args = [sixteen, host.const(code), *host.all_args(wide, pb, wide)]
    cases.add("qnn.power", args, {}, expected)
    cases.check()


def test_where_takes_the_parameters_of_the_result(host: Host) -> None:
    rng = np.random.default_rng(4)
    pa, pb = params("uint8", 0.02, 3), params("uint8", 0.05, 120)
    a, b = every_code(rng, "uint8", (3, 4, 50)), every_code(rng, "uint8", (4, 1))
    condition = rng.integers(0, 2, (3, 1, 50)).astype(np.bool_)
    cases = host.cases()
    for py in (pa, pb, params("uint8", 0.03, 9)):
        expected = contract("Where", NO_ATTRIBUTES, (condition, a, b), (None, pa, pb), py)
        cases.add("qnn.where", [condition, a, b, *host.all_args(pa, pb, py)], {}, expected)
    cases.check()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_concatenate(host: Host, dtype: str) -> None:
    rng = np.random.default_rng(5)
    p = [params(dtype, scale, zero) for scale, zero in ((0.02, 3), (0.05, 1), (0.02, 3))]
    arrays = [every_code(rng, dtype, (2, n, 6)) for n in (1, 3, 4)]
    py = params(dtype, 0.02, 3)
    expected = contract("Concat", AxisAttrs(1), tuple(arrays), tuple(p), py)
    cases = host.cases()
    joined = [tuple(host.scale_of(q) for q in p), tuple(host.zero_of(q) for q in p)]
    constants = [host.const(array) for array in arrays[1:]]
    cases.add(
        "qnn.concatenate",
        [(arrays[0], *constants), *joined, host.scale_of(py), host.zero_of(py)],
        {"axis": -2},
        expected,
    )
    cases.check()
