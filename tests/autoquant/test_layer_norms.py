"""Layer norms written out step by step are one operator, and rounded once."""

import numpy as np
import pytest

from qdqbridge.autoquant.profiling.collect import prepared
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.sweep import FloatReference
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.attributes import NormAttrs
from tests.autoquant.float_models import quantize_model
from tests.onnx_models import Builder, canonical

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((9, 5, 6)) * 3 + 1).astype(np.float32)


def steps(b, x, *, axes=(-1,), power="Pow", keepdims=1, epsilon=1e-5):
    mean = b.op("ReduceMean", x, axes=list(axes), keepdims=keepdims)
    centre = b.op("Sub", x, mean)
    square = b.op("Mul", centre, centre)
    if power != "Mul":
        square = b.op("Pow", centre, b.init(np.float32(2 if power == "Pow" else 3)))
    variance = b.op("ReduceMean", square, axes=list(axes), keepdims=1)
    shifted = b.op("Add", b.init(np.float32(epsilon)), variance)
    return b.op("Div", centre, b.op("Sqrt", shifted))


def whole(b, x, *shapes, **options):
    """A layer norm with scale and offset of the given shapes, and a product behind it."""
    y = steps(b, x, **options)
    for name, shape in zip(("Mul", "Add"), shapes, strict=False):
        y = b.op(name, b.init(RNG.standard_normal(shape).astype(np.float32)), y)
    return y


def model(make, shape=("n", 5, 6), opset=13):
    b = Builder(opset)
    y = make(b, b.input("x", list(shape)))
    b.output(b.op("MatMul", y, b.init(RNG.standard_normal((shape[-1], 4)).astype(np.float32))))
    return canonical(b.model())


def operators(graph):
    return [node.op.name for node in graph.nodes]


WHOLE = [
    whole,
    lambda b, x: whole(b, x, power="Mul"),
    lambda b, x: whole(b, x, (6,)),
    lambda b, x: whole(b, x, (6,), (6,)),
    lambda b, x: whole(b, x, (1, 1, 6), ()),
    lambda b, x: whole(b, x, (5, 6), (1, 6), axes=(1, 2)),
]


@pytest.mark.parametrize("make", WHOLE)
def test_steps_are_one_operator(make):
    graph = model(make)
    ready = prepared(graph)
    assert operators(ready) == ["LayerNormalization", "MatMul"]
    (before,), (after,) = (evaluate(g, {"x": X})[0].values() for g in (graph, ready))
    # Steps round in float32 after each; the operator once. Products behind it may cancel.
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=2e-6)
    attributes = ready.nodes[0].attributes
    assert isinstance(attributes, NormAttrs)
    assert attributes.epsilon == float(np.float32(1e-5))
    assert [v.name for v in ready.nodes[0].outputs] == [graph.nodes[-1].operand(0).name]


LEFT = [
    lambda b, x: whole(b, x, axes=(1,)),  # not the last axes
    lambda b, x: whole(b, x, power="Pow 3"),  # no variance
    lambda b, x: whole(b, x, epsilon=np.full((5, 1), 1e-5)),  # an epsilon for each row
]


@pytest.mark.parametrize("make", LEFT)
def test_what_is_no_layer_norm_is_left(make):
    graph = model(make)
    assert operators(prepared(graph)) == operators(graph)


def test_scales_that_are_not_its_own_are_left():
    graph = model(lambda b, x: whole(b, x, (5, 1), (6,)))
    assert operators(prepared(graph)) == ["LayerNormalization", "Mul", "Add", "MatMul"]


def test_a_result_that_is_read_twice_is_kept():
    def make(b, x):
        y = steps(b, x)
        return b.op("Add", y, b.op("Mul", y, b.init(np.ones(6, np.float32))))

    assert operators(prepared(model(make)))[0] == "LayerNormalization"


def test_rounded_once_it_is_better_by_far(monkeypatch):
    graph = model(WHOLE[3])
    data = {"x": (X * RNG.lognormal(0, 2, (9, 5, 1))).astype(np.float32)}
    found = quantize_model(graph, data, repair=()).graph
    monkeypatch.setattr("qdqbridge.autoquant.calibration.prepared", lambda graph: graph)
    rough = quantize_model(graph, data, repair=()).graph
    judge = FloatReference(graph, Samples.of(graph.inputs, data))
    assert judge.sqnr(found) > judge.sqnr(rough) + 5, (judge.sqnr(found), judge.sqnr(rough))
