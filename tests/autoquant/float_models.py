"""Small float networks and decisions about them, for tests of what follows a decision."""

import numpy as np
import onnx

from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.planning.decide import decide
from qdqbridge.autoquant.planning.plan import plan
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.collect import (
    collect,
    observable,
    onnxruntime_observer,
    prepared,
)
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import QuantizeOptions, quantized
from qdqbridge.autoquant.search.sensitivity import Variants
from tests.onnx_models import Builder, canonical


def network(seed=0, *, spread=30.0):
    """A CNN with a residual, movers, a pool and a classifier; two of its layers are delicate."""
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def conv(b, x, channels, out, scale=None):
        weight = drawn(out, channels, 3, 3) / (3 * channels**0.5)
        if scale is not None:
            weight *= scale.reshape(-1, 1, 1, 1)
        return b.op("Conv", x, b.init(weight), b.init(drawn(out) / 4), pads=[1] * 4)

    b = Builder(17)
    x = b.input("x", ["n", 3, 8, 8])
    y = b.op("Relu", conv(b, x, 3, 8))
    uneven = np.geomspace(1, spread, 8).astype(np.float32)
    y = b.op("Relu", conv(b, y, 8, 8, uneven))
    z = conv(b, y, 8, 8, 1 / uneven)
    y = b.op("Add", y, z)
    y = b.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = b.op("Sigmoid", conv(b, y, 8, 12))
    y = b.op("Flatten", b.op("GlobalAveragePool", y))
    b.output(b.op("Gemm", y, b.init(drawn(10, 12)), b.init(drawn(10)), transB=1))
    return prepared(canonical(b.model()))


def data(count=24, seed=1):
    return np.random.default_rng(seed).standard_normal((count, 3, 8, 8)).astype(np.float32)


def decided(graph, target, count=24):
    """Returns samples, and the variants of a decision about ``graph``."""
    samples = Samples.of(graph.inputs, {"x": data(count)})
    seen = collect(graph, samples, onnxruntime_observer(graph)).by_name()
    stats = {value: seen[value.name] for value in observable(graph)}
    decision = decide(plan(graph, target), stats, target)
    return samples, Variants(decision, target, stats)


def quantize_model(
    graph, data, target: str | Target = "ort", *, profile=None, progress=None, **wanted
):
    """Quantizes with options by their names."""
    options = QuantizeOptions(target, **wanted)
    return quantized(graph, data, options, profile=profile, progress=progress)


def quantize_plainly(graph, data, target, **wanted):
    """The same as the target's choosers say, without tuning or repair."""
    return quantize_model(graph, data, target, repair=(), tune=False, **wanted)


def one_large_layer(seed=0):
    """A CNN of whose layers the second one takes nearly all of the time."""
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    b = Builder(20)
    x = b.input("x", ["n", 3, 64, 64])
    y = b.op("Relu", b.op("Conv", x, b.init(drawn(64, 3, 1, 1))))
    y = b.op("Conv", y, b.init(drawn(64, 64, 3, 3) / 24), pads=[1] * 4)
    y = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", y)))
    b.output(b.op("MatMul", y, b.init(drawn(64, 10))))
    return prepared(canonical(b.model()))


def images(count=8):
    return np.random.default_rng(1).standard_normal((count, 3, 64, 64)).astype(np.float32)


def slow_layer(target="a16w8"):
    """Returns :func:`one_large_layer` with 16-bit activations, which no engine is fast with."""
    return quantization(one_large_layer(), {"x": images()}, target=target, repair=(), tune=False)


def masked(path):
    """Attention whose mask is -1e4: no scale of 8 bits resolves that and the scores beside it."""
    rng = np.random.default_rng(0)
    b = Builder(17)
    x = b.input("x", ["n", 8, 16])
    weights = (rng.standard_normal((3, 16, 16)) / 4).astype(np.float32)
    q, k, v = (b.op("MatMul", x, b.init(weight)) for weight in weights)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    mask = np.triu(np.full((8, 8), -1e4, np.float32), 1)
    shares = b.op("Softmax", b.op("Add", scores, b.init(mask)), axis=-1)
    b.output(b.op("MatMul", shares, v))
    onnx.save(b.model(), path)
    return path
