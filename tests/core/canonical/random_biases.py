"""Random products with float biases, or biases with a scale of their own, at random scales.

Half of them have an accumulator so coarse that rounding the bias to it would show in the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.onnx_models import Array, Builder

_KINDS = ("Conv", "Conv", "ConvTranspose", "Gemm", "MatMul")
_OWN = (None, None, np.int32, np.int8)


@dataclass(frozen=True, slots=True)
class Product:
    """A quantized product with a bias.

    Attributes:
        model: ``x -> QDQ -> product with bias -> QDQ``.
        data: What to feed.
        scale: The scale of the result.
    """

    model: onnx.ModelProto
    data: dict[str, Array]
    scale: float


def product(seed: int) -> Product:
    """Returns a random product; equal for equal seeds."""
    r = np.random.default_rng(seed)
    kind = _KINDS[r.integers(len(_KINDS))]
    rank = int(r.integers(1, 4)) if kind.startswith("Conv") else 0
    channels, results = (2 * int(n) for n in r.integers(1, 4, 2))
    group, rows = int(r.integers(1, 3)), kind == "Gemm" and bool(r.integers(2))
    kernel = [int(n) for n in r.integers(1, 4, rank)]
    x_scale = np.float32(10 ** r.uniform(-3, 0.5))
    shape, axis = _weight(kind, channels, results, group, kernel, rows=rows)
    own = bool(r.integers(2))
    w_scale = (10 ** r.uniform(-3, 0.5, shape[axis] if own else ())).astype(np.float32)
    scale = float(x_scale) * float(w_scale.max()) / 10 ** r.uniform(-3, 1.5)
    b = Builder(21)
    x_type, y_type = (np.dtype(t) for t in r.choice(["uint8", "int8", "uint8", "uint16"], 2))
    x_shape = [1, channels, *(int(n) for n in r.integers(3, 7, rank))]
    x_zero, y_zero = _zero_point(r, x_type), _zero_point(r, y_type)
    x = b.qdq(b.input("x", x_shape), x_scale, x_zero, x_type.type)
    w = b.weight(
        r.integers(-20, 20, shape).astype(np.int8), w_scale, **({"axis": axis} if own else {})
    )
    real = (r.normal(size=results) * scale * r.choice([3, 20])).astype(np.float32)
    bias = _bias(b, r, real, scale)
    if kind == "MatMul":
        y = b.op("Add", *r.permutation([b.op("MatMul", x, w), bias]))
    elif kind == "Gemm":
        beta = float(r.choice([1, 1, 0.5]))
        y = b.op("Gemm", x, w, bias, transB=int(rows), beta=beta)
    else:
        pads = [size // 2 for size in kernel] * 2
        strides = [int(n) for n in r.integers(1, 3, rank)]
        y = b.op(kind, x, w, bias, group=group, strides=strides, pads=pads)
    y = b.op("Relu", y) if r.integers(3) == 0 else y
    b.output(b.qdq(y, np.float32(scale), y_zero, y_type.type))
    info = np.iinfo(x_type)
    low, high = max(info.min, x_zero - 120), min(info.max, x_zero + 120)
    codes = r.integers(low, high + 1, x_shape) - x_zero
    return Product(b.model(), {"x": (codes * x_scale).astype(np.float32)}, float(np.float32(scale)))


def _weight(
    kind: str, channels: int, results: int, group: int, kernel: list[int], *, rows: bool
) -> tuple[list[int], int]:
    """Returns the shape of a weight and the axis of its results."""
    if kind == "Conv":
        return [results, channels // group, *kernel], 0
    if kind == "ConvTranspose":
        return [channels, results // group, *kernel], 1
    return ([results, channels], 0) if rows else ([channels, results], 1)


def _zero_point(r: np.random.Generator, dtype: np.dtype[Any]) -> int:
    info = np.iinfo(dtype)
    middle = (info.max + info.min + 1) // 2
    return int(r.choice([middle, int(r.integers(info.min, info.max // 2))]))


def _bias(b: Builder, r: np.random.Generator, real: Array, scale: float) -> str:
    """Adds a bias: float, or integers with a scale of their own."""
    own = _OWN[r.integers(len(_OWN))]
    if own is None:
        return b.init(real, "bias")
    wide = own is np.int32
    unit = np.float32(scale * 10 ** r.uniform(-4, 0.5) if wide else np.abs(real).max() / 100)
    codes = np.clip(np.rint(real / unit), np.iinfo(own).min, np.iinfo(own).max).astype(own)
    return b.dq(b.init(codes, "bias"), unit, 0, own)
