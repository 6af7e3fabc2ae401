"""Hardware that adds and rounds otherwise: simulated exactly, and chosen for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run as command
from qdqbridge.app.quantizing import Quantization, quantization
from qdqbridge.autoquant.hardware.arithmetic import IntegerArithmetic, Overflow, arithmetic_of, run
from qdqbridge.autoquant.hardware.products import products
from qdqbridge.autoquant.planning.formats import Unstored
from qdqbridge.autoquant.quantize import QuantizeOptions
from qdqbridge.autoquant.simulation.metrics import measured, outputs_of
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from tests.targets.engines.target_networks import MODELS, Net

IMAGES = np.load(MODELS / "digits_test.npz")["x"]
DATA, UNSEEN = {"input": IMAGES[:64]}, {"input": IMAGES[100:164]}


@cache
def made(name: str, **wanted: Any) -> Quantization:
    return quantization(qb.load(MODELS / f"digits_{name}_float.onnx"), DATA, target="qnn", **wanted)


def closeness(found: Quantization, arithmetic: IntegerArithmetic) -> float:
    """Returns how close unseen samples come on the hardware, in dB."""
    ran = run(found.graph, UNSEEN, arithmetic)
    wanted = outputs_of(found.original, [UNSEEN])
    return measured(found.graph.output_names, wanted, [list(ran.outputs.values())]).sqnr


# ---- the simulation --------------------------------------------------------------------------


def one_product(kind: str, terms: int = 40) -> Graph:
    """A product of one position, so that every sum can be said by its operands."""
    b = Net()
    if kind == "Conv":
        x = b.input("x", ["n", terms, 3, 3])
        b.output(b.op("Relu", b.conv(x, terms, 6, pads=[0] * 4)))
    else:
        x = b.input("x", ["n", terms])
        b.output(b.op("Relu", b.dense(x, terms, 6)))
    return b.done()


def numbers(graph: Graph) -> list[int]:
    """Returns the extents of an example."""
    return [dim for dim in graph.inputs[0].type.shape or () if isinstance(dim, int)]


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    shape = (32, *numbers(graph))
    return {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}


def by_hand(graph: Graph, x: np.ndarray, bits: int, *, saturate: bool) -> np.ndarray:
    """Returns the sums of a product of one position, added term by term in Python."""
    product = products(graph)[0]
    codes = qb.evaluate(graph, {"x": x})  # also proves that x is taken
    del codes
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    params = product.params
    stored = np.clip(np.rint(x / params.scale) + params.zero_point, params.qmin, params.qmax)
    centred = (stored - params.zero_point).astype(int)
    if x.ndim == 4:
        centred = np.moveaxis(centred, 1, -1)  # channels before taps
    rows, bias = product.in_order("channels-last"), product.bias[0]
    found = np.zeros((len(x), len(rows)), int)
    for sample, terms in enumerate(centred.reshape(len(x), -1)):
        for channel, row in enumerate(rows):
            total = int(bias[channel])
            total = min(max(total, low), high) if saturate else total
            for a, w in zip(terms, row, strict=True):
                total += int(a) * int(w)
                total = min(max(total, low), high) if saturate else total
            found[sample, channel] = (total - low) % (high - low + 1) + low
    return found


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize("overflow", Overflow)
def test_narrow_sums_are_those_added_by_hand(kind: str, overflow: Overflow) -> None:
    graph = one_product(kind)
    data = drawn(graph)
    plain = quantization(graph, data, target="qnn", repair=(), tune=False).graph
    product = products(plain)[0]
    ran = run(plain, data, IntegerArithmetic(14, overflow))
    sums = by_hand(plain, data["x"], 14, saturate=overflow is Overflow.SATURATION)
    result = product.node.output.quant
    assert result is not None
    scale = product.unit(2).reshape(-1) / float(result.params.scale)
    codes = np.rint(sums.astype(np.float32) * scale.astype(np.float32))
    codes = np.clip(codes + int(result.params.zero_point), result.params.qmin, result.params.qmax)
    real = (codes - int(result.params.zero_point)) * float(result.params.scale)
    found = next(iter(ran.outputs.values())).reshape(real.shape)
    # the real numbers of codes, once in float32 and once in float64: a wrong code is a step off
    np.testing.assert_allclose(found, real, rtol=1e-5, atol=1e-6)
    assert sum(ran.overflows.values()) > 0


@pytest.mark.parametrize("name", ["cnn", "attention"])
def test_wide_sums_are_the_contract_bit_for_bit(name: str) -> None:
    graph = made(name, repair=(), tune=False).graph
    expected = qb.evaluate(graph, UNSEEN)
    for arithmetic in (IntegerArithmetic(31), IntegerArithmetic(31, Overflow.SATURATION)):
        ran = run(graph, {"input": UNSEEN["input"][:2]}, arithmetic)
        assert not ran.overflows
        for output, array in ran.outputs.items():
            np.testing.assert_array_equal(array, expected[output][:2])


def test_evaluate_simulates_by_name() -> None:
    graph = made("cnn", repair=(), tune=False).graph
    plain = qb.evaluate(graph, UNSEEN)["logits"]
    several: tuple[dict[str, Any], ...] = (
        {"accumulator_bits": 16}, {"accumulator_bits": 16, "overflow": "saturation"},
        {"pairs": True}, {"requantize": "truncation"}, {"requantize": "shift"},
        {"requantize": "fixed-point"}, {"requantize": "double-round"},
    )  # fmt: skip
    for wanted in several:
        found = qb.evaluate(graph, UNSEEN, **wanted)["logits"]
        assert found.shape == plain.shape and not np.array_equal(found, plain)


@pytest.mark.parametrize(
    "wrong", [{"accumulator_bits": 1}, {"overflow": "trap"}, {"requantize": "ceil"}]
)
def test_what_is_no_arithmetic_is_refused(wrong: dict[str, Any]) -> None:
    graph = made("mlp", repair=(), tune=False).graph
    with pytest.raises(InputDataError):
        qb.evaluate(graph, UNSEEN, **wrong)


# ---- the choice ------------------------------------------------------------------------------


def adversarial(graph: Graph, name: str) -> dict[str, np.ndarray]:
    """Returns inputs that drive every channel of a product of one position to both its ends."""
    product = products(graph)[0]
    params = product.params
    low = (params.qmin - int(params.zero_point)) * float(params.scale)
    high = (params.qmax - int(params.zero_point)) * float(params.scale)
    rows = product.in_order("channels-first")
    ends = [np.where(rows > 0, a, b) for a, b in ((high, low), (low, high))]
    shape = (-1, *numbers(graph))
    return {name: np.concatenate(ends).reshape(shape).astype(np.float32)}


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
@pytest.mark.parametrize(
    "wanted", [{"accumulator_bits": 16}, {"avoid_pairs": True}], ids=lambda w: next(iter(w))
)
def test_no_sum_of_any_input_is_lost(kind: str, wanted: dict[str, Any]) -> None:
    graph = one_product(kind)
    data = drawn(graph)
    arithmetic = arithmetic_of(
        int(str(wanted.get("accumulator_bits", 32))), pairs="avoid_pairs" in wanted
    )
    stopping = IntegerArithmetic(arithmetic.accumulator_bits, Overflow.SATURATION, arithmetic.pairs)
    plain = quantization(graph, data, target="qnn", repair=(), tune=False).graph
    found = quantization(graph, data, target="qnn", **wanted).graph
    for hardware in (arithmetic, stopping):
        assert run(plain, adversarial(plain, "x"), hardware).overflows
        assert not run(found, adversarial(found, "x"), hardware).overflows


@pytest.mark.parametrize("sums_of", ["any-input", "data"])
def test_a_network_survives_sums_of_16_bits(sums_of: str) -> None:
    hardware = IntegerArithmetic(16)
    plain = made("cnn", repair=(), tune=False)
    found = made("cnn", accumulator_bits=16, sums_of=sums_of)
    assert run(plain.graph, UNSEEN, hardware).overflows
    assert not run(found.graph, DATA, hardware).overflows
    if sums_of == "any-input":
        wild = {"input": np.random.default_rng(0).choice([-1e3, 1e3], IMAGES[:32].shape)}
        assert not run(found.graph, {"input": wild["input"].astype(np.float32)}, hardware).overflows
    assert closeness(found, hardware) > closeness(plain, hardware) + 10
    step = found.made.repairs[0]
    assert step.before is not None and step.after is not None
    assert step.step == "arithmetic" and f"{step.before - step.after:.2f} dB" in step.outcome


def test_sums_of_data_have_a_bit_to_spare() -> None:
    """Of samples that nobody chose by none is lost, which a fifth to spare did not reach."""
    found = made("cnn", accumulator_bits=16, sums_of="data")
    ran = run(found.graph, {"input": IMAGES[64:192]}, arithmetic_of(16))
    assert sum(ran.overflows.values()) == 0
    proven = made("cnn", accumulator_bits=16)
    assert closeness(found, arithmetic_of(16)) > closeness(proven, arithmetic_of(16)) + 3


def test_a_network_that_is_rewritten_before_it_is_profiled_fits_too() -> None:
    found = made("attention", accumulator_bits=18, repair=(), tune=False)
    ran = run(found.graph, UNSEEN, arithmetic_of(18))
    assert sum(ran.overflows.values()) == 0


@pytest.mark.parametrize(("requantize", "gain"), [("truncation", 3.0), ("shift", 20.0)])
def test_what_is_chosen_for_a_rounding_is_better_on_it_than_the_default(
    requantize: str, gain: float
) -> None:
    hardware = arithmetic_of(requantize=requantize)
    plain, found = made("cnn", repair=(), tune=False), made("cnn", requantize=requantize)
    assert closeness(found, hardware) > closeness(plain, hardware) + gain


@pytest.mark.parametrize("name", ["mlp", pytest.param("mobile", marks=pytest.mark.slow)])
def test_what_rounds_to_nearest_keeps_repair_and_tuning(name: str) -> None:
    """TOSA's RESCALE differs from the contract in few values, and what that costs is told."""
    graph = qb.load(MODELS / f"digits_{name}_float.onnx")
    found = quantization(graph, DATA, target="tosa")
    usual = quantization(graph, DATA, target="tflite")
    first, *steps = found.made.repairs
    assert first.step == "arithmetic" and "double-round" in first.outcome
    assert [(s.step, s.applied) for s in steps] == [(s.step, s.applied) for s in usual.made.repairs]
    assert found.made.tuning is not None and found.graph.digest == usual.graph.digest
    assert first.before is not None and first.after is not None
    assert abs(first.before - first.after) < 1
    assert f"{first.before - first.after:.2f} dB" in first.outcome
    untuned = quantization(graph, DATA, target="tosa", tune=False, repair=())
    assert "double-round; " in untuned.made.repairs[0].outcome  # the trial's chooser follows


def test_shifts_are_multipliers_that_are_powers_of_two() -> None:
    for product in products(made("cnn", requantize="shift").graph):
        result = product.node.output.quant
        if result is not None:
            places = np.log2(product.unit(2) / float(result.params.scale))
            # a scale is float32: its quotient is a power of two to 24 bits
            np.testing.assert_allclose(places, np.rint(places), atol=1e-5)


def test_a_profile_alone_is_not_enough() -> None:
    graph = qb.load(MODELS / "digits_mlp_float.onnx")
    with pytest.raises(UnsupportedTargetError, match="arithmetic of its own"):
        quantization(graph, None, profile=qb.profile(graph, DATA), accumulator_bits=16)
    with pytest.raises(UnsupportedTargetError, match="says no sums"):
        QuantizeOptions(accumulator_bits=16, sums_of="mine").described()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"target": "dynamic", "accumulator_bits": 16}, "while the model runs"),
        ({"target": "ort", "formats": {"Gemm": Unstored.DYNAMIC}, "avoid_pairs": True}, "runs"),
        ({"target": "weight-only", "accumulator_bits": 16}, "weights alone"),
        ({"target": "float8", "requantize": "shift"}, "add floats"),
        ({"target": "float8", "avoid_pairs": True}, "add floats"),
    ],
)
def test_sums_that_are_no_integers_that_are_known(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedTargetError, match="no sums of integers") as raised:
        QuantizeOptions(**asked).described()
    assert why in raised.value.why


def test_numbers_that_say_nothing() -> None:
    with pytest.raises(InputDataError, match="accumulators of 0 bits"):
        QuantizeOptions(accumulator_bits=0).described()
    for budget in (-1.0, float("nan")):
        with pytest.raises(InputDataError, match="is no budget"):
            QuantizeOptions(budget=budget)


def test_the_command_line_says_what_it_costs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "images.npz"
    np.savez(file, input=IMAGES[:32])
    asked = ["--accumulator-bits", "18", "--requantize", "shift", "--target", "qnn"]
    model, out = str(MODELS / "digits_mlp_float.onnx"), str(tmp_path / "out.onnx")
    extent = ["--extent", "batch=1"]
    assert command(["quantize", model, "--data", str(file), "-o", out, *asked, *extent]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "sums of 18 bits hold any input; rounded by shift" in said
