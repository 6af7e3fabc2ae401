"""Softmax along rows: lengths around the registers, zero points, scales, both functions."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import SoftmaxAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.softmax import match_quantized_softmax
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_rows(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_quantized_softmax, cpu)
    counts = (1, 2, 7, 16, 33, 64, 128, 131, 300) if cpu == HOST else (5, 128, 67)
    for i, count in enumerate(counts):
        for name, out in (
            ("Softmax", params("uint8", 1 / 255, 0)),
            ("Softmax", params("int8", 1 / 256, -128)),
            ("Softmax", params("uint8", 0.003, 5).with_range(7, 200)),
            ("LogSoftmax", params("uint8", 0.07, 255)),
        )[: 4 if i % 3 == 1 else 2]:
            kind = ("uint8", "int8")[i % 2]
            scale = (0.1, 0.001, 0.7, 3.0)[i % 4]
            x = params(kind, scale, int(rng.choice([0, 1, 127])))
            data = Operand(every_code(rng, kind, (2, 3, count)), x)
            cases.add(name, SoftmaxAttrs((2,)), [data], out)
    cases.check()


def test_axes_and_layouts() -> None:
    rng = np.random.default_rng(1)
    x, y = params("uint8", 0.1, 255), params("uint8", 1 / 256, 0)
    for opened, threads in ((False, 1), (True, 1), (True, 2)):
        cases = Cases(match_quantized_softmax, opened=opened, threads=threads)
        data = Operand(every_code(rng, "uint8", (3, 20, 4, 5)), x)
        cases.add("Softmax", SoftmaxAttrs((1,)), [data], y, last=True)
        cases.add("Softmax", SoftmaxAttrs((2, 3)), [data], y)
        cases.add("Softmax", SoftmaxAttrs((1,)), [data], y, needed=False)
        cases.add("Softmax", SoftmaxAttrs((3,)), [data], params("uint8", 1e-9), needed=False)
        assert cases.refused == 2
        cases.check()
