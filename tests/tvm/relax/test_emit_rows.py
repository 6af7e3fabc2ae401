"""Pools, reductions, softmax, normalizations and Resize from file to machine code: 0 LSB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams
from tests.tvm.relax.single_ops import Model, X, call_names, codes, const, equal, params

pytestmark = pytest.mark.relax

S8, U8 = params("int8", 0.5, 3), params("uint8", 0.0371, 131)
S16, U16 = params("int16", 0.011, -7), params("uint16", 0.003, 32771)
TIES, Y8 = params("int8", 1.0, -5), params("uint8", 0.173, 77)
FLOATS = {"qnn.quantize", "qnn.dequantize"}


def x(p: QuantParams, *shape: int, seed: int = 0, **fields: Any) -> X:
    return X(codes(shape, str(p.storage_dtype), seed), p, **fields)


def test_average_pools() -> None:
    m = Model()
    image = x(U8, 2, 3, 7, 6)
    m.add("AveragePool", [image], TIES, kernel_shape=[2, 2], strides=[2, 2])
    m.add("AveragePool", [image], Y8, kernel_shape=[3, 2], pads=[1, 0, 2, 1], strides=[2, 1])
    m.add("AveragePool", [image], Y8, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    m.add("AveragePool", [image], U8, kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2])
    m.add(
        "AveragePool",
        [image],
        Y8,
        kernel_shape=[3, 3],
        ceil_mode=1,
        strides=[2, 2],
        pads=[1, 0, 0, 1],
        count_include_pad=1,
    )
    m.add("AveragePool", [image], Y8, kernel_shape=[2, 2], auto_pad="SAME_UPPER", strides=[2, 2])
    m.add("AveragePool", [image], Y8, kernel_shape=[2, 2], dilations=[2, 3])
    m.add("AveragePool", [x(S8, 1, 2, 9)], TIES, kernel_shape=[4], strides=[2])
    m.add("AveragePool", [x(S8, 1, 2, 4, 5, 3)], TIES, kernel_shape=[2, 3, 2], pads=[1, 1, 0] * 2)
    m.add("AveragePool", [x(S16, 1, 2, 6, 6)], U16, kernel_shape=[3, 3])
    m.add("GlobalAveragePool", [image], Y8)
    m.add(
        "GlobalAveragePool",
        [x(S8, 2, 3, 8)],
        TIES,
        then="Relu",
        label="narrow range",
        row="ReduceMean",
    )
    _, executable = m.check()
    assert not FLOATS & set(call_names(executable.module))


def test_reductions() -> None:
    m = Model()
    for op in ("ReduceMean", "ReduceSum"):
        axes = const([1, -1], np.int64)
        m.add(op, [x(S8, 2, 3, 4), axes], TIES, label="ties")
        m.add(op, [x(U8, 2, 3, 4), axes], Y8, keepdims=0)
        m.add(op, [x(U8, 2, 3, 4)], params("uint8", 0.5), label="all axes")
        m.add(op, [x(U8, 5, 3), const([0], np.int64)], params("int8", 0.03), label="signed")
        m.add(op, [x(S16, 2, 300), const([1], np.int64)], S16)
        m.add(op, [x(U8, 2, 3), const([], np.int64)], Y8, row="requantize", noop_with_empty_axes=1)
    _, executable = m.check()
    names = call_names(executable.module)
    assert not FLOATS & set(names)
    assert names.count("qnn.mean") == names.count("qnn.sum") == 5


def test_softmax() -> None:
    m = Model()
    y = params("uint8", 1 / 256)
    log = params("uint8", 0.0625, 255)
    for op, result in (("Softmax", y), ("LogSoftmax", log)):
        for axis in (0, 1, -1):
            m.add(op, [x(params("int8", 0.0625, 3), 3, 4, 5, seed=axis + 1)], result, axis=axis)
        m.add(op, [x(params("uint8", 0.1, 200), 2, 129)], result, axis=-1)
        m.add(op, [x(params("int16", 0.001, 3), 2, 40)], params("uint16", 2**-12, 60000), axis=1)
    _, executable = m.check()
    assert not FLOATS & set(call_names(executable.module))


def test_softmax_over_several_axes() -> None:
    """Before opset 13 everything from the axis on is one row."""
    m = Model(opset=12)
    for axis in (1, 2, 3):
        m.add(
            "Softmax",
            [x(params("int8", 0.0625, 3), 2, 3, 4, 5)],
            params("uint8", 1 / 256),
            axis=axis,
        )
    m.check()


def vector(count: int, dtype: str, scale: float, seed: int = 3) -> X:
    return X(codes((count,), dtype, seed), params(dtype, scale), fixed=True)


def offset(count: int, scale: float) -> X:
    """An int32 beta."""
    p = QuantParams(DType.INT32, np.asarray(scale, np.float32), np.zeros((), np.int32))
    return X(np.arange(count, dtype=np.int32) * 37 - 100, p, fixed=True)


def test_layer_norms() -> None:
    m = Model(opset=23)
    data = x(U8, 3, 4, 8)
    gamma, beta = vector(8, "int8", 0.01), vector(8, "uint8", 0.02)
    m.add("LayerNormalization", [data, gamma, beta], Y8)
    m.add("LayerNormalization", [data, gamma], TIES, label="no beta")
    m.add("LayerNormalization", [data, gamma, offset(8, 0.003)], Y8, label="int32 beta")
    real = const(np.linspace(0.5, 2, 8), np.float32)
    m.add("LayerNormalization", [data, real, real], Y8, label="float gamma and beta")
    scales = np.linspace(0.005, 0.02, 8)
    per_channel = X(codes((8,), "int8"), params("int8", scales, [0] * 8, 0), fixed=True)
    m.add("LayerNormalization", [data, per_channel, real], Y8, label="gamma per channel")
    both = X(codes((4, 8), "int8"), params("int8", 0.02), fixed=True)
    m.add("LayerNormalization", [data, both, both], Y8, axis=1, epsilon=1e-3)
    m.add("LayerNormalization", [x(S16, 2, 30), const(np.ones(30), np.float32)], S16, axis=-1)
    m.add("RMSNormalization", [data, gamma], Y8)
    m.add("RMSNormalization", [x(S8, 3, 8), real], TIES, axis=-1, epsilon=1e-2)
    _, executable = m.check()
    names = call_names(executable.module)
    assert not FLOATS & set(names)
    assert names.count("qnn.rms_norm") == 2


def test_channel_norms() -> None:
    m = Model()
    data = x(U8, 2, 4, 5, 3)
    gamma, beta = vector(4, "int8", 0.01), offset(4, 0.003)
    real = const(np.linspace(0.5, 2, 4), np.float32)
    m.add("InstanceNormalization", [data, gamma, beta], Y8)
    m.add("InstanceNormalization", [x(S8, 2, 4, 9), real, real], TIES, epsilon=0.01)
    m.add("GroupNormalization", [data, gamma, vector(4, "uint8", 0.02)], Y8, num_groups=2)
    m.add("GroupNormalization", [x(S8, 2, 4, 9), real, real], TIES, num_groups=4)
    mean, variance = const([0.1, -3, 2, 0], np.float32), const([0.5, 1, 3, 1e-3], np.float32)
    m.add("BatchNormalization", [data, real, real, mean, variance], Y8)
    m.add("BatchNormalization", [x(S8, 3, 4), real, real, mean, variance], TIES, epsilon=0.1)
    m.add("BatchNormalization", [data, gamma, real, mean, variance], Y8, label="quantized gamma")
    _, executable = m.check()
    names = call_names(executable.module)
    assert not FLOATS & set(names)
    assert names.count("qnn.batch_norm") == 3


def test_resize() -> None:
    m = Model()
    image, none = x(U8, 1, 2, 5, 6), None
    double = const([1, 1, 2, 2], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        for kind in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            sizes = const([1, 2, 7, 4], np.int64)
            m.add(
                "Resize",
                [image, none, none, sizes],
                U8,
                mode=mode,
                coordinate_transformation_mode=kind,
            )
        m.add(
            "Resize",
            [image, none, double],
            Y8,
            mode=mode,
            row="" if mode == "nearest" else None,
            whole=mode != "nearest",
        )
    for rounding in ("floor", "ceil", "round_prefer_ceil"):
        m.add(
            "Resize",
            [image, none, const([1, 1, 0.6, 1.7], np.float32)],
            U8,
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode="asymmetric",
        )
    m.add("Resize", [image, none, double], U8, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    roi = const([0, 0, 0.2, 0.1, 1, 1, 0.8, 1.3], np.float32)
    m.add(
        "Resize",
        [image, roi, none, const([1, 2, 4, 4], np.int64)],
        U8,
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=1.5,
    )
    m.add("Resize", [x(S8, 1, 2, 5), none, const([1, 1, 2.5], np.float32)], S8, mode="linear")
    m.add(
        "Resize",
        [x(S8, 1, 2, 3, 4, 5), none, const([1, 1, 2, 1, 2], np.float32)],
        S8,
        mode="linear",
    )
    m.add("Resize", [x(S8, 2, 3), none, const([2, 3], np.float32)], S8, mode="nearest")
    m.add("Resize", [x(S16, 1, 1, 3, 4), none, double], S16, mode="linear")
    m.add("Resize", [x(S16, 1, 1, 3, 4), none, double], Y8, mode="linear", label="narrower")
    m.add("Resize", [x(S8, 1, 2, 5), none, const([1, 1, 2], np.float32)], S16, mode="cubic")
    _, executable = m.check()
    assert not FLOATS & set(call_names(executable.module))


def test_symbolic_batch() -> None:
    m = Model()
    image = x(U8, 3, 2, 6, 4, shape=["n", 2, 6, 4])
    m.add("AveragePool", [image], Y8, kernel_shape=[2, 2], ceil_mode=1, strides=[2, 2])
    m.add("GlobalAveragePool", [image], Y8)
    m.add("ReduceMean", [image, const([1, 2], np.int64)], Y8, keepdims=0)
    m.add("Softmax", [image], params("uint8", 1 / 256), axis=1)
    m.add("Resize", [image, None, const([1, 1, 2, 2], np.float32)], U8, mode="linear")
    m.add("LayerNormalization", [image, vector(4, "int8", 0.02)], Y8)
    m.add("InstanceNormalization", [image, vector(2, "int8", 0.02), offset(2, 0.1)], Y8)
    _, executable = m.check()
    for count in (1, 2):
        equal(executable, {name: array[:count] for name, array in m.inputs.items()})
