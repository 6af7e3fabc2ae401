"""Results that are large enough for several threads."""

from __future__ import annotations

import numpy as np

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import (
    IN_FLOAT32,
    ConvAttrs,
    NormAttrs,
    PoolAttrs,
    ResizeAttrs,
    SoftmaxAttrs,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import worth_sharing
from qdqbridge.tvm.relax.kernels.plan import kernel_of
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import Cases, Operand

X = params("uint8", 0.05, 7)
Y = params("uint8", 0.043, 200)


def test_two_threads_write_the_same() -> None:
    rng = np.random.default_rng(0)
    cases = Cases(kernel_of, threads=2)
    rows = Operand(every_code(rng, "uint8", (90, 500)), X)
    image = Operand(every_code(rng, "uint8", (1, 40, 31, 33)), X)
    factors = Operand(np.ones(500, np.float32), None, fixed=True)
    weight = Operand(every_code(rng, "int8", (40, 1, 3, 3)), params("int8", 0.01), fixed=True)
    window = PoolAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    larger = ResizeAttrs("linear", "half_pixel", "floor", (1.0, 1.0, 2.0, 2.0), None)
    cases.add("Softmax", SoftmaxAttrs((1,)), [rows], params("uint8", 1 / 255))
    cases.add("LayerNormalization", NormAttrs(1, 1e-5), [rows, factors], Y)
    cases.add("quantize", IN_FLOAT32, [Operand(rng.normal(0, 9, (3, 20_001)).astype("f4"))], Y)
    for name, attributes, operands, result in (
        ("MaxPool", window, [image], X),
        ("AveragePool", window, [image], Y),
        ("Resize", larger, [image], Y),
        ("GlobalAveragePool", NO_ATTRIBUTES, [image], Y),
        ("Conv", ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 40), [image, weight], Y),
    ):
        cases.add(name, attributes, operands, result, last=True)
    assert cases.check() == 8


def test_small_results_are_not_shared() -> None:
    assert not worth_sharing(2, (1, 100, 100))
    assert worth_sharing(2, (1, 100, 100), 4) and worth_sharing(2, (None, 3))
    assert not worth_sharing(1, (1 << 20,))
