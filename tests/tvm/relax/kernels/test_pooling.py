"""Windows and reductions: borders, ceil_mode, strange zero points, both ends of types."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import PoolAttrs, ReduceAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.windows import match_axes, match_window
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand

WINDOWS = [
    # image, kernel, strides, dilations, pads, ceil_mode
    ((8, 9), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False),
    ((7, 7), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False),
    ((9, 6), (3, 2), (1, 2), (1, 1), (1, 0, 2, 1), True),
    ((10, 10), (3, 3), (1, 2), (2, 3), (2, 0, 1, 3), True),
    ((6, 6), (6, 6), (1, 1), (1, 1), (0, 0, 0, 0), False),
    ((4, 12), (1, 5), (1, 1), (1, 2), (0, 4, 0, 4), False),
]
AXES = [
    ((2, 24, 7, 7), (2, 3)),
    ((1, 130, 3, 5), (2, 3)),
    ((3, 5, 77), (1,)),
    ((4, 50), (1,)),
    ((2, 3, 200), (2,)),
    ((2, 3, 4), (0, 1, 2)),
    ((6, 1), (1,)),
    ((1, 16, 9, 9), (1,)),
]
CHANNELS = (3, 64, 24, 33, 130, 16)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_windows(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_window, cpu, threads=2)
    few = range(len(WINDOWS)) if cpu == HOST else range(len(cpu.name) % 2, len(WINDOWS), 2)
    for i in few:
        image, kernel, strides, dilations, pads, ceil = WINDOWS[i]
        kind = ("uint8", "int8")[i % 2]
        x = params(kind, 0.05, int(rng.choice([0, 1, 127])))
        y = params(("int8", "uint8")[i // 2 % 2], 0.04, int(rng.choice([0, 1, 127])))
        y = y.with_range(5, 99) if i % 3 == 0 else y
        data = Operand(every_code(rng, kind, (2, CHANNELS[i], *image)), x)
        window = PoolAttrs(kernel, strides, dilations, pads, ceil, count_include_pad=i % 2 == 1)
        cases.add("MaxPool", window, [data], x, last=True)
        cases.add("AveragePool", window, [data], y, last=True)
    cases.check()


def test_sequences_and_open_batches() -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_window, opened=True)
    x, y = params("uint8", 0.05, 255), params("uint8", 0.3, 128)
    line = Operand(every_code(rng, "uint8", (3, 20, 31)), x)
    window = PoolAttrs((4,), (2,), (1,), (1, 2))
    cases.add("MaxPool", window, [line], x, last=True)
    cases.add("AveragePool", window, [line], y, last=True)
    cases.check()


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_axes(cpu: Cpu) -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_axes, cpu)
    few = range(len(AXES)) if cpu == HOST else range(len(cpu.name) % 2, len(AXES), 2)
    for i in few:
        shape, axes = AXES[i]
        kind = ("uint8", "int8")[i % 2]
        x = params(kind, 0.05, int(rng.choice([0, 1, 127])))
        y = params("uint8", 0.04, int(rng.choice([0, 127, 255])))
        data = Operand(every_code(rng, kind, shape), x)
        attributes = ReduceAttrs(axes, keepdims=i % 2 == 0)
        last = len(shape) == 4 and i % 2 == 0
        for name, result in (
            ("ReduceMean", y),
            ("ReduceSum", y),
            ("ReduceMax", x),
            ("ReduceMin", x),
        ):
            cases.add(name, attributes, [data], result, last=last)
        if axes == (2, 3):
            cases.add("GlobalAveragePool", NO_ATTRIBUTES, [data], y, last=last)
            cases.add("GlobalMaxPool", NO_ATTRIBUTES, [data], x, last=last)
    cases.check()


def test_open_batches_of_axes() -> None:
    rng = np.random.default_rng(3)
    for threads in (1, 2):
        cases = Cases(match_axes, threads=threads, opened=True)
        x, y = params("uint8", 0.05, 255), params("uint8", 0.3, 128)
        data = Operand(every_code(rng, "uint8", (3, 20, 5, 6)), x)
        for last in (False, True):
            cases.add("GlobalAveragePool", NO_ATTRIBUTES, [data], y, last=last)
            cases.add("ReduceMax", ReduceAttrs((1,), keepdims=True), [data], x, last=last)
        cases.check()


def test_what_is_refused() -> None:
    rng = np.random.default_rng(4)
    cases = Cases(match_axes, opened=True)
    x = params("uint8", 0.05, 3)
    data = Operand(every_code(rng, "uint8", (2, 3, 4, 5)), x)
    for axes, result in (
        ((1, 3), x),
        ((2,), params("int16", 0.1)),
        ((2, 3), params("uint8", 1e-9)),
    ):
        cases.add("ReduceMean", ReduceAttrs(axes), [data], result, needed=False)
    assert cases.refused == 3
