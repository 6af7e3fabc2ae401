"""Float networks with random weights, as ONNX models, for ``scripts/bench run``.

Weights are He's, so that activations keep their size from layer to layer and quantized ones use
their range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 21


class Net:
    """Collects the nodes of one network with an input and an output."""

    def __init__(self, shape: tuple[int | str, ...], seed: int = 0) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.count = 0

    def constant(self, array: Array) -> str:
        """Adds an initializer."""
        self.count += 1
        name = f"c{self.count}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one result."""
        self.count += 1
        name = f"v{self.count}"
        node = helper.make_node(kind, list(inputs), [name], name=f"{kind}_{self.count}")
        node.attribute.extend(
            helper.make_attribute(key, value) for key, value in attributes.items()
        )
        self.nodes.append(node)
        return name

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        size: int = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        then: str = "Relu",
    ) -> str:
        """Adds a convolution with padding, its bias and an activation (none if empty)."""
        fan = inputs // groups * size * size
        weight = self.rng.standard_normal((outputs, inputs // groups, size, size))
        scaled = (weight * math.sqrt(2 / fan)).astype(np.float32)
        bias = (self.rng.standard_normal(outputs) * 0.1).astype(np.float32)
        y = self.op(
            "Conv",
            x,
            self.constant(scaled),
            self.constant(bias),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
            group=groups,
        )
        return self.op(then, y) if then else y

    def dense(self, x: str, inputs: int, outputs: int, then: str = "") -> str:
        """Adds a product of rows with a matrix, and its bias."""
        weight = self.rng.standard_normal((inputs, outputs)) * math.sqrt(1 / inputs)
        bias = (self.rng.standard_normal(outputs) * 0.1).astype(np.float32)
        y = self.op("Gemm", x, self.constant(weight.astype(np.float32)), self.constant(bias))
        return self.op(then, y) if then else y

    def projection(self, x: str, inputs: int, outputs: int, then: str = "") -> str:
        """Adds a product of the last axis with a matrix, and its bias."""
        weight = self.rng.standard_normal((inputs, outputs)) * math.sqrt(1 / inputs)
        bias = (self.rng.standard_normal(outputs) * 0.1).astype(np.float32)
        y = self.op("MatMul", x, self.constant(weight.astype(np.float32)))
        y = self.op("Add", y, self.constant(bias))
        return self.op(then, y) if then else y

    def finish(self, y: str) -> onnx.ModelProto:
        """Returns the model whose result is ``y``."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
            self.initializers,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
        )
        return onnx.shape_inference.infer_shapes(model)


def _classified(net: Net, x: str, channels: int, classes: int = 1000) -> onnx.ModelProto:
    pooled = net.op("Flatten", net.op("GlobalAveragePool", x))
    return net.finish(net.dense(pooled, channels, classes))


def resnet18() -> onnx.ModelProto:
    """Basic blocks, 224x224."""
    net = Net((1, 3, 224, 224))
    x = net.conv("x", 3, 64, 7, stride=2)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = net.conv(x, channels, width, 3, stride=stride)
            y = net.conv(y, width, width, 3, then="")
            if stride > 1:
                x = net.conv(x, channels, width, 1, stride=stride, then="")
            x, channels = net.op("Relu", net.op("Add", y, x)), width
    return _classified(net, x, channels)


def resnet50() -> onnx.ModelProto:
    """Bottleneck blocks, 224x224."""
    net = Net((1, 3, 224, 224))
    x = net.conv("x", 3, 64, 7, stride=2)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.conv(x, channels, width)
            y = net.conv(y, width, width, 3, stride=stride)
            y = net.conv(y, width, 4 * width, then="")
            if not block:
                x = net.conv(x, channels, 4 * width, stride=stride, then="")
            x, channels = net.op("Relu", net.op("Add", y, x)), 4 * width
    return _classified(net, x, channels)


_MOBILE = (
    # expansion, channels, blocks, stride, kernel, squeeze-and-excitation
    (1, 16, 1, 1, 3, False), (6, 24, 2, 2, 3, False), (6, 32, 3, 2, 5, True),
    (6, 64, 4, 2, 3, False), (6, 96, 3, 1, 3, True), (6, 160, 3, 2, 5, True),
    (6, 320, 1, 1, 3, True),
)  # fmt: skip


def mobilenet() -> onnx.ModelProto:
    """MobileNetV2's blocks with squeeze-and-excitation and HardSwish, 224x224."""
    net = Net((1, 3, 224, 224))
    x, channels = net.conv("x", 3, 32, 3, stride=2, then="HardSwish"), 32
    for expansion, width, blocks, first, size, squeeze in _MOBILE:
        for block in range(blocks):
            stride, inner = first if not block else 1, expansion * channels
            y = net.conv(x, channels, inner, then="HardSwish") if expansion > 1 else x
            y = net.conv(y, inner, inner, size, stride=stride, groups=inner, then="HardSwish")
            if squeeze:
                s = net.conv(net.op("GlobalAveragePool", y), inner, inner // 4)
                y = net.op("Mul", y, net.conv(s, inner // 4, inner, then="HardSigmoid"))
            y = net.conv(y, inner, width, then="")
            x = net.op("Add", y, x) if stride == 1 and channels == width else y
            channels = width
    x = net.conv(x, channels, 1280, then="HardSwish")
    return _classified(net, x, 1280)


def keywords() -> onnx.ModelProto:
    """DS-CNN of MLPerf Tiny: 49 frames of 10 coefficients, four separable blocks of 64."""
    net = Net((1, 1, 49, 10))
    fan = {"kernel_shape": [10, 4], "strides": [2, 2], "pads": [4, 1, 5, 1]}
    weight = (net.rng.standard_normal((64, 1, 10, 4)) * math.sqrt(2 / 40)).astype(np.float32)
    bias = (net.rng.standard_normal(64) * 0.1).astype(np.float32)
    x = net.op("Relu", net.op("Conv", "x", net.constant(weight), net.constant(bias), **fan))
    for _ in range(4):
        x = net.conv(net.conv(x, 64, 64, 3, groups=64), 64, 64)
    return _classified(net, x, 64, 12)


def person() -> onnx.ModelProto:
    """MobileNetV1 of a quarter of its width, 96x96, grey: TFLite Micro's person detector."""
    net = Net((1, 1, 96, 96))
    x, channels = net.conv("x", 1, 8, 3, stride=2), 8
    for width, stride in zip(
        (16, 32, 32, 64, 64, *[128] * 6, 256, 256), (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1), strict=True
    ):
        x = net.conv(x, channels, channels, 3, stride=stride, groups=channels)
        x, channels = net.conv(x, channels, width), width
    return _classified(net, x, channels, 2)


def unet() -> onnx.ModelProto:
    """Four levels of two convolutions, nearest resizing and concatenation, 256x256."""
    net = Net((1, 3, 256, 256))
    x, channels, kept = "x", 3, list[tuple[str, int]]()
    for width in (32, 64, 128, 256):
        x = net.conv(net.conv(x, channels, width, 3), width, width, 3)
        kept.append((x, width))
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        channels = width
    x, channels = net.conv(x, channels, 512, 3), 512
    factors = net.constant(np.array([1, 1, 2, 2], np.float32))
    for skip, width in reversed(kept):
        x = net.op(
            "Resize",
            x,
            "",
            factors,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        x = net.op("Concat", skip, net.conv(x, channels, width, 3), axis=1)
        x, channels = net.conv(net.conv(x, 2 * width, width, 3), width, width, 3), width
    return net.finish(net.conv(x, channels, 2, then="Sigmoid"))


def bert(
    layers: int, hidden: int, tokens: tuple[int | str, ...] = (128,)
) -> Callable[[], onnx.ModelProto]:
    """Returns the maker of an encoder that takes embedded tokens; heads of 64.

    Args:
        layers: Layers.
        hidden: Numbers of a token.
        tokens: Extents before the hidden one: tokens, or batches of them; open ones by name. Only
            a lone extent is a product's row in ``Gemm``; others are ``MatMul`` and ``Add``.
    """

    def make() -> onnx.ModelProto:
        net = Net((*tokens, hidden))
        dense = net.dense if len(tokens) == 1 else net.projection
        x = "x"
        for _ in range(layers):
            x = _normalized(net, net.op("Add", _attention(net, x, len(tokens), hidden), x), hidden)
            inner = dense(x, hidden, 4 * hidden, then="Gelu")
            y = net.op("Add", dense(inner, 4 * hidden, hidden), x)
            x = _normalized(net, y, hidden)
        return net.finish(x)

    return make


def products(*sizes: int) -> Callable[[], onnx.ModelProto]:
    """Returns the maker of products of one row, from each size to the next."""

    def make() -> onnx.ModelProto:
        net = Net((1, sizes[0]))
        x = "x"
        for inputs, outputs in pairwise(sizes):
            x = net.projection(x, inputs, outputs)
        return net.finish(x)

    return make


def _normalized(net: Net, x: str, hidden: int) -> str:
    gamma = net.constant(net.rng.uniform(0.5, 1.5, hidden).astype(np.float32))
    beta = net.constant((net.rng.standard_normal(hidden) * 0.1).astype(np.float32))
    return net.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)


def _attention(net: Net, x: str, leading: int, hidden: int) -> str:
    """Adds the attention of tokens, the last of the ``leading`` axes, to each other."""
    heads, tokens = hidden // 64, leading - 1
    dense = net.dense if leading == 1 else net.projection
    kept = [0] * leading
    split = net.constant(np.array([*kept, heads, 64], np.int64))
    parts = [net.op("Reshape", dense(x, hidden, hidden), split) for _ in range(3)]
    before, swapped = [*range(tokens)], [leading, tokens]
    q, v = (
        net.op("Transpose", part, perm=[*before, *swapped, leading + 1])
        for part in (parts[0], parts[2])
    )
    k = net.op("Transpose", parts[1], perm=[*before, leading, leading + 1, tokens])
    scores = net.op("Div", net.op("MatMul", q, k), net.constant(np.array(8, np.float32)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    joined = net.op("Transpose", mixed, perm=[*before, *swapped, leading + 1])
    whole = net.op("Reshape", joined, net.constant(np.array([*kept, hidden], np.int64)))
    return dense(whole, hidden, hidden)


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet": mobilenet,
    "unet": unet,
    "bert2x256": bert(2, 256),
    "bert12x768": bert(12, 768),
    "bert2x256-batch": bert(2, 256, (1, 128)),
    "bert2x256-open": bert(2, 256, ("batch", "sequence")),
    "row768": products(768, 768, 768),
    "row3072": products(768, 3072, 768),
    "row4096": products(4096, 4096, 4096),
}
MICROCONTROLLERS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "keywords": keywords,
    "person": person,
}
"""Those of ``scripts/bench microcontroller``."""
