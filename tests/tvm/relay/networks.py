"""Quantized networks of the kind that accelerators' tables are made for."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Graph
from tests.onnx_models import Builder, canonical

Array = np.ndarray[Any, Any]


class Net(Builder):
    """Layers that round their result: ``int8`` or ``uint8`` activations, ``int8`` weights."""

    def __init__(self, dtype: Any, *, per_channel: bool = True) -> None:
        super().__init__(18)
        self.dtype, self.per_channel = dtype, per_channel
        self.random = np.random.default_rng(5)

    def layer(self, op: str, *inputs: str, scale: float = 0.0, **attributes: Any) -> str:
        x = self.op(op, *inputs, **attributes)
        return self.rounded(x, scale)

    def rounded(self, x: str, scale: float = 0.0, zero: int | None = None) -> str:
        zero = int(self.random.integers(-9, 9)) if zero is None else zero
        zero += 128 if self.dtype is np.uint8 else 0
        return self.qdq(x, scale or float(self.random.uniform(0.02, 0.05)), zero, self.dtype)

    def conv(self, x: str, inner: int, outer: int, size: int = 3, **attributes: Any) -> str:
        group = int(attributes.pop("group", 1))
        shape = (outer, inner // group, size, size)
        stored = self.random.integers(-127, 128, shape).astype(np.int8)
        scale = self.random.uniform(0.001, 0.003, outer).astype(np.float32)
        scale = scale if self.per_channel else scale[0]
        w = self.weight(stored, scale, axis=0) if self.per_channel else self.weight(stored, scale)
        bias = self.init(self.random.uniform(-0.5, 0.5, outer).astype(np.float32))
        pads = [size // 2] * 4
        return self.op("Conv", x, w, bias, pads=pads, group=group, **attributes)

    def scales(self, *factors: float) -> str:
        return self.init(np.asarray(factors, np.float32))


def classifier(dtype: Any = np.int8, *, per_channel: bool = True) -> tuple[Graph, dict[str, Array]]:
    """21 layers, all that mobile networks have; the image is channels-last as in TFLite's files."""
    n = Net(dtype, per_channel=per_channel)
    image = n.input("image", [1, 16, 16, 3])
    x = n.op("Transpose", n.rounded(image, 0.03), perm=[0, 3, 1, 2])
    x = n.rounded(n.conv(x, 3, 8))
    y = n.rounded(n.conv(n.rounded(n.op("Relu", n.conv(x, 8, 8))), 8, 8))
    x = n.layer("Add", x, y)
    x = n.rounded(n.op("Relu", n.conv(x, 8, 8, group=8)))
    x = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n.rounded(n.conv(x, 8, 16, 1))
    gate = n.rounded(n.conv(n.layer("GlobalAveragePool", x), 16, 16, 1))
    x = n.layer("Mul", x, n.layer("Sigmoid", gate, scale=1 / 256))
    x = n.rounded(n.conv(x, 16, 8, 1), 0.04, 3)
    a = n.rounded(n.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), 0.04, 3)
    up = n.layer("Resize", a, "", n.scales(1, 1, 2, 2), mode="linear")
    near = n.op("Resize", a, "", n.scales(1, 1, 2, 2), mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
    x = n.layer("Concat", up, near, axis=1)
    x = n.layer("LeakyRelu", x, alpha=0.1)
    x = n.op("Flatten", n.layer("GlobalAveragePool", x))
    w = n.weight(n.random.integers(-127, 128, (10, 16)).astype(np.int8), 0.004)
    bias = n.init(n.random.uniform(-0.5, 0.5, 10).astype(np.float32))
    x = n.rounded(n.op("Gemm", x, w, bias, transB=1))
    n.output(n.layer("Softmax", x, scale=1 / 256))
    data = np.random.default_rng(1).uniform(-3, 3, (1, 16, 16, 3)).astype(np.float32)
    return canonical(n.model()), {"image": data}
