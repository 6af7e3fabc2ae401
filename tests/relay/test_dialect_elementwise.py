"""qnn.add and its relatives on Relay: no fused multiply-add, channels, tables, concatenate."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.graph.operator import NO_ATTRIBUTES
from qdqbridge.ops.attributes import AxisAttrs
from tests.dialect_contract import contract, every_code, params
from tests.relay.relay_cases import TARGETS, Cases, all_args, constant, scale_of, zero_of

ROWS = {"add": "Add", "subtract": "Sub", "mul": "Mul"}


@pytest.mark.parametrize("target", TARGETS, ids=["generic", "host"])
def test_products_are_not_fused_with_the_addition(target: str) -> None:
    """Sums that lie near a half show whether LLVM contracted ``a * sa + b * sb``."""
    a, b = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
    pair = a.astype(np.int8), b.astype(np.int8)
    cases = Cases(target)
    for numerator in (0.1, 0.3, 0.7):
        p, q = params("int8", numerator), params("int8", 2 * np.float32(numerator))
        for name in ("add", "subtract"):
            expected = contract(ROWS[name], NO_ATTRIBUTES, pair, (p, p), q)
            cases.add(f"qnn.{name}", [*pair, *all_args(p, p, q)], {}, expected)
    cases.check()


def test_float_operands_and_channels() -> None:
    rng = np.random.default_rng(2)
    py = params("int8", 0.05, 4)
    per_channel = params("int8", [0.01, 0.02, 0.03], [1, 2, 3], axis=1)
    x, y = every_code(rng, "int8", (2, 3, 5)), every_code(rng, "int8", (3, 5))
    real = rng.normal(size=(2, 3, 5)).astype(np.float32)
    real[0, 0, :2] = np.nan, np.inf
    cases = Cases()
    flat = per_channel.with_axis(0)
    for name in ("add", "mul"):
        row = ROWS[name]
        expected = contract(row, NO_ATTRIBUTES, (x, y), (per_channel, flat), py)
        attrs = {"lhs_axis": 1, "rhs_axis": 0}
        cases.add(f"qnn.{name}", [x, y, *all_args(per_channel, flat, py)], attrs, expected)
        for pair, types in (((real, x), (None, py)), ((x, real), (py, None))):
            expected = contract(row, NO_ATTRIBUTES, pair, types, py)
            cases.add(f"qnn.{name}", [*pair, *all_args(*types, py)], {}, expected)
    cases.check()


def test_power_is_a_table() -> None:
    rng = np.random.default_rng(3)
    pa, pb, py = params("uint8", 0.02, 3), params("int8", 0.03, -2), params("uint8", 0.04, 9)
    a, b = every_code(rng, "uint8", (3, 4, 50)), every_code(rng, "int8", (4, 1))
    wide, sixteen = params("int16", 0.001, 5), every_code(rng, "int16", (2, 50))
    cases = Cases()
    expected = contract("Pow", NO_ATTRIBUTES, (a, b), (pa, pb), py)
    cases.add("qnn.power", [a, b, *all_args(pa, pb, py)], {}, expected)
    two = np.asarray(2.5, np.float32)
    expected = contract("Pow", NO_ATTRIBUTES, (a, two), (pa, None), py)
    cases.add("qnn.power", [a, constant(two), *all_args(pa, None, py)], {}, expected)
    code = np.asarray([90], np.int8)
    expected = contract("Pow", NO_ATTRIBUTES, (sixteen, code), (wide, pb), wide)
    cases.add("qnn.power", [sixteen, constant(code), *all_args(wide, pb, wide)], {}, expected)
    cases.check()


def test_where_takes_the_parameters_of_the_result() -> None:
    rng = np.random.default_rng(4)
    pa, pb = params("uint8", 0.02, 3), params("uint8", 0.05, 120)
    a, b = every_code(rng, "uint8", (3, 4, 50)), every_code(rng, "uint8", (4, 1))
    condition = rng.integers(0, 2, (3, 1, 50)).astype(np.bool_)
    cases = Cases()
    for py in (pa, pb, params("uint8", 0.03, 9)):
        expected = contract("Where", NO_ATTRIBUTES, (condition, a, b), (None, pa, pb), py)
        cases.add("qnn.where", [condition, a, b, *all_args(pa, pb, py)], {}, expected)
    cases.check()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_concatenate(dtype: str) -> None:
    rng = np.random.default_rng(5)
    p = [params(dtype, scale, zero) for scale, zero in ((0.02, 3), (0.05, 1), (0.02, 3))]
    arrays = [every_code(rng, dtype, (2, n, 6)) for n in (1, 3, 4)]
    py = params(dtype, 0.02, 3)
    expected = contract("Concat", AxisAttrs(1), tuple(arrays), tuple(p), py)
    cases = Cases()
    joined = [tuple(scale_of(q) for q in p), tuple(zero_of(q) for q in p)]
    constants = [constant(array) for array in arrays[1:]]
    cases.add(
        "qnn.concatenate", [(arrays[0], *constants), *joined, scale_of(py), zero_of(py)],
        {"axis": -2}, expected,
    )
    cases.check()
