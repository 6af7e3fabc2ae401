"""Where: masks that are constants and that are fed, operands of every kind, broadcasting."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.lookup import match_where
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, Cases, Operand


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_operands_of_every_kind(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    for opened, out in ((False, "uint8"), (True, "int16")):
        cases = Cases(match_where, cpu, threads=2, opened=opened)
        y = params(out, 0.02, 7).with_range(-5 if out == "int16" else 3, 200)
        shape = (2, 3, 70)
        same = Operand(every_code(rng, out, shape), y.widened())
        other = Operand(every_code(rng, "int8", (1, 3, 70)), params("int8", 0.1, -5))
        real = Operand(rng.normal(0, 3, shape).astype(np.float32))
        single = Operand(np.asarray(-np.inf, np.float32), fixed=True)
        masks = [Operand(rng.random(s) < 0.5, fixed=f) for s, f in
                 ((shape, False), ((3, 1), True), ((1, 1, 70), True))]  # fmt: skip
        for mask in masks:
            for a, b in ((same, other), (other, single), (real, same), (single, real)):
                cases.add("Where", NO_ATTRIBUTES, [mask, a, b], y)
        cases.check()


def test_what_is_refused() -> None:
    rng, cases, y = np.random.default_rng(1), Cases(match_where), params("uint8", 0.1, 3)
    sides = [Operand(every_code(rng, "uint8", (5,)), y, fixed=True) for _ in range(2)]
    fixed = [Operand(rng.random(5) < 0.5, fixed=True), *sides]
    cases.add("Where", NO_ATTRIBUTES, fixed, y, needed=False)
    axis = params("uint8", np.full(5, 0.1), np.zeros(5), axis=0)
    codes = Operand(every_code(rng, "uint8", (5,)), axis)
    cases.add("Where", NO_ATTRIBUTES, [fixed[0], codes, fixed[1]], y, needed=False)
    assert cases.refused == 2
