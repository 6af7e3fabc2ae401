"""Small float networks of several kinds, for what targets promise about engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qdqbridge
from qdqbridge.core.graph.graph import Graph
from tests.onnx_models import Builder, canonical
from tests.places import MODELS

Data = dict[str, NDArray[Any]]
_SEED = 7


class Net(Builder):
    """A builder that draws its weights."""

    def __init__(self) -> None:
        super().__init__(20)
        self._chance = np.random.default_rng(_SEED)

    def drawn(self, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        """Returns normal numbers."""
        return (scale * self._chance.standard_normal(shape)).astype(np.float32)

    def conv(self, x: str, channels: int, out: int, kernel: int = 3, **attributes: Any) -> str:
        """Adds a Conv that keeps the extent where its stride is 1."""
        terms = channels // attributes.get("group", 1)
        weight = self.drawn(out, terms, kernel, kernel, scale=1 / (kernel * terms**0.5))
        pads = attributes.pop("pads", [kernel // 2] * 4)
        bias = self.init(self.drawn(out, scale=0.2))
        return self.op("Conv", x, self.init(weight), bias, pads=pads, **attributes)

    def dense(self, x: str, terms: int, out: int) -> str:
        """Adds a MatMul and its bias."""
        weight = self.init(self.drawn(terms, out, scale=terms**-0.5))
        return self.op("Add", self.op("MatMul", x, weight), self.init(self.drawn(out, scale=0.2)))

    def clipped(self, x: str) -> str:
        """Adds a ReLU6."""
        return self.op("Clip", x, self.init(np.float32(0)), self.init(np.float32(6)))

    def done(self) -> Graph:
        """Returns the graph."""
        return canonical(self.model())


def mobile_v3() -> Graph:
    """Inverted residuals with HardSwish, squeeze and excitation, depthwise convolutions."""
    b = Net()
    y = b.op("HardSwish", b.conv(b.input("x", ["n", 3, 16, 16]), 3, 16, strides=[2, 2]))
    for _ in range(2):
        z = b.op("HardSwish", b.conv(y, 16, 32, 1))
        z = b.op("HardSwish", b.conv(z, 32, 32, group=32))
        gate = b.op("Relu", b.conv(b.op("GlobalAveragePool", z), 32, 8, 1))
        z = b.op("Mul", z, b.op("HardSigmoid", b.conv(gate, 8, 32, 1), alpha=1 / 6, beta=0.5))
        y = b.op("Add", y, b.conv(z, 32, 16, 1))
    y = b.op("Flatten", b.op("GlobalAveragePool", b.clipped(b.conv(y, 16, 24, 1))))
    weight, bias = b.init(b.drawn(10, 24, scale=0.2)), b.init(b.drawn(10, scale=0.1))
    b.output(b.op("Gemm", y, weight, bias, transB=1))
    return b.done()


def transformer() -> Graph:
    """A block of a transformer encoder: norms, attention of two heads, GELU."""
    b, width, heads, length = Net(), 16, 2, 8
    x = b.input("x", ["n", length, width])

    def norm(y: str) -> str:
        gain = b.init((1 + b.drawn(width, scale=0.1)).astype(np.float32))
        return b.op("LayerNormalization", y, gain, b.init(b.drawn(width, scale=0.1)), axis=-1)

    def split(y: str, perm: list[int]) -> str:
        shape = b.init(np.array([0, length, heads, width // heads]))
        return b.op("Transpose", b.op("Reshape", y, shape), perm=perm)

    own = norm(x)
    q, k, v = (
        split(b.dense(own, width, width), perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = b.op("Div", b.op("MatMul", q, k), b.init(np.float32((width // heads) ** 0.5)))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    mixed = b.op("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = b.op("Reshape", mixed, b.init(np.array([0, length, width])))
    y = b.op("Add", x, b.dense(mixed, width, width))
    inner = b.op("Gelu", b.dense(norm(y), width, 32))
    y = b.op("Add", y, b.dense(inner, 32, width))
    b.output(b.dense(b.op("ReduceMean", y, b.init(np.array([1])), keepdims=0), width, 10))
    return b.done()


def unet() -> Graph:
    """Down, up by ConvTranspose and by Resize, joined by Concat."""
    b = Net()
    x = b.input("x", ["n", 3, 16, 16])
    high = b.op("LeakyRelu", b.conv(x, 3, 8), alpha=0.1)
    low = b.op("MaxPool", high, kernel_shape=[2, 2], strides=[2, 2])
    low = b.op("LeakyRelu", b.conv(low, 8, 16), alpha=0.1)
    deep = b.op("AveragePool", low, kernel_shape=[2, 2], strides=[2, 2])
    deep = b.op("Relu", b.conv(deep, 16, 16))
    scales = b.init(np.array([1, 1, 2, 2], np.float32))
    deep = b.op(
        "Resize", deep, "", scales, mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip
    low = b.op("Relu", b.conv(b.op("Concat", low, deep, axis=1), 32, 16))
    weight = b.init(b.drawn(16, 8, 2, 2, scale=0.3))
    up = b.op("ConvTranspose", low, weight, b.init(b.drawn(8, scale=0.1)), strides=[2, 2])
    y = b.op("Relu", b.conv(b.op("Concat", high, up, axis=1), 16, 8))
    b.output(b.op("Sigmoid", b.conv(y, 8, 1, 1)))
    return b.done()


def gated() -> Graph:
    """Gated convolutions with dilation, as in WaveNet, on images of one row."""
    b = Net()
    y = b.op("Tanh", b.conv(b.input("x", ["n", 4, 8, 8]), 4, 8, 1, pads=[0] * 4))
    for dilation in (1, 2):
        kept: dict[str, Any] = {"dilations": [dilation] * 2, "pads": [dilation] * 4}
        value = b.op("Tanh", b.conv(y, 8, 8, **kept))
        gate = b.op("Sigmoid", b.conv(y, 8, 8, **kept))
        y = b.op("Add", y, b.conv(b.op("Mul", value, gate), 8, 8, 1, pads=[0] * 4))
    y = b.op("PRelu", y, b.init(np.abs(b.drawn(8, 1, 1, scale=0.3))))
    b.output(b.conv(b.op("Sub", y, b.op("Max", y, b.init(np.float32(0.1)))), 8, 2, 1))
    return b.done()


def _images(graph: Graph, count: int) -> Data:
    shape = [count if isinstance(d, str) else d for d in graph.inputs[0].type.shape or ()]
    drawn = np.random.default_rng(_SEED).standard_normal(shape).astype(np.float32)
    return {graph.inputs[0].name: drawn}


def digits(name: str) -> Callable[[], Graph]:
    """Returns what loads one of the project's own models."""
    return lambda: qdqbridge.load(MODELS / f"digits_{name}_float.onnx")


NETWORKS: Mapping[str, Callable[[], Graph]] = MappingProxyType(
    {
        **{name: digits(name) for name in ("mlp", "cnn", "mobile", "attention")},
        "mobile_v3": mobile_v3,
        "transformer": transformer,
        "unet": unet,
        "gated": gated,
    }
)


def samples(name: str, graph: Graph, count: int = 40) -> Data:
    """Returns inputs of a network: digits, or normal numbers."""
    if (MODELS / f"digits_{name}_float.onnx").exists():
        return {"input": np.load(MODELS / "digits_test.npz")["x"][:count]}
    return _images(graph, count)
