"""Random nodes of everything that is not a product, for the kernels: shapes, parameters, ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import (
    IN_FLOAT32,
    AlphaAttrs,
    AxisAttrs,
    ConvAttrs,
    EpsilonAttrs,
    GroupNormAttrs,
    NormAttrs,
    PadAttrs,
    PoolAttrs,
    ReduceAttrs,
    ResizeAttrs,
    SliceAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from tests.tvm.dialect.contract import every_code, params
from tests.tvm.relax.kernels.kernel_cases import Operand

ZEROS = {
    "uint8": (0, 1, 127, 128, 255, 77), "int8": (-128, -127, -1, 0, 127, 5),
    "uint16": (0, 1, 32768, 65535, 777), "int16": (-32768, -1, 0, 32767, 5),
}  # fmt: skip
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Other:
    """A node; operands are channels-first."""

    name: str
    attributes: Attributes
    operands: list[Operand]
    result: QuantParams | None
    last: bool = False


def _dtype(rng: Rng) -> str:
    return str(rng.choice(["uint8", "int8"]))


def _wide(rng: Rng) -> str:
    """A type of 8 bits, or at times of 16."""
    return _dtype(rng) if rng.random() < 0.75 else str(rng.choice(["uint16", "int16"]))


def _params(rng: Rng, dtype: str, *, narrow: bool = False) -> QuantParams:
    scale = rng.choice([0.1, 0.25, 1 / 255, float(np.exp(rng.uniform(-7, 0)))])
    found = params(dtype, scale, int(rng.choice(ZEROS[dtype])))
    if narrow and rng.random() < 0.3:
        low, high = sorted(rng.choice(np.arange(found.qmin, found.qmax + 1), 2, replace=False))
        found = found.with_range(int(low), int(high))
    return found


def _extents(rng: Rng, rank: int, most: int = 1 << 13) -> tuple[int, ...]:
    """Extents of which the last ones are often next to the length of a register."""
    usual = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100)
    while True:
        shape = tuple(int(rng.choice(usual)) for _ in range(rank))
        if np.prod(shape) <= most:
            return shape


def _data(rng: Rng, shape: tuple[int, ...], dtype: str = "") -> Operand:
    kind = dtype or _dtype(rng)
    return Operand(every_code(rng, kind, shape), _params(rng, kind))


def binary(rng: Rng) -> Other:
    """An operator of two operands that broadcast; some are floats, some constants."""
    shape = _extents(rng, int(rng.integers(1, 5)))
    shapes = [tuple(1 if rng.random() < 0.25 else e for e in shape) for _ in range(2)]
    shapes[int(rng.integers(2))] = shape
    operands = [_data(rng, own, _wide(rng)) for own in shapes]
    for i in range(2):
        if rng.random() < 0.15:
            operands[i] = Operand(rng.normal(0, 5, shapes[i]).astype(np.float32))
    if rng.random() < 0.3:
        i = int(rng.integers(2))
        operands[i] = Operand(operands[i].array, operands[i].params, fixed=True)
    name = str(rng.choice(["Add", "Sub", "Mul", "Div", "Min", "Max"]))
    return Other(name, NO_ATTRIBUTES, operands, _params(rng, _wide(rng), narrow=True))


def unary(rng: Rng) -> Other:
    """A function of one operand."""
    name = str(rng.choice(["Sigmoid", "HardSwish", "Tanh", "Relu", "Exp", "LeakyRelu", "Neg"]))
    attributes = AlphaAttrs(0.1) if name == "LeakyRelu" else NO_ATTRIBUTES
    data = _data(rng, _extents(rng, int(rng.integers(1, 5))), _wide(rng))
    return Other(name, attributes, [data], _params(rng, _wide(rng), narrow=True))


def where(rng: Rng) -> Other:
    """A Where of a mask and two operands that broadcast; some are floats, some constants."""
    shape = _extents(rng, int(rng.integers(1, 5)))
    shapes = [tuple(1 if rng.random() < 0.25 else e for e in shape) for _ in range(3)]
    shapes[int(rng.integers(3))] = shape
    result = _params(rng, _wide(rng), narrow=True)
    operands = [Operand(rng.random(shapes[0]) < 0.5, fixed=bool(rng.random() < 0.5))]
    for own in shapes[1:]:
        kind = rng.random()
        made = _data(rng, own, _wide(rng))
        if kind < 0.2:
            made = Operand(rng.normal(0, 5, own).astype(np.float32))
        elif kind < 0.5:
            made = _data(rng, own, result.storage_dtype.label)
            made = Operand(made.array, result.widened())
        operands.append(Operand(made.array, made.params, fixed=bool(rng.random() < 0.2)))
    return Other("Where", NO_ATTRIBUTES, operands, result)


def norm(rng: Rng) -> Other:
    """A normalization whose factors belong to channels."""
    shape = (*_extents(rng, 2, 256), *_extents(rng, int(rng.integers(1, 3)), 1000))
    data, result = _data(rng, shape, _wide(rng)), _params(rng, _wide(rng), narrow=True)
    factors = [
        Operand(rng.uniform(0.1, 2, shape[1]).astype(np.float32), None, fixed=True)
        for _ in range(4)
    ]
    name = str(rng.choice(["InstanceNormalization", "GroupNormalization", "BatchNormalization"]))
    epsilon = float(rng.choice([1e-5, 1e-12, 0.1]))
    if name == "GroupNormalization":
        groups = [n for n in range(1, shape[1] + 1) if shape[1] % n == 0]
        attributes: Attributes = GroupNormAttrs(int(rng.choice(groups)), epsilon)
    else:
        attributes = EpsilonAttrs(epsilon)
    return Other(name, attributes, [data, *factors[: 4 if name[0] == "B" else 2]], result)


def requantize(rng: Rng) -> Other:
    """Codes to codes with other parameters."""
    data = _data(rng, _extents(rng, int(rng.integers(1, 4))), _wide(rng))
    return Other("requantize", NO_ATTRIBUTES, [data], _params(rng, _wide(rng), narrow=True))


def _window(rng: Rng, image: tuple[int, ...]) -> tuple[Any, ...] | None:
    kernel = tuple(int(rng.integers(1, 6)) for _ in image)
    strides = tuple(int(rng.integers(1, 4)) for _ in image)
    dilations = tuple(int(rng.choice([1, 1, 1, 2, 3])) for _ in image)
    pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    rank = len(image)
    room = [
        extent + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1
        for i, extent in enumerate(image)
    ]
    return None if min(room) < 0 else (kernel, strides, dilations, pads)


def _image(rng: Rng) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    while True:
        image = tuple(int(e) for e in rng.integers(1, 14, int(rng.integers(1, 3))))
        window = _window(rng, image)
        if window is not None:
            return image, window


def pool(rng: Rng) -> Other:
    """MaxPool or AveragePool."""
    image, (kernel, strides, dilations, pads) = _image(rng)
    shape = (int(rng.integers(1, 3)), *_extents(rng, 1), *image)
    data = _data(rng, shape)
    attributes = PoolAttrs(
        kernel, strides, dilations, pads, bool(rng.random() < 0.3), bool(rng.random() < 0.5)
    )
    if rng.random() < 0.5:
        return Other("MaxPool", attributes, [data], data.params, last=True)
    result = _params(rng, _dtype(rng), narrow=True)
    return Other("AveragePool", attributes, [data], result, last=True)


def depthwise(rng: Rng) -> Other:
    """A convolution of every channel alone, with a bias or without."""
    image, (kernel, strides, dilations, pads) = _image(rng)
    (channels,) = _extents(rng, 1)
    channels = max(channels, 4)
    data = _data(rng, (int(rng.integers(1, 3)), channels, *image))
    assert data.params is not None
    single = rng.random() < 0.3
    scale = np.float32(0.02) if single else rng.uniform(0.001, 0.05, channels).astype(np.float32)
    axis = None if single else 0
    own = params("int8", scale, np.zeros(np.shape(scale)), axis=axis)
    codes = every_code(rng, "int8", (channels, 1, *kernel))
    operands = [data, Operand(codes, own, fixed=True)]
    if rng.random() < 0.6:
        whole = np.asarray(data.params.scale.astype(np.float32) * scale)
        units = params("int32", whole, np.zeros(whole.shape), axis=axis)
        bias = rng.integers(-20_000, 20_000, channels).astype(np.int32)
        operands.append(Operand(bias, units, fixed=True))
    attributes = ConvAttrs(strides, dilations, pads, channels)
    return Other("Conv", attributes, operands, _params(rng, _dtype(rng), narrow=True), last=True)


def axes(rng: Rng) -> Other:
    """A reduction over neighbouring axes."""
    shape = _extents(rng, int(rng.integers(1, 5)))
    first = int(rng.integers(len(shape)))
    count = int(rng.integers(1, len(shape) - first + 1))
    attributes = ReduceAttrs(tuple(range(first, first + count)), keepdims=bool(rng.random() < 0.5))
    data = _data(rng, shape)
    name = str(rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"]))
    moved = name in ("ReduceMax", "ReduceMin")
    return Other(name, attributes, [data], data.params if moved else _params(rng, _dtype(rng)))


def rows(rng: Rng) -> Other:
    """Softmax, LogSoftmax, LayerNormalization or RMSNormalization."""
    shape = (*_extents(rng, 2, 64), int(rng.integers(1, 300)))
    data, result = _data(rng, shape, _wide(rng)), _params(rng, _wide(rng), narrow=True)
    if rng.random() < 0.5:
        name = str(rng.choice(["Softmax", "LogSoftmax"]))
        return Other(name, SoftmaxAttrs((2,)), [data], result)
    factors = [
        Operand(rng.normal(1, 0.5, shape[2:]).astype(np.float32), None, fixed=True)
        for _ in range(int(rng.integers(1, 3)))
    ]
    name = str(rng.choice(["LayerNormalization", "RMSNormalization"]))
    attributes = NormAttrs(2, float(rng.choice([1e-5, 1e-12, 0.1])))
    return Other(name, attributes, [data, *factors[: 2 if name[0] == "L" else 1]], result)


def move(rng: Rng) -> Other:
    """A transpose, slice, pad or concatenation."""
    shape = _extents(rng, int(rng.integers(1, 5)))
    data, rank = _data(rng, shape, _wide(rng)), len(shape)
    kind = int(rng.integers(4))
    if kind == 0:
        perm = tuple(int(axis) for axis in rng.permutation(rank))
        return Other("Transpose", TransposeAttrs(perm), [data], data.params)
    if kind == 1:
        axis = int(rng.integers(rank))
        start, step = int(rng.integers(shape[axis])), int(rng.choice([1, 1, 2, -1, -3]))
        end = 1 << 40 if step > 0 else -(1 << 40)
        attributes = SliceAttrs((start,), (end,), (axis,), (step,))
        return Other("Slice", attributes, [data], data.params)
    if kind == 2:
        pads = tuple(int(pad) for pad in rng.integers(0, 4, 2 * rank))
        value = float(rng.normal())
        return Other("Pad", PadAttrs(pads, "constant", value), [data], data.params)
    assert data.params is not None
    kinds = data.params.storage_dtype.label
    others = [_data(rng, shape, kinds) for _ in range(int(rng.integers(0, 3)))]
    result = data.params if rng.random() < 0.5 else _params(rng, kinds, narrow=True)
    return Other("Concat", AxisAttrs(int(rng.integers(rank))), [data, *others], result)


def resize(rng: Rng) -> Other:
    """A Resize of an image, nearest or linear."""
    image = tuple(int(e) for e in rng.integers(2, 10, 2))
    data = _data(rng, (int(rng.integers(1, 3)), *_extents(rng, 1), *image))
    mode = str(rng.choice(["nearest", "linear"]))
    coordinates = str(rng.choice(
        ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    ))  # fmt: skip
    sizes = (*data.array.shape[:2], *(int(e) for e in rng.integers(2, 16, 2)))
    rounding = str(rng.choice(["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"]))
    attributes = ResizeAttrs(mode, coordinates, rounding, None, sizes)
    result = data.params if mode == "nearest" else _params(rng, _dtype(rng), narrow=True)
    return Other("Resize", attributes, [data], result, last=True)


def boundary(rng: Rng) -> Other:
    """QuantizeLinear of numbers near the midpoints between codes, or DequantizeLinear."""
    shape = _extents(rng, int(rng.integers(1, 4)))
    if rng.random() < 0.3:
        return Other("dequantize", NO_ATTRIBUTES, [_data(rng, shape, _wide(rng))], None)
    result = _params(rng, _wide(rng), narrow=True)
    middle = (rng.integers(-300, 300, shape) + 0.5) * np.float64(result.scale)
    near = middle.astype(np.float32).view(np.int32) + rng.integers(-2, 3, shape, np.int32)
    return Other("quantize", IN_FLOAT32, [Operand(near.view(np.float32))], result)


KINDS = (
    binary, binary, unary, pool, pool, depthwise, depthwise, axes, rows, rows, move, move, resize,
    boundary, where, norm, requantize,
)  # fmt: skip
"""Makers of random nodes; what has many forms is there twice."""
