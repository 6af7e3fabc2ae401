"""Kernels of convolutions behind a Resize by whole factors, which take the small image."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.layout import channels_last
from qdqbridge.core.ops.attributes import ConvAttrs, ResizeAttrs
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.products.convolution import match_resized_conv
from tests.combinations import each_once
from tests.tvm.dialect.contract import Array, contract
from tests.tvm.relax.kernels import random_products as random
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, Cases, Operand

WHOLE = ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")
"""Ways to compute coordinates by which each pixel comes as often as the factor says."""


def _resize(factors: tuple[float, float], how: tuple[str, str] = WHOLE[0]) -> ResizeAttrs:
    return ResizeAttrs("nearest", how[0], how[1], (1.0, 1.0, *factors), None)


def _add(
    cases: Cases,
    resize: ResizeAttrs,
    conv: ConvAttrs,
    operands: list[Operand | None],
    out: QuantParams | None,
) -> Kernel | None:
    """Adds a convolution whose operand 0 is the image before it is resized."""
    x = operands[0]
    assert x is not None and x.params is not None
    large = contract("Resize", resize, [x.array], [x.params], x.params)
    shape = large.shape
    resized, _, own = cases.node("Resize", resize, [x], x.params, last=True)
    whole = [Operand(large, x.params), *operands[1:]]
    node, expected, _ = cases.node("Conv", conv, whole, out, last=True)
    Node(RESIZE, own, [resized.operand(0)], [node.operand(0)])
    kernel = match_resized_conv(node, KernelPlace(cases.cpu, True, cases.threads))
    if kernel is None:
        cases.refused += 1
        return None
    assert kernel.inputs == (resized.operand(0),)
    small: Array = np.ascontiguousarray(x.array.transpose(channels_last(4)))
    cases.take(kernel, [small], expected, f"{cases.cpu.name} {resize} {conv} {shape}")
    return kernel


def _random(rng: np.random.Generator, cases: Cases) -> Kernel | None:
    repeats = random.pick(rng, (2, 2), (2, 2), (1, 2), (3, 2), (2, 1), (4, 4))
    kernel = [random.pick(rng, 1, 2, 3, 3, 5) for _ in range(2)]
    dilations = [random.pick(rng, 1, 1, 1, 2, 3) for _ in range(2)]
    spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    image = [int(rng.integers(1, 12)) + n for n in spans]
    begin = [int(rng.integers(0, n + 1)) for n in spans]
    # the result has to be whole pixels
    end = [
        (n - b) % f + random.pick(rng, 0, f) for n, b, f in zip(spans, begin, repeats, strict=True)
    ]
    inputs, outputs = random.pick(rng, 8, 16, 17, 40), random.pick(rng, 1, 5, 16, 33, 48, 64)
    x = random.activation(rng, (random.pick(rng, 1, 2), inputs, *image))
    w = random.weight(rng, (outputs, inputs, *kernel), 0)
    out = random.result(rng, inputs * kernel[0] * kernel[1])
    attributes = ConvAttrs((1, 1), (dilations[0], dilations[1]), (*begin, *end), 1)
    bias = random.bias(rng, x, w, out, outputs)
    return _add(cases, _resize(repeats, random.pick(rng, *WHOLE)), attributes, [x, w, bias], out)


CPUS = [cpu for cpu in DOT_CPUS if not cpu.amx]
"""All but those whose tiles multiply eight times as fast, which repeat pixels."""


@pytest.mark.parametrize(("cpu", "threads"), each_once(CPUS, [2, 1]))
def test_random(cpu: Cpu, threads: int) -> None:
    rng, cases = np.random.default_rng(5 + threads), Cases(match_resized_conv, cpu, threads)
    for _ in range(12 if cpu == HOST else 4):
        _random(rng, cases)
    assert cases.refused <= len(cases.cases)
    cases.check()


def test_open_batch() -> None:
    rng, cases = (
        np.random.default_rng(3),
        Cases(match_resized_conv, CPUS[0], threads=2, opened=True),
    )
    for _ in range(4):
        _random(rng, cases)
    cases.check()


@pytest.mark.parametrize(
    "resize, channels, group, strides, pads, reason",
    [
        (_resize((2.0, 2.0)), 4, 1, (1, 1), 1, "few channels"),
        (_resize((2.0, 2.0)), 32, 2, (1, 1), 1, "groups"),
        (_resize((2.0, 2.0)), 32, 1, (2, 2), 1, "strides"),
        (_resize((1.5, 2.0)), 32, 1, (1, 1), 1, "no whole factor"),
        (_resize((3.0, 3.0), ("align_corners", "round_prefer_floor")), 32, 1, (1, 1), 1, "corners"),
        (_resize((4.0, 4.0)), 32, 1, (1, 1), 0, "parts of pixels"),
    ],
)  # fmt: skip
def test_what_has_no_such_kernel(
    resize: ResizeAttrs, channels: int, group: int, strides: tuple[int, int], pads: int, reason: str
) -> None:
    rng, cases = np.random.default_rng(7), Cases(match_resized_conv, CPUS[0])
    x = random.activation(rng, (1, channels, 6, 8))
    w = random.weight(rng, (16, channels // group, 3, 3), 0)
    out = random.result(rng, channels * 9)
    conv = ConvAttrs(strides, (1, 1), (pads,) * 4, group)
    assert _add(cases, resize, conv, [x, w], out) is None, reason
