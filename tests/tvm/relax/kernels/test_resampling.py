"""Resize of images: both modes, every way to compute coordinates, few and many channels."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import ResizeAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.windows import match_resize
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import CPUS, HOST, Cases, Operand

COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"
)  # fmt: skip


def _resize(mode: str, coordinates: str, *factors: float) -> ResizeAttrs:
    rounding = "floor" if coordinates == "asymmetric" else "round_prefer_floor"
    return ResizeAttrs(mode, coordinates, rounding, (1.0, 1.0, *factors), None)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_modes(cpu: Cpu) -> None:
    rng = np.random.default_rng(0)
    cases = Cases(match_resize, cpu, threads=2)
    for i, coordinates in enumerate(COORDINATES if cpu == HOST else COORDINATES[:2]):
        kind = ("uint8", "int8")[i % 2]
        x = params(kind, 0.1, (3, 127, 0)[i % 3])
        y = params("uint8", 0.083, 128).with_range(10, 250)
        for channels, factors in ((3, (2.0, 2.0)), (70, (1.5, 0.6)), (64, (2.0, 1.0))):
            data = Operand(every_code(rng, kind, (2, channels, 6, 7)), x)
            cases.add("Resize", _resize("nearest", coordinates, *factors), [data], x, last=True)
            cases.add("Resize", _resize("linear", coordinates, *factors), [data], y, last=True)
    cases.check()


def test_sizes_and_open_batches() -> None:
    rng = np.random.default_rng(1)
    cases = Cases(match_resize, opened=True)
    x = params("uint8", 0.1, 3)
    data = Operand(every_code(rng, "uint8", (2, 20, 6, 7)), x)
    for mode in ("nearest", "linear"):
        attributes = _resize(mode, "align_corners", 3.0, 2.0)
        cases.add("Resize", attributes, [data], x, last=True)
    cases.check()


def test_what_is_refused() -> None:
    rng = np.random.default_rng(2)
    cases = Cases(match_resize)
    x, y = params("uint8", 0.1, 3), params("uint8", 0.2, 3)
    data = Operand(every_code(rng, "uint8", (2, 4, 6, 7)), x)
    cases.add(
        "Resize", _resize("cubic", "half_pixel", 2.0, 2.0), [data], x, last=True, needed=False
    )
    cases.add(
        "Resize", _resize("nearest", "half_pixel", 2.0, 2.0), [data], y, last=True, needed=False
    )
    cases.add("Resize", _resize("nearest", "half_pixel", 2.0, 2.0), [data], x, needed=False)
    channels = ResizeAttrs("linear", "half_pixel", "floor", (1.0, 2.0, 2.0, 1.0), None)
    cases.add("Resize", channels, [data], x, last=True, needed=False)
    assert cases.refused == 4
