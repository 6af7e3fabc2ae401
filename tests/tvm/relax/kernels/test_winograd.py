"""Convolutions of 3x3 with fewer products: bits equal to the operator table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import GENERIC, Cpu
from qdqbridge.tvm.relax.kernels.kernel import Kernel
from qdqbridge.tvm.relax.kernels.products.convolution import match_conv
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, Cases, Operand

Array = Any
Shape = tuple[tuple[int, ...], int, dict[str, Any]]
"""Of the operand, output channels, and what else is told."""
PAD = (1, 1, 1, 1)
SUM_SCALE = float(np.float32(0.02) * np.float32(0.004))
CPUS = [cpu for cpu in DOT_CPUS if cpu.dot.source == "int16"]
WEIGHTS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "uniform": lambda rng, shape: rng.integers(-128, 128, shape),
    "one outlier": lambda rng, shape: np.where(
        np.arange(np.prod(shape)).reshape(shape) % 97 == 0, 127, rng.integers(-3, 4, shape)
    ),
    "at the ends": lambda rng, shape: rng.choice([-128, 127], shape),
    "all at one end": lambda rng, shape: np.full(shape, -128),
}


def _add(
    cases: Cases, shape: tuple[int, ...], channels: int, weights: str = "uniform",
    dtype: str = "uint8", zero_point: int = 3, **attributes: Any,
) -> Kernel:  # fmt: skip
    rng = np.random.default_rng(len(cases.cases))
    attrs = replace(ConvAttrs((1, 1), (1, 1), PAD), **attributes)
    x = every_code(rng, dtype, shape)
    if weights.startswith("a"):
        x = rng.choice([x.min(), x.max()], shape).astype(dtype)
    w = WEIGHTS[weights](rng, (channels, shape[1], 3, 3)).astype(np.int8)
    bias = rng.integers(-(1 << 20), 1 << 20, channels).astype(np.int32)
    operands = [
        Operand(x, params(dtype, 0.02, zero_point)),
        Operand(w, params("int8", 0.004), fixed=True),
        Operand(bias, params("int32", SUM_SCALE), fixed=True),
    ]
    kernel = cases.add("Conv", attrs, operands, params("uint8", 1.5, 99), last=True)
    assert kernel is not None
    return kernel


def _fewer(kernel: Kernel) -> bool:
    description: Any = kernel.description
    return description[0].winograd


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights(cpu: Cpu, weights: str) -> None:
    cases = Cases(match_conv, cpu)
    assert _fewer(_add(cases, (1, 48, 6, 8), 24, weights))
    cases.check()


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_shapes(cpu: Cpu) -> None:
    cases = Cases(match_conv, cpu)
    shapes: list[Shape] = [
        ((2, 17, 7, 7), 20, {}),
        ((1, 32, 2, 9), 33, {"pads": (0, 2, 2, 1)}),
        ((1, 16, 12, 5), 8, {"pads": (0, 0, 0, 0), "dtype": "int8", "zero_point": -5}),
    ]
    for shape, channels, attributes in shapes:
        assert _fewer(_add(cases, shape, channels, **attributes))
    cases.check()


def test_threads_share_rows_of_tiles_or_channels() -> None:
    cpu = replace(GENERIC, room=1 << 12)
    cases = Cases(match_conv, cpu, threads=3)
    for shape, channels in (((1, 16, 21, 20), 16), ((1, 16, 6, 6), 40)):
        assert _fewer(_add(cases, shape, channels))
    cases.check()


def test_where_it_is_not_used() -> None:
    cases = Cases(match_conv, GENERIC)
    shapes: list[Shape] = [
        ((1, 3, 12, 12), 16, {}),  # few channels
        ((1, 16, 12, 12), 16, {"strides": (2, 2)}),
        ((1, 16, 12, 12), 16, {"dilations": (2, 2)}),
        ((1, 16, 1, 12), 16, {}),
    ]
    for shape, channels, attributes in shapes:
        assert not _fewer(_add(cases, shape, channels, **attributes))
    long = _add(Cases(match_conv, GENERIC), (1, 3000, 2, 2), 8, "all at one end")
    assert not _fewer(long)  # a sum could leave int32
