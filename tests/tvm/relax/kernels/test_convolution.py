"""Kernels of convolutions: bits equal to the operator table, on every class of CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.tvm.relax.kernels.codegen.processors import AVX512_VNNI, Cpu
from qdqbridge.tvm.relax.kernels.products.convolution import match_conv, merge_groups
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels import random_products
from tests.tvm.relax.kernels.kernel_cases import DOT_CPUS, HOST, Cases, Operand

ONE = (1, 1)
SHAPES: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 19, 23), 20, (7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    ((1, 5, 6, 31), 33, (1, 1), {}),
    ((2, 16, 8, 7), 48, (1, 1), {"strides": (2, 2)}),
    ((1, 12, 9, 8), 10, (3, 2), {"dilations": (2, 3), "pads": (2, 1, 1, 2)}),
    ((1, 64, 7, 7), 64, (3, 3), {"pads": (0, 2, 1, 0)}),
    ((1, 32, 5, 40), 64, (3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ((1, 32, 4, 5), 32, (3, 3), {"group": 8}),
    ((1, 24, 30), 17, (5,), {"pads": (2, 2), "strides": (2,)}),
    ((1, 4, 1, 1), 1001, (1, 1), {}),
]


def _image(
    shape: tuple[int, ...],
    channels: int,
    kernel: tuple[int, ...],
    *,
    zero_point: int = 3,
    dtype: str = "uint8",
    seed: int = 0,
    **attributes: Any,
) -> tuple[ConvAttrs, list[Operand | None]]:
    rng, rank = np.random.default_rng(seed), len(kernel)
    attrs = ConvAttrs(ONE[:rank], ONE[:rank], (0,) * (2 * rank))
    attrs = replace(attrs, **attributes)
    x = Operand(every_code(rng, dtype, shape), params(dtype, 0.02, zero_point))
    w = every_code(rng, "int8", (channels, shape[1] // attrs.group, *kernel))
    return attrs, [x, Operand(w, params("int8", 0.004), fixed=True)]


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_shapes(cpu: Cpu) -> None:
    cases, out = Cases(match_conv, cpu), params("uint8", 0.2, 3)
    for zero_point in (0, 1, 127, 255):
        cases.add("Conv", *_image((1, 8, 9, 9), 24, (3, 3), zero_point=zero_point,
                                  pads=(1, 1, 1, 1)), out, last=True)  # fmt: skip
    for shape, channels, kernel, attributes in SHAPES:
        cases.add("Conv", *_image(shape, channels, kernel, **attributes), out, last=True)
    cases.check()


@pytest.mark.parametrize("cpu", DOT_CPUS, ids=lambda cpu: cpu.name)
def test_random(cpu: Cpu) -> None:
    rng, cases = np.random.default_rng(11), Cases(match_conv, cpu)
    for _ in range(14 if cpu == HOST else 6):
        name, attributes, operands, out = random_products.convolution(rng)
        cases.add(name, attributes, operands, out, last=True)
    cases.check()


def test_many_threads_share_rows_or_channels() -> None:
    for shape, channels, shares in [((1, 4, 40, 40), 16, (4, 1)), ((2, 8, 6, 30), 128, (1, 4))]:
        attrs, operands = _image(shape, channels, (3, 3), pads=(1, 1, 1, 1))
        cases = Cases(lambda node, place: match_conv(node, replace(place, threads=4)), AVX512_VNNI)
        kernel = cases.add("Conv", attrs, operands, params("uint8", 0.2), last=True)
        assert kernel is not None and isinstance(kernel.description, tuple)
        (direct,) = kernel.description
        assert isinstance(direct, Direct)
        assert (direct.row_shares, direct.channel_shares) == shares
        if HOST == AVX512_VNNI:
            cases.check()


def test_sums_beyond_16_bits_saturate_at_the_end_that_they_left() -> None:
    cases, rng = Cases(match_conv), np.random.default_rng(3)
    for scale in (1e-3, 1e-5, 5e-6):
        for zero_point in (0, 1, 255):
            attrs, operands = _image((1, 64, 5, 5), 16, (3, 3), zero_point=int(rng.integers(256)))
            cases.add("Conv", attrs, operands, params("uint8", scale, zero_point), last=True)
    cases.check()


def test_one_description_serves_all_numbers() -> None:
    cases = Cases(match_conv)
    for seed in range(3):
        attrs, operands = _image((1, 8, 6, 6), 16, (3, 3), zero_point=seed, seed=seed)
        cases.add("Conv", attrs, operands, params("uint8", 0.1 + seed, 3), last=True)
    assert len(cases.functions) == 1
    cases.check()


def test_what_has_no_kernel() -> None:
    cases, out = Cases(match_conv), params("uint8", 0.2)
    attrs, operands = _image((1, 8, 6, 6), 16, (3, 3))
    x, w = operands
    assert x is not None and w is not None
    cases.add("Conv", attrs, operands, out, needed=False)  # channels-first
    wide = Operand(x.array.astype(np.int16), params("int16", 0.1))
    cases.add("Conv", attrs, [wide, w], out, last=True, needed=False)
    fed = Operand(w.array, w.params)
    cases.add("Conv", attrs, [x, fed], out, last=True, needed=False)
    huge = Operand(every_code(np.random.default_rng(0), "int8", (1, 16000, 3, 3)), w.params, True)
    image = Operand(np.zeros((1, 16000, 3, 3), np.uint8), x.params)
    cases.add("Conv", attrs, [image, huge], out, last=True, needed=False)  # beyond int32
    assert cases.refused == 4


def test_merged_groups_keep_their_weights_apart() -> None:
    weight = np.arange(1, 8 * 2 + 1).reshape(8, 2, 1, 1)
    merged, groups = merge_groups(weight, 4, 4)
    assert groups == 2 and merged.shape == (8, 4, 1, 1)
    assert merged[:2, :2].tolist() == weight[:2].tolist() and not merged[:2, 2:].any()
    assert merged[6:, 2:].tolist() == weight[6:].tolist() and not merged[6:, :2].any()
