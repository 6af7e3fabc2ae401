"""Kernels of transposed convolutions: one convolution for every remainder of the stride."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import ConvTransposeAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.products.uint16_products import match_conv_transpose, phases
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels import random_products
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, Cases, Operand


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_random(cpu: Cpu) -> None:
    rng, cases = np.random.default_rng(9), Cases(match_conv_transpose, cpu)
    for _ in range(8 if cpu == HOST else 4):
        name, attributes, operands, out = random_products.transposed(rng)
        cases.add(name, attributes, operands, out, last=True, needed=False)
    assert cases.refused <= len(cases.cases)
    cases.check()


@pytest.mark.parametrize("kernel, stride, pad", [(2, 2, 0), (3, 2, 1), (4, 2, 1), (5, 3, 0)])
def test_phases_share_out_elements_and_taps(kernel: int, stride: int, pad: int) -> None:
    for extent in (7, 8, 9):
        found = phases(kernel, stride, pad, extent)
        assert found is not None
        elements = [range(p.first, extent, stride) for p in found]
        assert [len(own) for own in elements] == [p.count for p in found]
        assert sorted(e for own in elements for e in own) == list(range(extent))
        assert sorted(tap for p in found for tap in p.taps) == list(range(kernel))


def test_what_has_no_kernel() -> None:
    rng, cases, out = np.random.default_rng(7), Cases(match_conv_transpose), params("uint8", 0.1)
    x = Operand(every_code(rng, "uint8", (1, 4, 5, 5)), params("uint8", 0.1, 9))
    w = Operand(every_code(rng, "int8", (4, 4, 1, 1)), params("int8", 0.1), fixed=True)
    holes = ConvTransposeAttrs((2, 2), (1, 1), (0, 0, 0, 0), (0, 0))
    cases.add("ConvTranspose", holes, [x, w], out, last=True, needed=False)
    assert cases.refused == 1
