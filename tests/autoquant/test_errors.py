"""Errors per layer and of weights, against what they mean; and the record made of them."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.autoquant.hardware.products import accumulators
from qdqbridge.autoquant.planning.targets import ORT
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.reporting import record_of, tensors
from qdqbridge.autoquant.search.sensitivity import errors, matches, some_of, sqnr, weight_errors
from qdqbridge.core.graph.interpreter import evaluate, evaluate_node
from qdqbridge.core.graph.numerics import dequantize, quantize
from tests.autoquant.float_models import quantize_model
from tests.autoquant.test_collect import MODELS
from tests.onnx_models import Builder, canonical

IMAGES = np.load(MODELS / "digits_test.npz")["x"][:40]


@pytest.fixture(scope="module", params=["cnn", "attention"])
def made(request):
    graph = qb.load(MODELS / f"digits_{request.param}_float.onnx")
    data = {graph.inputs[0].name: IMAGES}
    return quantize_model(graph, data, chooser="mse", weight_chooser="minmax")


def samples_of(made, count=40):
    inputs = made.decision.plan.graph.inputs
    return Samples.of(inputs, {inputs[0].name: IMAGES[:count]})


def decibels(real, other):
    real = real.astype(np.float64)
    noise = np.sum((real - other) ** 2)
    return 10 * np.log10(np.sum(real**2) / noise) if noise else math.inf


def test_errors_are_those_of_the_whole_tensors(made):
    graph, samples = made.decision.plan.graph, samples_of(made)
    found = errors(graph, made.graph, samples, limit=100)
    assert found.samples == 40
    matched = matches(graph, made.graph)
    _, reals = evaluate(graph, samples.arrays, wanted=matched.values())
    _, stored = evaluate(made.graph, samples.arrays, wanted=matched)
    assert len(found.layers) > 8
    by_name = {}
    for value, real in matched.items():
        if value.producer is not None:
            by_name.setdefault(real.name, (value, real))
    for layer in found.layers:
        value, real = by_name[layer.name]
        got = stored[value]
        got = got if value.quant is None else dequantize(got, value.quant.params)
        # Tallies are of batches: sums of squares in another order, far below what is printed.
        assert layer.accumulated_db == pytest.approx(decibels(reals[real], got), abs=1e-4)


def test_a_layer_alone_is_fed_with_float_tensors_rounded_once(made):
    graph, samples = made.decision.plan.graph, samples_of(made)
    found = {layer.name: layer for layer in errors(graph, made.graph, samples, limit=100).layers}
    matched = matches(graph, made.graph)
    _, reals = evaluate(graph, samples.arrays, wanted=matched.values())
    checked = 0
    for node in made.graph.nodes:
        operands = [v for v in node.inputs if v is not None and v.constant is None]
        result = node.outputs[0]
        if result not in matched or not all(v in matched for v in operands):
            continue
        layer = found.get(matched[result].name)
        if layer is None or layer.operator != node.op.name:
            continue
        stored = []
        for value in node.inputs:
            if value is None or value.constant is not None:
                stored.append(None if value is None else value.constant.numpy())
            else:
                real = reals[matched[value]]
                stored.append(real if value.quant is None else quantize(real, value.quant.params))
        ours = evaluate_node(node, stored)[0]
        ours = ours if result.quant is None else dequantize(ours, result.quant.params)
        # A tie of an operand, one ulp of its float apart, is rounded to the other side.
        assert layer.local_db == pytest.approx(decibels(reals[matched[result]], ours), abs=0.02)
        checked += 1
    assert checked >= 8


def test_every_stored_activation_has_a_float_counterpart(made):
    matched = matches(made.decision.plan.graph, made.graph)
    for node in made.graph.nodes:
        for value in node.outputs:
            assert value in matched


def test_the_graph_itself_has_no_error():
    graph = qb.load(MODELS / "digits_cnn_float.onnx")
    found = errors(graph, graph, Samples.of(graph.inputs, {"input": IMAGES[:8]}))
    assert all(layer.accumulated_db > 110 and layer.local_db > 110 for layer in found.layers)


def test_progress_ends_with_all():
    graph = qb.load(MODELS / "digits_cnn_float.onnx")
    seen = []
    samples = Samples.of(graph.inputs, {"input": IMAGES})
    errors(graph, graph, samples, limit=20, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_samples_are_spread_over_all():
    samples = Samples({"x": np.arange(100)}, 1)
    assert some_of(samples, 5).arrays["x"].tolist() == [0, 24, 49, 74, 99]
    assert len(some_of(samples, 1000)) == 100
    pairs = Samples({"x": np.arange(100)}, 2)
    assert some_of(pairs, 4).arrays["x"].tolist() == [0, 1, 98, 99]
    assert len(some_of(pairs, 1)) == 1


def test_ratios_of_powers():
    assert sqnr(100.0, 1.0) == 20.0
    assert sqnr(1.0, 0.0) == math.inf and sqnr(0.0, 1.0) == -math.inf
    assert math.isnan(sqnr(0.0, 0.0)) and math.isnan(sqnr(math.nan, 1.0))
    assert sqnr(1e-320, 1e300) < -6000


def test_weight_errors_are_those_of_the_stored_weights(made):
    found = weight_errors(made.decision)
    assert len(found) == len(made.decision.weights)
    for row, (weight, params) in zip(found, made.decision.weights.items(), strict=True):
        real = weight.value.constant.numpy()
        decided = made.decision.integers.get(weight)  # by a repair; else the nearest ones
        got = dequantize(quantize(real, params) if decided is None else decided, params)
        assert row.name == weight.value.name and row.scales == params.scale.size
        # float64 sums in another order
        assert row.sqnr_db == pytest.approx(decibels(real, got), abs=1e-9)
        assert row.largest >= 0


def test_the_record_holds_what_was_found(made):
    samples = samples_of(made, 16)
    reference = made.decision.plan.graph
    record = record_of(made, ORT, samples, model="net", data="x.npz", versions={}, limit=16)
    assert record.digest == made.graph.digest and record.float_digest == made.original.digest
    assert (record.samples, record.measured) == (40, 16)
    assert record.layers == errors(reference, made.graph, samples, limit=16).layers
    assert record.notes == () and record.outputs[0].sqnr_db > 30
    assert [t.name for t in record.tensors] == [e.name for e in made.profile.tensors.values()]
    assert len(record.accumulators) == len(accumulators(made.graph))
    for row in record.accumulators:
        assert row.observed_bits is not None and row.calibrated_bits is not None
        assert row.observed_bits <= row.calibrated_bits <= row.bits <= row.naive_bits
    assert "MSE" in record.choosers["activations"]


def test_tensors_have_the_histogram_and_the_range_that_was_chosen(made):
    stats, values = made.profile.by_name(), {v.name: p for v, p in made.decision.values.items()}
    found = tensors(made.decision, stats)
    assert {t.name for t in found if t.scale is not None} == set(values)
    for tensor in found:
        seen = stats[tensor.name]
        assert sum(tensor.bins) == seen.histogram.total == tensor.count - tensor.zeros
        assert len(tensor.bins) <= 64
        if tensor.bins:
            last = tensor.first + tensor.width * len(tensor.bins)
            assert tensor.first <= seen.minimum or seen.minimum == 0  # zeros are in no bin
            assert seen.maximum < last or seen.maximum == 0
            assert tensor.bins[0] and tensor.bins[-1]
        if tensor.scale is not None:
            codes = np.array([0, 255], np.uint8)
            ends = dequantize(codes, values[tensor.name])
            # The record has the ends in float64, `dequantize` rounds them to float32.
            assert (tensor.low, tensor.high) == pytest.approx(tuple(ends), rel=2**-23)


def test_clipped_values_are_counted(made):
    name, params = next((v, p) for v, p in made.decision.values.items())
    values = np.linspace(-1, 1, 2001).astype(np.float32)
    narrow = replace(params, scale=np.float32(1 / 255), zero_point=np.int32(0))
    decision = replace(made.decision, values={name: narrow})
    (tensor,) = tensors(decision, {name.name: TensorStats.of(values)})
    # All that is negative: 1000 of 2001 values.
    assert tensor.clipped == pytest.approx(1000 / 2001)
    assert (tensor.low, tensor.high) == (0.0, 255 * float(params.scale))


def test_what_stays_float_is_told():
    graph = qb.load(MODELS / "digits_cnn_float.onnx")
    made = quantize_model(
        graph, {"input": IMAGES}, exclude=["Gemm"], chooser="mse", weight_chooser="minmax"
    )
    record = record_of(made, ORT, None, versions={})
    assert [(row.operator, row.reason) for row in record.floats] == [
        ("Gemm", "the user excludes 'Gemm'")
    ]
    assert record.layers == () and record.outputs == () and record.measured == 0
    assert all(row.observed is None for row in record.accumulators)
    assert all(row.calibrated_bits is not None for row in record.accumulators)  # by the profile


@dataclass
class Step:
    step: str = "bias"
    applied: bool = True
    outcome: str = "12 layers"
    before: float | None = 30.0
    after: float | None = 31.0


def test_repair_steps_are_taken_over(made):
    record = record_of(made, ORT, None, repairs=[Step()], versions={})  # pyright: ignore[reportArgumentType]
    (row,) = record.repairs
    assert (row.step, row.applied, row.outcome) == ("bias", True, "12 layers")
    assert (row.before_db, row.after_db) == (30.0, 31.0)


def test_what_a_clamp_cuts_off_later_is_no_error():
    """The range of a Relu behind a MaxPool is that of the product before it."""
    b = Builder(17)
    rng = np.random.default_rng(0)
    y = b.input("x", ["n", 3, 8, 8])
    y = b.op("Conv", y, b.init(rng.standard_normal((4, 3, 3, 3)).astype(np.float32)))
    y = b.op("Relu", b.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    y = b.op("MatMul", b.op("Flatten", y), b.init(rng.standard_normal((36, 4)).astype(np.float32)))
    b.output(y)
    graph = canonical(b.model())
    samples = Samples.of(graph.inputs, {"x": rng.standard_normal((8, 3, 8, 8)).astype(np.float32)})
    found = quantize_model(graph, samples.arrays, repair=(), chooser="minmax")
    layers = {e.operator: e for e in errors(found.decision.plan.graph, found.graph, samples).layers}
    assert layers["Conv"].local_db > 30 and layers["Conv"].accumulated_db > 30
