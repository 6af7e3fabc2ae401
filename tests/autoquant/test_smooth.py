"""SmoothQuant and AWQ: the function stays, the error falls, and the search includes both ends."""

from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.plan import weights_of
from qdqbridge.autoquant.planning.targets import DYNAMIC, DYNAMIC_ROWS, ORT, WEIGHT_ONLY
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.equalize import EXPONENTS, activation_aware, smoothed, smoothing
from qdqbridge.core.graph.interpreter import evaluate
from tests.autoquant.float_models import quantize_plainly
from tests.onnx_models import Builder, canonical

RNG = np.random.default_rng(5)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def spread(count):
    """Gains of channels, a few of which are huge."""
    gains = 10 ** RNG.uniform(-1, 0, count)
    gains[:2] *= 200
    return gains.astype(np.float32)


def attention(b, x):
    y = b.op("LayerNormalization", x, b.init(spread(16)), b.init(drawn(16)), axis=-1)
    q, k, v = (b.op("MatMul", y, b.init(drawn(16, 16))) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    scores = b.op("Softmax", b.op("Mul", scores, b.init(np.float32(1e-4))))
    return b.op("MatMul", b.op("MatMul", scores, v), b.init(drawn(16, 4)))


def previous(b, x):
    weight = drawn(16, 24) * spread(24)
    y = b.op("Add", b.op("MatMul", x, b.init(weight)), b.init(drawn(24)))
    return b.op("MatMul", b.op("Relu", y), b.init(drawn(24, 8)))


def images(b, x):
    y = b.op("Unsqueeze", x, b.init(np.array([1], np.int64)))
    y = b.op("Conv", y, b.init(drawn(6, 1, 3, 3) * spread(6).reshape(6, 1, 1, 1)))
    y = b.op("InstanceNormalization", y, b.init(spread(6)), b.init(drawn(6)))
    return b.op("Conv", b.op("LeakyRelu", y), b.init(drawn(4, 6, 3, 3)), pads=[1] * 4)


MODELS = [attention, previous, images]


def made(make, target=ORT):
    b = Builder(18)
    b.output(make(b, b.input("x", ["n", 8, 16])))
    graph = canonical(b.model())
    data = {"x": drawn(32, 8, 16)}
    return graph, data, quantize_plainly(graph, data, target)


def output(graph, x, *, exact=False):
    return next(iter(evaluate(graph, x, exact=exact)[0].values())).astype(np.float64)


def ratio(make, target):
    """Returns the noise of fresh samples behind smoothing, over that before; the function stays."""
    graph, data, start = made(make, target)
    samples = Samples.of(graph.inputs, data)
    result, told = smoothed(start.decision, samples, start.profile.by_name())
    assert "of 1 of 1 tensors scaled" in told
    wanted, got = output(graph, data, exact=True), output(result, data, exact=True)
    assert np.abs(wanted - got).max() <= 1e-5 * np.abs(wanted).max()
    after = quantize_plainly(result, data, target)
    fresh = {"x": drawn(32, 8, 16)}
    real = output(graph, fresh)
    before, behind = (((output(q.graph, fresh) - real) ** 2).sum() for q in (start, after))
    return behind / before


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_the_function_stays_and_the_error_falls(make):
    assert np.exp(np.mean([np.log(ratio(make, ORT)) for _ in range(4)])) < 0.95


@pytest.mark.parametrize("make", [attention, previous], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("target", "weights"), [(WEIGHT_ONLY, "int4/8"), (DYNAMIC, "int8"), (DYNAMIC_ROWS, "int8")],
    ids=lambda each: getattr(each, "name", None),
)  # fmt: skip
def test_it_helps_where_activations_are_not_stored(make, target, weights):
    own = replace(target, weights=weights_of(weights))
    assert np.exp(np.mean([np.log(ratio(make, own)) for _ in range(4)])) < 0.8


def test_the_formulas():
    means = np.array([4.0, 0.0, 9.0])
    np.testing.assert_array_equal(activation_aware(means, 0.5), [2, 1, 3])
    np.testing.assert_array_equal(activation_aware(means, 1.0), [4, 1, 9])

    x, w = np.array([8.0, 2.0, 0.0, 5.0]), np.array([2.0, 4.0, 1.0, 0.0])
    np.testing.assert_array_equal(smoothing(x, w, 0.5), [2.0, np.sqrt(0.5), 1, 1])
    np.testing.assert_array_equal(smoothing(x, w, 1.0), [8, 2, 1, 1])
    np.testing.assert_array_equal(smoothing(x, w, 0.0), [1 / 2, 1 / 4, 1, 1])
    assert EXPONENTS[0] == 0 and EXPONENTS[-1] == 1 and len(EXPONENTS) == 11


def test_a_tensor_that_leaves_is_left():
    def make(b, x):
        y = b.op("LayerNormalization", x, b.init(spread(16)), axis=-1)
        return b.op("Add", y, b.op("MatMul", y, b.init(drawn(16, 16))))

    graph, data, start = made(make)
    result, told = smoothed(start.decision, Samples.of(graph.inputs, data), {})
    assert result is start.decision.plan.graph and "none of 0 tensors" in told
    assert apply(start.decision).digest == start.graph.digest
