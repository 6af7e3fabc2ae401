"""A small CNN of every kind of layer that accelerators' tables have, quantized by onnxruntime.

21 layers: 7 convolutions (one depthwise), residual addition, max and average pool, two global
averages, sigmoid gate and product, two resizes, concatenation, leaky ReLU, flatten, product,
softmax. Where activations are symmetric, onnxruntime keeps four ReLUs and a ReLU6 beside them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.onnx_models import Builder

VARIANTS: Mapping[str, dict[str, Any]] = {
    "u8s8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8,
             "per_channel": True},
    "s8s8": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8,
             "per_channel": True},
    "s8s8-sym": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8,
                 "per_channel": True, "extra_options": {"ActivationSymmetric": True}},
    "u8u8-pt": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8,
                "per_channel": False},
}  # fmt: skip
"""Activations and weights, and one scale per tensor (``pt``) or per channel."""
_SHAPE = (1, 16, 16, 3)


class _Layers(Builder):
    def __init__(self) -> None:
        super().__init__(13)
        self.random = np.random.default_rng(7)

    def numbers(self, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return self.init(self.random.normal(0, scale, shape).astype(np.float32))

    def conv(self, x: str, inner: int, outer: int, size: int = 3, **attributes: Any) -> str:
        group = int(attributes.pop("group", 1))
        w, bias = self.numbers(outer, inner // group, size, size), self.numbers(outer)
        return self.op("Conv", x, w, bias, pads=[size // 2] * 4, kernel_shape=[size, size],
                       group=group, **attributes)  # fmt: skip

    def scaled(self, x: str, mode: str, **attributes: Any) -> str:
        scales = self.init(np.array([1, 1, 2, 2], np.float32))
        return self.op("Resize", x, "", scales, mode=mode, **attributes)


def float_model() -> onnx.ModelProto:
    """Returns the network; its image is channels-last, as in files for these accelerators."""
    n = _Layers()
    image = n.input("image", _SHAPE)
    x = n.op("Transpose", image, perm=[0, 3, 1, 2])
    x = n.op("Relu", n.conv(x, 3, 8))
    y = n.conv(n.op("Relu", n.conv(x, 8, 8)), 8, 8)
    x = n.op("Relu", n.op("Add", x, y))
    low, high = n.init(np.float32(0)), n.init(np.float32(6))
    x = n.op("Clip", n.conv(x, 8, 8, group=8), low, high)
    x = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("Relu", n.conv(x, 8, 16, 1))
    gate = n.op("Sigmoid", n.conv(n.op("GlobalAveragePool", x), 16, 16, 1))
    x = n.conv(n.op("Mul", x, gate), 16, 8, 1)
    x = n.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    linear = n.scaled(x, "linear")
    nearest = n.scaled(x, "nearest", nearest_mode="floor",
                       coordinate_transformation_mode="asymmetric")  # fmt: skip
    x = n.op("LeakyRelu", n.op("Concat", linear, nearest, axis=1), alpha=0.1)
    x = n.op("Flatten", n.op("GlobalAveragePool", x))
    x = n.op("Gemm", x, n.numbers(10, 16), n.numbers(10), transB=1)
    n.output(n.op("Softmax", x, axis=-1), [1, 10])
    return n.model()


class _Images(CalibrationDataReader):
    def __init__(self) -> None:
        random = np.random.default_rng(8)
        self.rest = [random.normal(0, 1, _SHAPE).astype(np.float32) for _ in range(8)]

    def get_next(self) -> dict[str, Any] | None:  # type: ignore[override]
        return {"image": self.rest.pop()} if self.rest else None


def quantized(folder: Path, variant: str) -> Path:
    """Writes the network, quantized, into a folder; returns the file."""
    source, result = folder / "float.onnx", folder / f"{variant}.onnx"
    onnx.save(float_model(), source)
    logging.disable(logging.WARNING)
    try:
        quantize_static(source, result, _Images(), quant_format=QuantFormat.QDQ,
                        **VARIANTS[variant])  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    return result
