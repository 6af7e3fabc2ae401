"""How LiteRT rounds: the formulas give its results bit for bit, and explain every difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.places import MODELS

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("ai_edge_litert", reason="LiteRT, the judge")

import qdqbridge as qb
from qdqbridge.targets.comparison.causes import UNEXPLAINED
from qdqbridge.tflite_io.arithmetic import double_round, furthest, rounded_once, rounded_twice
from qdqbridge.tflite_io.litert import FIXED_POINT, Kernels, LiteRTEngine, products_by_formula
from qdqbridge.tflite_io.writer import converted

RNG = np.random.default_rng(3)
WEIGHT = " ".join(map(str, RNG.integers(-127, 128, 8 * 4 * 9).tolist()))
SCALES = " ".join(f"{scale:.9g}" for scale in RNG.uniform(0.004, 0.02, 8))
CONVOLUTION = (
    "qnn-raw 1\ninput %x: quant<{kind}>[1,4,16,16]\n"
    f"%y = Conv(%x, const quant<int8, [{SCALES}], 0, axis=0>[8,4,3,3] [{WEIGHT}]) "
    "{{strides=[1 1], dilations=[1 1], pads=[1 1 1 1], group=1}}: quant<{result}>[1,8,16,16]\n"
    "output %y\n"
)
WAYS = {
    Kernels.REFERENCE: "fixed point, rounded twice",
    Kernels.BUILTIN: "fixed point, rounded twice, up",
    Kernels.XNNPACK: "float32",
}


@pytest.mark.parametrize("kernels", Kernels)
def test_a_convolution_rounds_as_the_formula_of_its_kernels(kernels: Kernels) -> None:
    made = converted(
        qb.parse(CONVOLUTION.format(kind="int8, 0.03, 5", result="int8, 0.06, -3"))
    )  # fmt: skip
    inputs = {"x": RNG.integers(-128, 128, (1, 4, 16, 16)).astype(np.int8)}
    missed = products_by_formula(made, inputs, kernels)
    assert missed[WAYS[kernels]] == 0
    assert max(missed.values()) > 0, "no formula can be told from another one"


def test_beside_16_bits_the_multiplier_has_15() -> None:
    made = converted(
        qb.parse(CONVOLUTION.format(kind="int16, 0.0001, 0", result="int16, 0.0003, 0"))
    )  # fmt: skip
    inputs = {"x": RNG.integers(-32768, 32768, (1, 4, 16, 16)).astype(np.int16)}
    for kernels in Kernels:
        assert products_by_formula(made, inputs, kernels)["fixed point of 15 bits"] == 0


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.XNNPACK])
def test_every_difference_of_a_network_has_a_cause(kernels: Kernels) -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    made = converted(graph)
    images = np.load(MODELS / "digits_test.npz")
    data = {"input": images[next(iter(images))][:32].reshape(32, 1, 8, 8).astype(np.float32)}
    found = qb.compare(made.graph, LiteRTEngine(made, kernels), data, local=True)
    causes = {cause for value in found.values for cause in value.causes}
    assert UNEXPLAINED not in causes
    assert (FIXED_POINT in causes) == (kernels is not Kernels.XNNPACK)


def test_no_fixed_point_result_is_further_away_than_proved() -> None:
    rng = np.random.default_rng(0)
    total = rng.integers(-(1 << 20), 1 << 20, 20000)
    for multiplier in (0.7, 0.3, 0.011, 0.0004):
        wide = np.full(total.shape, multiplier)
        for way in (rounded_once, rounded_twice):
            far = np.abs(way(total, wide) - total * multiplier) - 0.5
            bound = furthest(multiplier, float(np.abs(total).max() * multiplier))
            assert far.max() <= bound + 1e-9


def apply_scale_32(value: int, multiplier: int, shift: int) -> int:
    """TOSA 1.0, 4.6.1, with DOUBLE_ROUND, in Python's integers."""
    round_ = 1 << (shift - 1)
    if shift > 31:
        round_ += (1 << 30) if value >= 0 else -(1 << 30)
    return (value * multiplier + round_) >> shift


def test_rescale_is_the_one_of_the_specification() -> None:
    rng = np.random.default_rng(5)
    totals = rng.integers(-(1 << 24), 1 << 24, 200)
    # sums that are just between two results, where the roundings part
    totals[::2] = np.rint(np.arange(-50, 50) * 2.0 + 1) * 64
    scales = np.where(rng.random(200) < 0.5, 2.0 ** -rng.integers(6, 20, 200), rng.random(200))
    found = double_round(totals, scales)
    for total, scale, result in zip(totals, scales, found, strict=True):
        fraction, exponent = math.frexp(scale)
        mantissa = math.floor(fraction * 2**31 + 0.5)
        assert result == apply_scale_32(int(total), mantissa, 31 - exponent)
    assert (found != rounded_once(totals, scales)).any()
