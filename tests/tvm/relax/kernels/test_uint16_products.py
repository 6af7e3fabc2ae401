"""Products of 16-bit activations: bits equal to the operator table, sums beyond 32 bits too."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.plan import kernel_of
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import Halves
from tests.tvm.dialect.contract import params
from tests.tvm.relax.kernels import random_products
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, Cases, Operand


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_random(cpu: Cpu) -> None:
    rng, cases = np.random.default_rng(5), Cases(kernel_of, cpu, threads=2)
    for _ in range(14 if cpu == HOST else 6):
        name, attributes, operands, out = random_products.wide(rng)
        cases.add(name, attributes, operands, out, last=name == "Conv", needed=False)
    assert cases.check() > cases.refused


def test_sums_of_every_size() -> None:
    cases = Cases(kernel_of)
    kinds: list[bool] = []
    for inner, code, zero_point in ((4, 65535, 0), (700, 65535, 0), (700, 0, 65535)):
        x = Operand(np.full((3, inner), code, np.uint16), params("uint16", 1e-3, zero_point))
        w = Operand(np.full((16, inner), -127, np.int8), params("int8", 1e-3), fixed=True)
        kernel = cases.add("Dense", NO_ATTRIBUTES, [x, w], params("uint16", 1e-1, 32768))
        assert kernel is not None
        (direct,) = kernel.description  # type: ignore[misc]
        form = direct.form
        assert isinstance(form, Halves)
        kinds.append(form.wide)
    assert kinds == [False, True, True]
    cases.check()
