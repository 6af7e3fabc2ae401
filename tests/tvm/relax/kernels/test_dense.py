"""Kernels of products with a constant matrix: bits equal to the operator table."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.products.convolution import match_constant_matmul
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels import random_products
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, Cases, Operand


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_random(cpu: Cpu) -> None:
    rng, cases = np.random.default_rng(5), Cases(match_constant_matmul, cpu)
    for _ in range(16 if cpu == HOST else 6):
        name, attributes, operands, out = random_products.matrix(rng)
        cases.add(name, attributes, operands, out)
    cases.check()


def test_four_bits_in_and_out() -> None:
    rng, cases = np.random.default_rng(6), Cases(match_constant_matmul)
    x = random_products.uint4((5, 12), rng)
    w = random_products.weight(rng, (9, 12), None)
    assert x.params is not None
    kernel = cases.add("Dense", GemmAttrs(), [x, w], x.params, needed=False)
    assert kernel is not None and kernel.constants[-1].tolist()[:3] == [7, 0, 15]


def test_what_has_no_kernel() -> None:
    rng, cases, out = np.random.default_rng(7), Cases(match_constant_matmul), params("uint8", 0.1)
    x = Operand(every_code(rng, "uint8", (6, 4)), params("uint8", 0.1, 9))
    w = Operand(every_code(rng, "int8", (5, 6)), params("int8", 0.1), fixed=True)
    cases.add("Gemm", GemmAttrs(trans_a=True, trans_b=True), [x, w], out, needed=False)
    bias = Operand(np.ones(5, np.int32), params("int32", 0.5), fixed=True)
    permuted = Operand(x.array.T.copy(), x.params)
    for attributes, last in [(GemmAttrs(trans_b=True), bias),
                             (GemmAttrs(trans_b=True, beta=0.5), bias)]:  # fmt: skip
        cases.add("Gemm", attributes, [permuted, w, last], out, needed=False)
    assert cases.refused == 3
