"""Normalizations of rows: lengths around the registers, factors of every kind, constant rows."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import EpsilonAttrs, GroupNormAttrs, NormAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.normalization import match_quantized_norm
from qdqbridge.tvm.relax.kernels.plan import kernel_of
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand


def _fixed(rng: np.random.Generator, shape: tuple[int, ...]) -> Operand:
    return Operand(rng.normal(1, 0.5, shape).astype(np.float32), None, fixed=True)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_rows(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_quantized_norm, cpu)
    counts = (1, 3, 16, 31, 64, 100, 768) if cpu == HOST else (7, 130)
    for i, count in enumerate(counts):
        kind = ("uint8", "int8")[i % 2]
        x = params(kind, (0.1, 0.003, 2.0)[i % 3], int(rng.choice([0, 1, 127])))
        y = params(("int8", "uint8")[i // 2 % 2], 0.03, int(rng.choice([0, 1, 127])))
        data = Operand(every_code(rng, kind, (2, 3, count)), x)
        factors = [_fixed(rng, (count,)), _fixed(rng, (count,))]
        for name, operands in (
            ("LayerNormalization", [data, *factors]),
            ("LayerNormalization", [data, factors[0]]),
            ("RMSNormalization", [data, factors[0]]),
        ):
            cases.add(name, NormAttrs(2, 1e-5), operands, y)
    cases.check()


def test_factors_and_axes() -> None:
    rng = np.random.default_rng(1)
    x, y = params("uint8", 0.05, 255), params("uint8", 0.02, 128).with_range(9, 222)
    gamma = Operand(every_code(rng, "int8", (4, 5)), params("int8", 0.01, 3), fixed=True)
    beta = Operand(rng.integers(-99, 99, (4, 5)).astype(np.int32), params("int32", 0.01), True)
    for opened, threads in ((False, 1), (True, 1), (True, 2)):
        cases = Cases(match_quantized_norm, opened=opened, threads=threads)
        data = Operand(every_code(rng, "uint8", (3, 6, 4, 5)), x)
        cases.add("LayerNormalization", NormAttrs(2, 1e-3), [data, gamma, beta], y)
        cases.add("LayerNormalization", NormAttrs(2, 0.0), [data, _fixed(rng, (1,))], y)
        cases.check()


def test_constant_rows_without_epsilon_are_not_a_number() -> None:
    cases = Cases(match_quantized_norm)
    data = Operand(np.full((2, 40), 77, np.uint8), params("uint8", 0.1, 5))
    for z in (0, 128, 255):
        factors, result = [Operand(np.ones(40, np.float32), None, True)] * 2, params("uint8", 1, z)
        cases.add("LayerNormalization", NormAttrs(1, 0.0), [data, *factors], result)
    cases.check()


def test_what_is_refused() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_quantized_norm)
    x = params("uint8", 0.05, 3)
    data = Operand(every_code(rng, "uint8", (2, 6)), x)
    fed = Operand(np.ones(6, np.float32))
    cases.add("LayerNormalization", NormAttrs(1, 1e-5), [data, fed, fed], x, needed=False)
    permuted = Operand(every_code(rng, "uint8", (2, 6, 3)), x)
    own = [permuted, _fixed(rng, (6,)), _fixed(rng, (6,))]
    cases.add("InstanceNormalization", EpsilonAttrs(1e-5), own, x, last=True, needed=False)
    assert cases.refused == 2


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_channels_with_factors(cpu: Cpu) -> None:
    rng = np.random.default_rng(3)
    for opened, threads in ((False, 1), (True, 2)):
        cases = Cases(kernel_of, cpu, opened=opened, threads=threads)
        for kind, out, shape in (
            ("uint8", "uint8", (2, 6, 5, 7)),
            ("int8", "uint16", (2, 6, 33)),
            ("uint16", "int16", (1, 6, 4, 16)),
            ("uint8", "int8", (3, 6)),
        ):
            data = Operand(every_code(rng, kind, shape), params(kind, 0.02, 77))
            y = params(out, 0.03 if "8" in out else 1e-4, 3)
            factors = [_fixed(rng, (6,)) for _ in range(3)]
            positive = Operand(rng.uniform(0.1, 2, 6).astype(np.float32), None, fixed=True)
            coded = Operand(every_code(rng, "int8", (6,)), params("int8", 0.01, 3), fixed=True)
            if len(shape) > 2:
                own = [data, coded, factors[0]]
                cases.add("InstanceNormalization", EpsilonAttrs(1e-5), own, y)
            cases.add("GroupNormalization", GroupNormAttrs(3, 1e-5), [data, *factors[:2]], y)
            cases.add("BatchNormalization", EpsilonAttrs(1e-5), [data, *factors, positive], y)
        cases.check()


def test_sums_beyond_32_bits() -> None:
    rng, cases = np.random.default_rng(4), Cases(match_quantized_norm)
    y, factors = params("uint8", 0.03, 128), [_fixed(rng, (1,))] * 2
    for kind, zero_point in (("uint8", 0), ("uint16", 65535)):
        x = params(kind, 0.05, zero_point)
        for shape in ((1, 1, 300, 301) if kind == "uint8" else (1, 1, 20_011), (1, 1, 9_003)):
            low = np.full(shape, 255 if kind == "uint8" else 0).astype(kind)
            for array in (low, every_code(rng, kind, shape)):
                data = Operand(array, x)
                cases.add("InstanceNormalization", EpsilonAttrs(1e-5), [data, *factors], y)
    cases.check()
