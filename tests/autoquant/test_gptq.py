"""Rounding weights together: never worse than the nearest integers, never better than the best."""

import itertools

import numpy as np
import pytest

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.targets import ORT
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.gptq import columns, hessians, loss, rounded_rows, with_rounding
from qdqbridge.autoquant.repair.layers import layer_of
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from tests.autoquant.float_models import quantize_plainly
from tests.onnx_models import Builder, canonical

W4 = Format(DType.INT4, symmetric=True, axis=0)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("seed", range(30))
def test_between_nearest_and_exhaustive(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 9))
    weight = drawn(seed, 1, size)
    mixing = drawn(seed + 100, size, size) + 2 * drawn(seed + 200, size, 1)
    x = mixing @ drawn(seed + 300, size, 50)
    hessian = x @ x.T
    scale = np.full_like(weight, np.abs(weight).max() / 7)
    zero = np.zeros_like(weight)

    def lost(stored):
        return float(loss(weight, stored, scale, zero, hessian)[0])

    nearest = np.clip(np.rint(weight / scale), -7, 7)
    below = np.floor(weight / scale)
    # up to three integers beside each weight: 3^8 combinations at most
    steps = range(-1, 3) if size <= 6 else range(2)
    best = min(
        lost(np.clip(below + np.array(step), -7, 7))
        for step in itertools.product(steps, repeat=size)
    )
    ours = lost(rounded_rows(weight, scale, zero, hessian, -7, 7))
    assert lost(nearest) >= ours >= best * (1 - 1e-9) or ours < best  # beyond the neighbours
    assert ours <= lost(nearest)


def test_it_gains_much_on_correlated_operands():
    gains = []
    for seed in range(10):
        weight, common = drawn(seed, 16, 24), drawn(seed + 50, 24, 3)
        x = common @ drawn(seed + 60, 3, 200) + 0.1 * drawn(seed + 70, 24, 200)
        scale = np.repeat(np.abs(weight).max(axis=1, keepdims=True) / 7, 24, axis=1)
        zero = np.zeros_like(scale)
        ours = rounded_rows(weight, scale, zero, x @ x.T, -7, 7)
        nearest = np.clip(np.rint(weight / scale), -7, 7)
        errors = [loss(weight, q, scale, zero, x @ x.T).sum() for q in (nearest, ours)]
        gains.append(errors[0] / errors[1])
    assert np.median(gains) > 3


def conv(b, x):
    weight = drawn(1, 6, 2, 3, 2).astype(np.float32)
    how = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2], "group": 2}
    return b.op("Conv", x, b.init(weight), **how)


def depthwise(b, x):
    return b.op("Conv", x, b.init(drawn(2, 4, 1, 3, 3).astype(np.float32)), group=4)


def transposed(b, x):
    weight = drawn(3, 4, 3, 3, 2).astype(np.float32)
    how = {"strides": [2, 1], "pads": [1, 0, 1, 1], "group": 2, "output_padding": [1, 0]}
    return b.op("ConvTranspose", x, b.init(weight), dilations=[1, 2], **how)


def overhanging(b, x):
    weight = drawn(3, 4, 3, 2, 2).astype(np.float32)
    return b.op("ConvTranspose", x, b.init(weight), pads=[2, 0, 0, 2], strides=[3, 2])


def matrix(b, x):
    return b.op("MatMul", x, b.init(drawn(4, 7, 3).astype(np.float32)))


def gemm(b, x):
    return b.op(
        "Gemm", b.op("Flatten", x), b.init(drawn(5, 3, 4 * 35).astype(np.float32)), transB=1
    )


@pytest.mark.parametrize(
    "make",
    [conv, depthwise, transposed, overhanging, matrix, gemm],
    ids=lambda make: make.__name__,
)
def test_columns_times_weights_is_the_product(make):
    b = Builder(17)
    b.output(make(b, b.input("x", ["n", 4, 5, 7])))
    graph = canonical(b.model())
    node = graph.nodes[-1]
    layer = layer_of(node)
    assert layer is not None
    x = drawn(6, 3, 4, 5, 7).astype(np.float32)
    (wanted,) = evaluate(graph, {"x": x}, exact=True)[0].values()
    operand = x.reshape(3, -1) if make is gemm else x
    seen = columns(layer, operand.astype(np.float64))
    grid = layer.grid(layer.weight.astype(np.float64))
    got = grid.reshape(layer.groups, layer.outputs // layer.groups, -1) @ seen
    want = np.moveaxis(wanted, layer.result_axis, 0).reshape(layer.outputs, -1)
    # float64 sums in another order, here and below
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-12, atol=1e-12)
    whole = hessians(layer, [operand[:1], operand[1:]])
    np.testing.assert_allclose(whole, seen @ seen.transpose(0, 2, 1), rtol=1e-12)


@pytest.mark.parametrize("make", [conv, depthwise, transposed, matrix], ids=lambda m: m.__name__)
def test_a_graph_with_4_bit_weights_is_better(make):
    from dataclasses import replace

    b = Builder(21)
    b.output(make(b, b.op("Relu", b.input("x", ["n", 4, 5, 7]))))
    graph = canonical(b.model())
    x = (drawn(7, 24, 4, 5, 7) + 2 * drawn(8, 24, 1, 1, 1)).astype(np.float32)
    target = replace(ORT, weights=W4, outputs=False)
    start = quantize_plainly(graph, {"x": x}, target).decision
    result, told = with_rounding(start, Samples.of(graph.inputs, {"x": x}))
    assert told == "weights of 1 products rounded together"
    assert not start.integers and list(result.integers) == [start.plan.weights[0]]
    (wanted,) = evaluate(graph, {"x": x})[0].values()

    def noise(decision):
        (got,) = evaluate(apply(decision), {"x": x})[0].values()
        return float(((got - wanted) ** 2).sum())

    assert noise(result) < noise(start)


def test_8_bit_weights_are_left_unless_asked():
    b = Builder(17)
    b.output(conv(b, b.input("x", ["n", 4, 5, 7])))
    graph = canonical(b.model())
    data = {"x": drawn(9, 8, 4, 5, 7).astype(np.float32)}
    start, samples = quantize_plainly(graph, data, ORT).decision, Samples.of(graph.inputs, data)
    same, told = with_rounding(start, samples)
    assert same is start and "no weight has 4 bits" in told
    other, _ = with_rounding(start, samples, bits=8)
    assert len(other.integers) == 1
