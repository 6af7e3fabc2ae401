"""Kernels of operators of two operands: every formula, broadcasting, parameters, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tvm.relax.kernels.binary import (
    LINEAR,
    PRODUCT,
    BinaryKernel,
    match_binary,
)
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.epilogues import fused_operators
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand

SHAPES = [
    ((1, 7, 5, 3), (1, 7, 5, 3)),
    ((2, 64), (2, 64)),
    ((1, 5, 6, 24), (1, 1, 1, 24)),
    ((2, 3, 4, 33), (2, 1, 1, 33)),
    ((3, 1, 70), (1, 4, 70)),
    ((5, 1), (1, 9)),
    ((100,), (3, 100)),
    ((1, 1), (1, 1)),
]
ZEROS = {"uint8": (0, 1, 127, 255, 128), "int8": (0, -128, 127, -1, 5)}
OPS = ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu")


def _params(rng: np.random.Generator, dtype: str) -> QuantParams:
    scale = rng.choice([0.1, 0.25, 1 / 255, float(rng.uniform(1e-3, 0.2))])
    return params(dtype, scale, int(rng.choice(ZEROS[dtype])))


def _operand(rng: np.random.Generator, dtype: str, shape: Any, *, fixed: bool = False) -> Operand:
    if dtype == "float32":
        return Operand(rng.normal(0, 3, shape).astype(np.float32), None, fixed)
    return Operand(every_code(rng, dtype, shape), _params(rng, dtype), fixed)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_every_operator_broadcasts(cpu: Cpu) -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_binary, cpu)
    for i, op in enumerate(OPS):
        shapes = SHAPES[:3] if op == "PRelu" else SHAPES
        for a, b in shapes if cpu == HOST else shapes[i % 3 :: 3]:
            dtypes = ("uint8", "int8") if i % 2 else ("int8", "int8")
            operands = [_operand(rng, dtypes[0], a), _operand(rng, dtypes[1], b)]
            cases.add(op, NO_ATTRIBUTES, operands, _params(rng, dtypes[1]))
    cases.check()


def test_floats_and_constants() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_binary)
    for op in ("Add", "Sub", "Mul", "Div"):
        for kinds, fixed in (
            (("uint8", "float32"), (0, 0)),
            (("float32", "int8"), (0, 0)),
            (("uint8", "float32"), (0, 1)),
            (("float32", "uint8"), (1, 0)),
            (("uint8", "uint8"), (1, 0)),
            (("int8", "uint8"), (0, 1)),
        ):
            shapes = ((2, 5, 40), (1, 1, 40))
            operands = [
                _operand(rng, kind, shape, fixed=bool(f))
                for kind, shape, f in zip(kinds, shapes, fixed, strict=True)
            ]
            kernel = cases.add(op, NO_ATTRIBUTES, operands, _params(rng, "uint8"))
            assert kernel is not None and len(kernel.inputs) == 2 - sum(fixed)
    cases.check()


def test_infinities_and_nan_saturate() -> None:
    values = np.asarray([[np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-42, 0, -0.0]], np.float32)
    cases = Cases(match_binary)
    for op in ("Add", "Mul", "Div"):
        for z in (0, 128, 255):
            codes = Operand(
                np.asarray([[7, 9, 0, 200, 1, 3, 255, 128]], np.uint8), params("uint8", 0.05, 128)
            )
            cases.add(op, NO_ATTRIBUTES, [codes, Operand(values)], params("uint8", 0.1, z))
    cases.check()


def test_per_channel_constants_and_narrow_ranges() -> None:
    rng = np.random.default_rng(3)
    cases = Cases(match_binary)
    wide = params("int8", rng.uniform(0.01, 0.1, 24), rng.integers(-9, 9, 24), axis=1)
    channels = Operand(every_code(rng, "int8", (1, 24, 1, 1)), wide, fixed=True)
    data = _operand(rng, "uint8", (2, 24, 3, 5))
    narrow = params("uint8", 0.02, 30).with_range(30, 201)
    for last in (False, True):
        for op in ("Add", "Mul"):
            cases.add(op, NO_ATTRIBUTES, [data, channels], narrow, last=last)
            cases.add(
                op, NO_ATTRIBUTES, [data, _operand(rng, "uint8", (2, 24, 1, 1))], narrow, last=last
            )
    cases.check()


def test_long_rows_are_shared_between_threads() -> None:
    rng = np.random.default_rng(4)
    cases = Cases(match_binary, threads=2)
    for a, b in (
        ((1, 50_001), (1, 50_001)),
        ((3, 40_001), (1, 40_001)),
        ((700, 65), (1, 65)),
        ((2, 40_000), (2, 1)),
    ):
        cases.add(
            "Add",
            NO_ATTRIBUTES,
            [_operand(rng, "uint8", a), _operand(rng, "uint8", b)],
            _params(rng, "uint8"),
        )
    cases.check()


@pytest.mark.parametrize("threads", [1, 2])
def test_open_batches(threads: int) -> None:
    rng = np.random.default_rng(7)
    cases = Cases(match_binary, threads=threads, opened=True)
    for a, b in (
        ((3, 5, 40), (3, 5, 40)),
        ((3, 7, 20), (1, 1, 20)),
        ((4,), (4,)),
        ((2, 9), (2, 1)),
        ((5, 3, 8), (3, 8)),
    ):
        cases.add(
            "Add",
            NO_ATTRIBUTES,
            [_operand(rng, "uint8", a), _operand(rng, "int8", b)],
            _params(rng, "uint8"),
        )
    cases.check()


def test_cheap_formulas_are_taken_where_they_are_exact() -> None:
    rng = np.random.default_rng(5)
    found = {LINEAR: 0, PRODUCT: 0}
    for _ in range(20):
        for op in ("Add", "Mul"):
            a, b, y = (
                params("uint8", float(rng.uniform(0.01, 0.1)), int(rng.integers(0, 256)))
                for _ in range(3)
            )
            cases = Cases(match_binary)
            operands = [Operand(every_code(rng, "uint8", (1, 9)), p) for p in (a, b)]
            kernel = cases.add(op, NO_ATTRIBUTES, operands, y)
            assert kernel is not None and isinstance(kernel.description, BinaryKernel)
            if kernel.description.formula in found:
                found[kernel.description.formula] += 1
    if HOST.fuses:
        assert min(found.values()) >= 15, found


def test_a_formula_that_differs_anywhere_is_refused() -> None:
    tenth = params("uint8", 0.1, 0)
    wanted = fused_operators.contract(BY_NAME["Add"], tenth, tenth, params("uint8", 0.2, 0))
    halves = np.add.outer(np.arange(256), np.arange(256)) / 2
    assert (wanted != np.clip(np.rint(halves), 0, 255)).any()  # float32 noise decides the ties
    assert fused_operators.linear(BY_NAME["Add"], tenth, tenth, params("uint8", 0.2, 0)) is None


def test_what_is_refused() -> None:
    rng = np.random.default_rng(6)
    cases = Cases(match_binary)
    wide = Operand(every_code(rng, "int32", (2, 9)), params("int32", 0.1))
    byte = _operand(rng, "uint8", (2, 9))
    channels = Operand(byte.array, params("uint8", [0.1, 0.2], [1, 2], axis=0))
    for operands, result in (
        ([wide, byte], params("uint8", 0.1)),
        ([byte, byte], params("int32", 0.1)),
        ([channels, byte], params("uint8", 0.1)),
        ([byte, byte], params("uint8", 1e-35)),
        ([Operand(byte.array, byte.params, fixed=True)] * 2, params("uint8", 0.1)),
    ):
        assert cases.add("Add", NO_ATTRIBUTES, operands, result, needed=False) is None
    assert cases.refused == 5


def test_16_bits_and_numbers_without_axes() -> None:
    rng = np.random.default_rng(16)
    cases = Cases(match_binary)
    for name in ("Add", "Mul", "Div", "Sub", "PRelu", "Max"):
        x = Operand(every_code(rng, "uint16", (3, 130)), params("uint16", 2e-4, 32768))
        single = Operand(np.asarray(40000, np.uint16), params("uint16", 1e-4, 7), fixed=True)
        real = Operand(np.asarray(0.3, np.float32), fixed=True)
        for other in (single, real, x):
            cases.add(name, NO_ATTRIBUTES, [x, other], params("int16", 3e-4, -9))
            cases.add(name, NO_ATTRIBUTES, [x, other], params("uint8", 0.02, 128))
    cases.check()
