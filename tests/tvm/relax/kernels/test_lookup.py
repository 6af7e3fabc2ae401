"""Tables of functions of one operand: every function, both types, registers and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import AlphaAttrs, GeluAttrs, HardSigmoidAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.lookup import match_byte_lookup, table_of
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand

FUNCTIONS = [
    ("Sigmoid", NO_ATTRIBUTES),
    ("HardSwish", NO_ATTRIBUTES),
    ("Gelu", GeluAttrs()),
    ("Tanh", NO_ATTRIBUTES),
    ("LeakyRelu", AlphaAttrs(0.1)),
    ("Relu", NO_ATTRIBUTES),
    ("HardSigmoid", HardSigmoidAttrs(0.2, 0.5)),
    ("Reciprocal", NO_ATTRIBUTES),
    ("requantize", NO_ATTRIBUTES),
]
SHAPES = [(1, 3, 5, 7), (2, 64, 4), (1, 129), (1, 30_000), (1,)]


@pytest.mark.parametrize("cpu", (*CPUS, replace(HOST, permutes=False)), ids=lambda cpu: cpu.name)
def test_functions(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_byte_lookup, cpu)
    for i, (name, attributes) in enumerate(FUNCTIONS):
        for kind, out in (("uint8", "uint8"), ("int8", "uint8"), ("int8", "int8")):
            x = params(kind, float(rng.uniform(0.01, 0.1)), int(rng.choice([0, 1, 127])))
            y = params(out, 0.03, int(rng.choice([0, 1, 127])))
            shape = SHAPES[i % len(SHAPES)]
            cases.add(name, attributes, [Operand(every_code(rng, kind, shape), x)], y)
    cases.check()


def test_constants_of_one_element_make_a_table() -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_byte_lookup)
    x, y = params("uint8", 0.05, 255), params("int8", 0.1, -7)
    data = Operand(every_code(rng, "uint8", (2, 3, 50)), x)
    one = Operand(np.asarray([[[1.75]]], np.float32), None, fixed=True)
    code = Operand(np.asarray(77, np.int8), params("int8", 0.02, 3), fixed=True)
    for name in ("Add", "Mul", "Div", "Pow", "Max"):
        cases.add(name, NO_ATTRIBUTES, [data, one], y)
    cases.add("Sub", NO_ATTRIBUTES, [code, data], y.with_range(-100, 90))
    cases.check()


def test_open_batches() -> None:
    rng = np.random.default_rng(4)
    for threads in (1, 2):
        cases = Cases(match_byte_lookup, threads=threads, opened=True)
        x, y = params("uint8", 0.05, 255), params("uint8", 0.1, 3)
        for shape in ((3,), (2, 100), (3, 5, 7, 11)):
            cases.add("Tanh", NO_ATTRIBUTES, [Operand(every_code(rng, "uint8", shape), x)], y)
        cases.check()


def test_what_is_no_function_of_one_operand() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_byte_lookup)
    x = params("uint8", 0.05, 3)
    data = Operand(every_code(rng, "uint8", (2, 3)), x)
    row = Operand(np.ones((1, 3), np.float32), None, fixed=True)
    wide = Operand(every_code(rng, "int16", (2, 3)), params("int16", 0.1))
    for name, operands in (
        ("Add", [data, row]),
        ("Add", [data, data]),
        ("Sigmoid", [wide]),
    ):
        cases.add(name, NO_ATTRIBUTES, operands, x, needed=False)
    assert cases.refused == 3


def test_one_value_read_twice_is_one_operand() -> None:
    rng = np.random.default_rng(3)
    cases = Cases(match_byte_lookup)
    x, y = params("uint8", 0.05, 3), params("uint8", 0.7, 0)
    node, _, _ = cases.node(
        "Mul", NO_ATTRIBUTES, [Operand(every_code(rng, "uint8", (2, 3)), x)] * 2, y
    )
    node.inputs[1] = node.inputs[0]
    found = table_of(node)
    assert found is not None
    value = (np.arange(256) - 3).astype(np.float32) * np.float32(0.05)
    squares = np.rint(value * value / np.float32(0.7))
    np.testing.assert_array_equal(found[1], np.clip(squares, 0, 255).astype(np.uint8))
