"""Floats to codes and back: midpoints, infinities, NaN, scales from tiny to huge."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.ops.attributes import IN_FLOAT32
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.tvm.relax.kernels.binary import match_conversion
from qdqbridge.tvm.relax.kernels.codegen.codes import multiplies
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from tests.tvm.dialect.contract import Array, every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand


def _hard(rng: np.random.Generator, scale: np.float32, count: int) -> Array:
    """Numbers next to the midpoints between codes, and some that no code is near to."""
    middle = (rng.integers(-300, 300, count) + 0.5) * np.float64(scale)
    near = middle.astype(np.float32).view(np.int32) + rng.integers(-3, 4, count, np.int32)
    special = np.asarray([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-44, 0.0, -0.0], np.float32)
    return np.concatenate([near.view(np.float32), special])


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_quantize(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_conversion, cpu)
    scales = [*rng.uniform(0.001, 2, 12), 0.1, 0.25, 1 / 255, 1e-20, 1e20]
    for i, scale in enumerate(scales if cpu == HOST else scales[::4]):
        kind = ("uint8", "int8")[i % 2]
        y = params(kind, scale, (0, 1, 127)[i % 3])
        y = y.with_range(2, 100) if i % 4 == 0 else y
        data = _hard(rng, np.float32(scale), 3000).reshape(2, 1504)
        cases.add("quantize", IN_FLOAT32, [Operand(data)], y)
    cases.check()


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_dequantize(cpu: Cpu) -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_conversion, cpu)
    for kind, z in (("uint8", 255), ("uint8", 0), ("int8", -128), ("int8", 7)):
        data = Operand(every_code(rng, kind, (2, 3, 67)), params(kind, 0.0371, z))
        cases.add("dequantize", NO_ATTRIBUTES, [data], None)
    cases.check()


def test_open_batches() -> None:
    rng = np.random.default_rng(2)
    for threads in (1, 2):
        for operand, result in (
            (Operand(_hard(rng, np.float32(0.1), 392).reshape(4, 100)), params("uint8", 0.1, 3)),
            (Operand(every_code(rng, "uint8", (4, 99)), params("uint8", 3, 3)), None),
        ):
            cases = Cases(match_conversion, threads=threads, opened=True)
            name = "dequantize" if result is None else "quantize"
            cases.add(name, BY_NAME[name].attributes(), [operand], result)
            cases.check()


def test_nearly_every_scale_is_multiplied_with() -> None:
    rng = np.random.default_rng(3)
    proven = [multiplies(params("uint8", s), HOST) for s in np.exp(rng.uniform(-12, 5, 300))]
    assert np.mean(proven) > 0.95 or not HOST.fuses
