"""Cross-layer equalization: the function stays, the channels become equal, sabotage is undone.

AIMET is not installed here; what is checked against instead is the known inverse: channels that
were scaled by known factors have to come back to what the model without them gives.
"""

import numpy as np
import pytest

from qdqbridge.autoquant.profiling.collect import prepared
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.repair.equalize import equalized, factors, links, rescaled
from qdqbridge.autoquant.repair.layers import ProductLayer, layer_of
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.attributes import ClipAttrs
from tests.onnx_models import Builder, canonical

RNG = np.random.default_rng(1)
SHAPE = (4, 6, 6)


def drawn(*shape):
    """Weights whose channels differ by powers of ten."""
    array = RNG.standard_normal(shape)
    for axis in (0, 1):
        factor = 10 ** RNG.uniform(-1, 1, shape[axis])
        array = array * factor.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return array.astype(np.float32)


def bias(count):
    return RNG.standard_normal(count).astype(np.float32)


def conv(b, x, before, after, *, size=1, group=1, biased=True, **attributes):
    weight = drawn(after, before // group, size, size)
    operands = [b.init(weight), *([b.init(bias(after))] if biased else [])]
    attributes = {"pads": [size // 2] * 4, **attributes}
    return b.op("Conv", x, *operands, group=group, **attributes)


def graph_of(make, *shape):
    b = Builder(17)
    b.output(make(b, b.input("x", ["n", *shape])))
    return prepared(canonical(b.model()))


def matmul(b, x, before, after):
    y = b.op("MatMul", x, b.init(drawn(before, after)))
    return b.op("Add", b.init(bias(after)), y)


def plain(b, x):
    return conv(b, b.op("Relu", conv(b, x, 4, 8, size=3)), 8, 5, size=3)


def triple(b, x):
    y = b.op("Relu", conv(b, x, 4, 8))
    y = b.op("LeakyRelu", conv(b, y, 8, 8, size=3, group=8), alpha=0.1)
    return conv(b, y, 8, 5)


def grouped(b, x):
    y = b.op("Relu", conv(b, x, 4, 8, group=2))
    return conv(b, b.op("Relu", conv(b, y, 8, 8, group=4, biased=False)), 8, 6, group=2)


def transposed(b, x):
    y = b.op("ConvTranspose", x, b.init(drawn(4, 3, 2, 2)), b.init(bias(6)), group=2)
    y = b.op("PRelu", y, b.init(np.abs(bias(6)).reshape(6, 1, 1)))
    return b.op("ConvTranspose", y, b.init(drawn(6, 5, 2, 2)), strides=[2, 2])


def pooled(b, x):
    y = b.op("MaxPool", b.op("Relu", conv(b, x, 4, 8, size=3)), kernel_shape=[2, 2])
    y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 0, 0])
    pads = b.init(np.array([0, 0, 1, 1, 0, 0, 0, 0], np.int64))
    return conv(b, b.op("Pad", y, pads), 8, 5, size=3)


def flattened(b, x):
    y = b.op("Flatten", b.op("Relu", conv(b, x, 4, 8, size=3)))
    y = b.op("Relu", b.op("Gemm", y, b.init(drawn(6, 288)), b.init(bias(6)), transB=1, alpha=0.5))
    return b.op("Gemm", y, b.init(drawn(6, 3)), b.init(bias(3)), beta=2.0)


def tokens(b, x):
    y = b.op("Reshape", x, b.init(np.array([-1, 6, 24], np.int64)))
    y = b.op("Add", matmul(b, y, 24, 12), b.init(RNG.standard_normal((6, 12)).astype(np.float32)))
    y = b.op("Reshape", b.op("Relu", y), b.init(np.array([0, 6, 3, 4], np.int64)))
    y = b.op("Transpose", y, perm=[0, 2, 3, 1])
    y = b.op("Reshape", b.op("Transpose", y, perm=[0, 3, 1, 2]), b.init(np.array([0, 6, 12])))
    return matmul(b, b.op("Mul", y, b.init(np.float32(0.3))), 12, 5)


def branches(b, x):
    y = b.op("Relu", conv(b, x, 4, 8, size=3))
    left, right = conv(b, y, 8, 5), conv(b, b.op("GlobalAveragePool", y), 8, 5)
    return b.op("Add", left, right)


def shared(b, x):
    weight = b.init(drawn(4, 4, 3, 3))
    for _ in range(2):
        x = b.op("Relu", b.op("Conv", x, weight, pads=[1] * 4))
    return conv(b, x, 4, 5)


LINKED = {
    shared: 2,
    plain: 1,
    triple: 2,
    grouped: 2,
    transposed: 1,
    pooled: 1,
    flattened: 2,
    tokens: 1,
    branches: 1,
}


def difference(a, b):
    (wanted,), (found,) = (list(outputs.values()) for outputs in (a, b))
    return np.abs(wanted - found).max() / np.abs(wanted).max()


def feeds(graph):
    return {"x": np.random.default_rng(2).standard_normal((3, *SHAPE)).astype(np.float32)}


@pytest.mark.parametrize("make", LINKED, ids=lambda make: make.__name__)
def test_the_function_stays(make):
    graph = graph_of(make, *SHAPE)
    found = links(graph, {})
    assert len(found.links) == LINKED[make]
    result, told = equalized(graph, {})
    assert told.startswith(f"channels of {LINKED[make]} products")
    x = feeds(graph)
    # float64, so that only what is rounded to float32 in the weights counts
    before, after = (evaluate(g, x, exact=True)[0] for g in (graph, result))
    assert difference(before, after) < 1e-6
    assert difference(evaluate(graph, x)[0], evaluate(result, x)[0]) < 1e-5


def peaks_of(link):
    assert isinstance(link.source, ProductLayer)
    return link.source.peaks().max(axis=2).reshape(-1)


@pytest.mark.parametrize("make", LINKED, ids=lambda make: make.__name__)
def test_both_sides_are_equal_afterwards(make):
    graph = graph_of(make, *SHAPE)
    result, _ = equalized(graph, {})
    for link in links(result, {}).links:
        first = peaks_of(link)
        second = np.zeros_like(first)
        for end in link.reach.ends:
            np.maximum.at(second, end.channels, end.layer.peaks().max(axis=1).reshape(-1))
        # Found in rounds, which end where no factor moves by more; and weights are float32.
        np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_triple_has_the_closed_form():
    graph = graph_of(triple, *SHAPE)
    found = links(graph, {})
    r1, r2 = map(peaks_of, found.links)
    r3 = found.links[1].reach.ends[0].layer.peaks().max(axis=1).reshape(-1)
    middle = np.cbrt(r1 * r2 * r3)
    first, second = factors(found).values()
    # The peaks are those of float32 weights, and the rounds that find the factors end.
    np.testing.assert_allclose(first, r1 / middle, rtol=1e-6)
    np.testing.assert_allclose(second, middle / r3, rtol=1e-6)


@pytest.mark.parametrize("make", LINKED, ids=lambda make: make.__name__)
def test_sabotage_is_undone(make):
    graph = graph_of(make, *SHAPE)
    wanted = weights(equalized(graph, {})[0])
    for seed in range(3):
        rng = np.random.default_rng(seed)
        found = links(graph, {}).links
        known = {link: 10 ** rng.uniform(-2, 2, link.source.outputs) for link in found}
        broken = rescaled(graph, known)
        assert difference(*(evaluate(g, feeds(g), exact=True)[0] for g in (graph, broken))) < 1e-5
        # Weights are rounded to float32 when they are broken, and again when they are mended.
        for a, b in zip(wanted, weights(equalized(broken, {})[0]), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6 * np.abs(a).max())


def weights(graph):
    return [layer.weight for node in graph.nodes if (layer := layer_of(node)) is not None]


def test_channels_without_weights_keep_their_scale():
    def make(b, x):
        weight = drawn(8, 4, 1, 1)
        weight[3] = 0
        y = b.op("Relu", b.op("Conv", x, b.init(weight), b.init(bias(8))))
        return conv(b, y, 8, 5)

    graph = graph_of(make, *SHAPE)
    (scale,) = factors(links(graph, {})).values()
    assert scale[3] == 1 and np.isfinite(scale).all()


def clipped(low, high):
    def make(b, x):
        y = conv(b, x, 4, 8)
        bounds = [b.init(np.float32(v)) if v is not None else "" for v in (low, high)]
        return conv(b, b.op("Clip", y, *bounds), 8, 5)

    return graph_of(make, *SHAPE)


def test_a_clip_that_never_cuts_becomes_a_relu():
    graph = clipped(0, 1e6)
    clip = next(n for n in graph.nodes if n.op.name == "Clip")
    name = clip.operand(0).name
    stats = TensorStats.of(
        evaluate(graph, feeds(graph), wanted=[clip.operand(0)])[1][clip.operand(0)]
    )
    result, _ = equalized(graph, {name: stats})
    after = next(n for n in result.nodes if n.op.name == "Clip").attributes
    assert isinstance(after, ClipAttrs) and (after.low, after.high) == (0.0, None)
    assert difference(*(evaluate(g, feeds(g), exact=True)[0] for g in (graph, result))) < 1e-6


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0, 0.01, "above 0.01"), (-0.01, None, "below -0.01")]
)
def test_a_clip_that_cuts_is_not_passed(low, high, said):
    graph = clipped(low, high)
    value = next(n for n in graph.nodes if n.op.name == "Clip").operand(0)
    stats = TensorStats.of(evaluate(graph, feeds(graph), wanted=[value])[1][value])
    assert said in " ".join(links(graph, {value.name: stats}).refused.values())
    assert "nothing was seen" in " ".join(links(graph, {}).refused.values())


def test_what_is_equal_is_left():
    once, _ = equalized(graph_of(plain, *SHAPE), {})
    again, told = equalized(once, {})
    assert again is once and told == "channels of 1 products are equal already"


def residual(b, x):
    y = b.op("Relu", conv(b, x, 4, 4))
    return conv(b, b.op("Add", y, conv(b, y, 4, 4)), 4, 5)


def curved(b, x):
    return conv(b, b.op("Sigmoid", conv(b, x, 4, 8)), 8, 5)


def shown(b, x):
    y = conv(b, x, 4, 8)
    b.output(y)
    return conv(b, b.op("Relu", y), 8, 5)


def mixed(b, x):
    y = b.op("Transpose", b.op("Relu", conv(b, x, 4, 6)), perm=[0, 2, 1, 3])
    return conv(b, y, 6, 5)


def padded(b, x):
    pads, one = b.init(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)), b.init(np.float32(1))
    return conv(b, b.op("Pad", b.op("Relu", conv(b, x, 4, 8)), pads, one), 8, 5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (residual, "joins two tensors"),
        (curved, "keeps no factor"),
        (shown, "leaves the graph"),
        (mixed, "mixes channels"),
        (padded, "not zero"),
    ],
    ids=lambda a: getattr(a, "__name__", ""),
)
def test_what_does_not_keep_a_factor_is_refused(make, said):
    graph = graph_of(make, *SHAPE)
    found = links(graph, {})
    assert found.links == [] and any(said in reason for reason in found.refused.values())
    result, told = equalized(graph, {})
    assert result is graph and said in told
