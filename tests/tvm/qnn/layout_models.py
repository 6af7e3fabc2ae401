"""Float networks for the layout plan; layouts do not care about quantization."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Graph
from tests.onnx_models import Builder, load

Array = np.ndarray[Any, Any]


class Net(Builder):
    """Images of 16 by 16 and layers on them; ``finish`` returns the raw graph."""

    def __init__(self) -> None:
        super().__init__(18)

    def image(self, *shape: int) -> str:
        return self.input(self.name("x"), list(shape) or [1, 3, 16, 16])

    def conv(self, x: str, inner: int, outer: int, **attributes: Any) -> str:
        group = int(attributes.get("group", 1))
        w = np.zeros((outer, inner // group, 3, 3), np.float32)
        return self.op("Conv", x, self.init(w), pads=[1, 1, 1, 1], **attributes)

    def ints(self, *values: int) -> str:
        return self.init(np.asarray(values, np.int64))

    def finish(self, *outputs: str) -> Graph:
        for name in outputs:
            self.output(name)
        return load(self.model())


def cnn() -> Graph:
    """Residual blocks, a depthwise convolution, pools, a classifier."""
    n = Net()
    x = n.op("Relu", n.conv(n.image(), 3, 8))
    x = n.op("Add", n.conv(x, 8, 8), x)
    x = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("Clip", n.conv(x, 8, 8, group=8), n.init(np.float32(0)), n.init(np.float32(6)))
    gate = n.op("GlobalAveragePool", x)
    x = n.op("Mul", x, n.op("Sigmoid", gate))
    x = n.op("Concat", x, n.op("LeakyRelu", x), axis=1)
    x = n.op("Mul", x, n.init(np.ones((16, 1, 1), np.float32)))
    x = n.op("Flatten", n.op("GlobalAveragePool", x))
    x = n.op("Gemm", x, n.init(np.zeros((16, 10), np.float32)))
    return n.finish(n.op("Softmax", x))


def unet() -> Graph:
    """Two levels down and up again, skips joined by Concat; an image comes out."""
    n = Net()
    a = n.op("Relu", n.conv(n.image(), 3, 8))
    b = n.op("Relu", n.conv(n.op("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 8, 8))
    c = n.op("Relu", n.conv(n.op("AveragePool", b, kernel_shape=[2, 2], strides=[2, 2]), 8, 8))
    scales = n.init(np.array([1, 1, 2, 2], np.float32))
    up = n.op("Resize", c, "", scales)
    d = n.op("Relu", n.conv(n.op("Concat", up, b, axis=1), 16, 8))
    w = n.init(np.zeros((8, 8, 2, 2), np.float32))
    up = n.op("ConvTranspose", d, w, strides=[2, 2])
    e = n.op("Relu", n.conv(n.op("Concat", up, a, axis=1), 16, 8))
    return n.finish(n.op("Sigmoid", n.conv(e, 8, 4)))


def patches() -> Graph:
    """An image cut into tokens, as vision transformers begin."""
    n = Net()
    x = n.op("Reshape", n.conv(n.image(), 3, 8), n.ints(1, 8, -1))
    x = n.op("Transpose", x, perm=[0, 2, 1])
    return n.finish(n.op("MatMul", x, n.init(np.zeros((8, 4), np.float32))))


def wrapped(*, relu: bool = True) -> Graph:
    """A convolution whose file is channels-last, as converters from TFLite write it."""
    n = Net()
    x = n.op("Transpose", n.image(1, 16, 16, 3), perm=[0, 3, 1, 2])
    x = n.conv(x, 3, 8)
    x = n.op("Relu", x) if relu else x
    return n.finish(n.op("Transpose", x, perm=[0, 2, 3, 1]))


def axes() -> tuple[Graph, dict[str, Array]]:
    """Everything that names axes, between transposes that make all of it channels-last."""
    n = Net()
    x = n.op("Transpose", n.image(2, 5, 6, 4), perm=[0, 3, 1, 2])
    x = n.op("Concat", x, n.op("Abs", x), axis=1)
    x = n.op("Softmax", x, axis=1)
    x = n.op("Add", x, n.init(np.arange(8, dtype=np.float32).reshape(8, 1, 1)))
    x = n.op("Mul", x, n.init(np.arange(6, dtype=np.float32)))
    x = n.op("Slice", x, n.ints(1, 1), n.ints(100, -1), n.ints(1, 3), n.ints(2, 1))
    x = n.op("Pad", x, n.ints(0, 1, 2, 0, 0, 0, 0, 3), n.init(np.float32(1.5)))
    x = n.op("Gather", x, n.ints(3, 0, 2), axis=1)
    x = n.op("Tile", x, n.ints(1, 2, 1, 1))
    low = n.op("ReduceMax", x, n.ints(2), keepdims=1)
    x = n.op("Where", n.op("Cast", x, to=9), x, n.op("Expand", low, n.ints(1, 1, 7, 1)))
    first = n.op("Split", x, outputs=2, axis=1, num_outputs=2)
    x = n.op("PRelu", n.op("Sub", first, f"{first}:1"), n.init(np.ones((3, 1, 1), np.float32)))
    rows = n.op("Transpose", n.op("ReduceMean", x, n.ints(2), keepdims=0), perm=[0, 2, 1])
    kept = n.op("ReduceSum", x, n.ints(2, 3), keepdims=0)
    joined = n.op("Transpose", n.op("Reshape", x, n.ints(2, 3, -1)), perm=[0, 2, 1])
    graph = n.finish(n.op("Transpose", x, perm=[0, 2, 3, 1]), rows, kept, joined)
    data = np.random.default_rng(3).standard_normal((2, 5, 6, 4)).astype(np.float32)
    return graph, {graph.inputs[0].name: data}


def blocks(count: int) -> Graph:
    """A long network whose every block leaves and enters channels-last again."""
    n = Net()
    x = n.image(1, 4, 4, 4)
    w = n.init(np.zeros((4, 4), np.float32))
    for _ in range(count):
        x = n.op("Add", n.op("Relu", n.conv(x, 4, 4)), x)
        x = n.op("MatMul", n.op("Sigmoid", x), w)
    return n.finish(x)
