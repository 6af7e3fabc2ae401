"""Data that say nothing of others are told before ranges are chosen by them; others are not."""

import logging

import numpy as np
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.advice.input_scale import before_bounds, uninformative
from qdqbridge.autoquant.profiling.samples import Samples
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"]
NETWORKS = ("attention", "cnn", "mlp", "mobile")


def told_of(network, images):
    graph = qb.load(MODELS / f"digits_{network}_float.onnx")
    return uninformative(graph, Samples.of(graph.inputs, {"input": images.astype(np.float32)}))


@pytest.mark.parametrize("network", NETWORKS)
def test_right_data_are_not_told(network):
    assert "there is one sample alone" in told_of(network, IMAGES[:1])
    for images in (IMAGES[:64], IMAGES[:2], IMAGES[:64] / 2, IMAGES[:64] * 255):
        assert told_of(network, images) == ""


@pytest.mark.parametrize("network", NETWORKS)
def test_data_that_say_nothing_are_told(network):
    assert "input 'input' is 0.0 everywhere" in told_of(network, 0 * IMAGES[:64])
    assert "input 'input' is 0.5 everywhere" in told_of(network, np.full_like(IMAGES[:1], 0.5))
    assert "all of its 32 samples are the same" in told_of(network, IMAGES[[3] * 32])
    assert "16 different samples differ by" in told_of(network, IMAGES[:64] * 1e-5)


@pytest.mark.parametrize("kind", ["arrays", "file"])
def test_quantize_tells_it_and_goes_on(kind, tmp_path, caplog):
    data = {"input": 0 * IMAGES[:16]}
    np.savez(tmp_path / "zeros.npz", **data)
    with caplog.at_level(logging.WARNING):
        made = quantization(
            MODELS / "digits_mlp_float.onnx",
            tmp_path / "zeros.npz" if kind == "file" else data,
            repair=(), chooser="minmax",
        )  # fmt: skip
    (record,) = [r for r in caplog.records if "do not represent what" in r.getMessage()]
    assert "give different samples as the model gets them" in record.getMessage()
    assert made.made.decision.plan.rules


def two_inputs():
    """A signal beside a state that is zeros at first and a mask of ones."""
    b = Builder(17)
    x, state, mask = b.input("x", ["n", 4]), b.input("state", ["n", 4]), b.input("mask", ["n", 4])
    b.output(b.op("Mul", b.op("Add", x, state), mask), ["n", 4])
    return canonical(b.model())


def test_a_state_of_zeros_or_a_mask_of_ones_is_no_mistake():
    graph, rng = two_inputs(), np.random.default_rng(0)
    data = {"x": rng.standard_normal((8, 4)), "state": np.zeros((8, 4)), "mask": np.ones((8, 4))}
    data = {name: array.astype(np.float32) for name, array in data.items()}
    assert uninformative(graph, Samples.of(graph.inputs, data)) == ""
    data["x"][:] = 3
    found = uninformative(graph, Samples.of(graph.inputs, data))
    assert "'x' is 3.0 and input 'state' is 0.0 and input 'mask' is 1.0 everywhere" in found


def saturated(bias):
    """A probability that is 1 but for the fifth digit, whatever the sample."""
    b = Builder(17)
    product = b.op("MatMul", b.input("x", ["n", 4]), b.init(np.eye(4, 1, dtype=np.float32)))
    y = b.op("Sigmoid", b.op("Add", product, b.init(np.array([bias], np.float32))))
    b.output(b.op("Reshape", y, b.init(np.array([-1, 1, 1], np.int64))), ["n", 1, 1])
    return canonical(b.model())


def test_what_saturates_at_the_end_is_compared_before_it():
    x = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32)
    graph = saturated(12.0)
    compared = before_bounds(graph.outputs[0]).producer
    assert compared is not None and compared.op.name in ("Add", "Dense", "Gemm")
    assert uninformative(graph, Samples.of(graph.inputs, {"x": x})) == ""
    assert "differ by" in uninformative(graph, Samples.of(graph.inputs, {"x": x / 1000}))


def test_outputs_of_other_shapes_or_other_integers_differ():
    b = Builder(17)
    x = b.input("x", ["n", 4])
    b.output(b.op("ArgMax", x, axis=1, keepdims=0), ["n"], TensorProto.INT64)
    graph = canonical(b.model())
    data = np.eye(4, dtype=np.float32) + 1e6
    assert uninformative(graph, Samples.of(graph.inputs, {"x": data})) == ""
