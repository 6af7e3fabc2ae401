"""Conv, ConvTranspose, Dense, Gemm and MatMul from file to machine code: 0 LSB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import QuantParams
from tests.tvm.relax.single_ops import Array, Model, X, call_names, codes, const, equal, params

pytestmark = pytest.mark.relax

S8, U8 = params("int8", 0.5, 3), params("uint8", 0.0371, 131)
S16, U16 = params("int16", 2**-8, 0), params("uint16", 0.003, 32771)
TIES = params("int8", 8.0, -5)  # with scales 0.5 and 0.25: multiples of 1/64, many at one half
Y8 = params("uint8", 1.37, 77)


def weight(
    shape: tuple[int, ...],
    scale: Any = 0.25,
    dtype: str = "int8",
    zero: Any = 0,
    axis: int | None = None,
    seed: int = 7,
) -> X:
    count = 1 if axis is None else shape[axis]
    if axis is not None and np.ndim(scale) == 0:
        scale = (np.float32(scale) * 2.0 ** np.linspace(-2, 1, count)).astype(np.float32)
    data = codes(shape, dtype, seed)
    if dtype == "int8" and not np.any(zero):
        data = np.maximum(data, -127)
    return X(data, params(dtype, scale, np.broadcast_to(zero, np.shape(scale)), axis), fixed=True)


def bias(x: X, w: X, count: int, size: int = 3000) -> X:
    """An int32 bias on the scale of the products."""
    assert x.params is not None and w.params is not None
    left, right = np.asarray(x.params.scale, np.float32), np.asarray(w.params.scale, np.float32)
    scale = np.asarray(left * right, np.float32)
    data = np.random.default_rng(count).integers(-size, size, count).astype(np.int32)
    axis = 0 if scale.ndim else None
    return X(data, QuantParams(DType.INT32, scale, np.zeros(scale.shape, np.int32), axis), True)


def doubled(x: X) -> X:
    assert x.params is not None
    return X(x.values, params("uint8", 2 * float(x.params.scale), x.params.zero_point))


def integer_only(names: list[str]) -> None:
    """Nothing but integer operators, and requantize to end a sum."""
    assert set(names) & {"qnn.dequantize", "qnn.quantize"} == set(), names


def test_convolutions() -> None:
    m = Model()

    def conv(x: X, w: X, *rest: X, y: QuantParams = Y8, label: str = "", **attributes: Any) -> None:
        m.add("Conv", [x, w, *rest], y, label=label, **attributes)

    def image(p: QuantParams, *shape: int) -> X:
        return X(codes(shape, str(p.storage_dtype), len(m.branches)), p)

    x = image(S8, 2, 3, 7, 6)
    w = weight((4, 3, 3, 3))
    conv(x, w, bias(x, w, 4), y=TIES, label="ties")
    conv(x, w, y=params("int8", 0.01, 100), label="saturates", pads=[1, 0, 2, 1])
    x = image(U8, 1, 4, 8, 5)
    w = weight((6, 2, 3, 2), 0.01, axis=0)
    conv(x, w, bias(x, w, 6), label="per channel", group=2, strides=[2, 1], dilations=[2, 1])
    w = weight((4, 1, 3, 3), 0.013, axis=0)
    conv(
        x,
        w,
        bias(x, w, 4),
        y=params("int8", 0.37, 1),
        label="depthwise",
        group=4,
        auto_pad="SAME_UPPER",
        strides=[2, 2],
    )
    w = weight((8, 1, 1, 1), 0.013)
    conv(x, w, label="multiplier", group=4)
    w = weight((2, 2, 3, 3), 0.013, axis=0)
    conv(x, w, bias(x, w, 2), label="a result per group of two channels", group=2)
    w = weight((5, 4, 1, 1), 0.02, "uint8", 97)
    conv(x, w, bias(x, w, 5), label="uint8 weight with zero point")
    w = weight((5, 4, 2, 2), 0.02, "uint8", [0, 255, 128, 1, 130], axis=0)
    conv(x, w, label="uint8 weight with zero points per channel")
    x = image(S8, 2, 3, 9)
    w = weight((4, 3, 4), 0.03, axis=0)
    conv(x, w, bias(x, w, 4), label="1-D", strides=[2], pads=[1, 2])
    x = image(U8, 1, 2, 4, 5, 3)
    w = weight((3, 2, 2, 3, 2), 0.03)
    conv(x, w, bias(x, w, 3), label="3-D", pads=[1, 1, 0, 0, 1, 1])
    graph, executable = m.check()
    assert [node.op.name for node in graph.nodes] == ["Conv"] * len(m.branches)
    integer_only(call_names(executable.module))


def test_sixteen_bits() -> None:
    """Sums beyond int32, and 16-bit results."""
    m = Model()
    x = X(codes((1, 40, 5, 5), "int16", 1), S16)
    w = weight((3, 40, 3, 3), 2**-6, "int16")
    m.add("Conv", [x, w], params("int16", 37.5), label="int16")
    x = X(codes((2, 3, 5, 5), "uint16", 2), U16)
    w = weight((4, 3, 2, 2), 0.02, axis=0)
    m.add("Conv", [x, w, bias(x, w, 4)], params("uint16", 0.05, 30000), label="u16 x s8")
    x = X(codes((3, 600), "int16", 1), S16)
    m.add("MatMul", [x, weight((600, 4), 2**-6, "int16")], params("int8", 200), row="Dense")
    m.add("MatMul", [x, X(codes((600, 2), "uint16", 4), U16)], params("int8", 200))
    graph, executable = m.check()
    integer_only(call_names(executable.module))
    del graph


def test_transposed_convolutions() -> None:
    m = Model()
    for rank in (1, 2, 3):
        x = X(codes((2, 4, *(5, 4, 3)[:rank]), "uint8", rank), U8)
        w = weight((4, 3, *(3, 2, 2)[:rank]), 0.02, axis=1)
        m.add(
            "ConvTranspose",
            [x, w, bias(x, w, 3)],
            Y8,
            label="per channel",
            strides=[2] * rank,
            output_padding=[1] + [0] * (rank - 1),
        )
    x = X(codes((1, 4, 5, 4), "int8", 5), S8)
    w = weight((4, 2, 3, 3), 0.25)
    m.add(
        "ConvTranspose",
        [x, w],
        TIES,
        label="pads",
        group=2,
        pads=[1, 0, 0, 1],
        dilations=[2, 1],
        strides=[1, 3],
    )
    w = weight((4, 2, 2, 2), 0.05, axis=1)
    scale = np.float32(0.5) * np.tile(np.asarray(w.params.scale if w.params else 0), 2)
    b = X(
        np.arange(-200, 200, 100).astype(np.int32),
        QuantParams(DType.INT32, scale.astype(np.float32), np.zeros(4, np.int32), 0),
        True,
    )
    m.add("ConvTranspose", [x, w, b], Y8, label="groups, per channel", group=2, strides=[2, 2])
    w = weight((4, 1, 2, 3), 0.05, "uint8", 100)
    m.add("ConvTranspose", [x, w], Y8, label="depthwise", group=4, output_shape=[6, 6])
    _, executable = m.check()
    integer_only(call_names(executable.module))


def test_matrix_products_with_a_constant() -> None:
    m = Model()
    x = X(codes((3, 16), "uint8"), U8)
    w = weight((16, 5), 0.02, axis=1)
    m.add("MatMul", [x, w], Y8, row="Dense")
    m.add("MatMul", [X(codes((2, 3, 16), "int8"), S8), w], TIES, row="Dense", label="rank 3")
    m.add("MatMul", [X(codes((2, 1, 3, 16), "int8"), S8), weight((16, 3))], TIES, row="Dense")
    m.add("MatMul", [x, weight((16, 5), 0.02, "uint8", 33)], Y8, row="Dense", label="uint8 w")
    w = weight((5, 16), 0.02, axis=0)
    m.add("Gemm", [x, w, bias(x, w, 5)], Y8, row="Dense", transB=1)
    w = weight((16, 5), 0.02, axis=1)
    m.add("Gemm", [x, w, bias(x, w, 5)], params("int8", 0.3, 9), row="Dense")
    m.add("Gemm", [x, w], Y8, alpha=0.37)
    permuted = X(codes((16, 3), "uint8", 4), U8)
    m.add("Gemm", [permuted, w], Y8, row="Dense", transA=1)
    m.add("Gemm", [permuted, w], Y8, transA=1, alpha=0.37)
    b = weight((5, 16), 0.02)
    m.add("Gemm", [permuted, b], Y8, row="Dense", transA=1, transB=1, alpha=2.0)
    m.add("Gemm", [permuted, w, bias(x, w, 5)], Y8, transA=1, label="int32 bias", row="Dense")
    m.add("Gemm", [x, w, bias(doubled(x), w, 5)], Y8, alpha=2.0, label="int32 bias", row="Dense")
    _, executable = m.check()
    names = call_names(executable.module)
    assert names.count("qnn.dense") == len(m.branches)


def test_products_of_two_activations() -> None:
    m = Model()
    for a, b in (
        ((3, 8), (8, 5)),
        ((2, 3, 8), (2, 8, 5)),
        ((2, 4, 3, 8), (2, 4, 8, 5)),
        ((2, 3, 8), (8, 5)),
        ((2, 1, 3, 8), (4, 8, 5)),
        ((3, 8), (2, 8, 2)),
        ((1, 8), (8, 1)),
    ):
        left, right = X(codes(a, "uint8", 1), U8), X(codes(b, "int8", 2), S8)
        m.add("MatMul", [left, right], Y8, label=f"{a} {b}")
    m.add("MatMul", [X(codes((4, 6), "int8"), S8), X(codes((6, 4), "int8"), S8)], TIES)
    left, right = X(codes((6, 4), "int8", 1), S8), X(codes((3, 6), "uint8", 2), U8)
    m.add("Gemm", [left, right], Y8, transA=1, transB=1, alpha=0.5)
    _, executable = m.check()
    integer_only(call_names(executable.module))
    assert call_names(executable.module).count("qnn.batch_matmul") == len(m.branches)


def test_weights_of_run_time_with_scales_per_channel() -> None:
    m = Model()

    def fed(shape: tuple[int, ...], axis: int, zero: int = 0) -> X:
        return weight(shape, 0.02, axis=axis, zero=zero).feed()

    x = X(codes((3, 8), "uint8", 1), U8)
    m.add("MatMul", [x, fed((8, 5), 1)], Y8)
    m.add("MatMul", [x, fed((8, 5), 1, zero=3)], Y8, label="with zero points")
    m.add("MatMul", [X(codes((2, 3, 8), "uint8", 2), U8), fed((8, 5), 1)], Y8, label="stack")
    m.add("Gemm", [x, fed((5, 8), 0)], Y8, transB=1)
    m.add("Gemm", [x, fed((8, 5), 1)], Y8, alpha=0.5, label="half")
    m.add("Gemm", [X(codes((8, 3), "int8", 3), S8), fed((5, 8), 0)], Y8, transA=1, transB=1)
    m.add("Conv", [X(codes((1, 4, 6, 6), "uint8", 4), U8), fed((6, 4, 3, 3), 0)], Y8)
    _, executable = m.check()
    integer_only(call_names(executable.module))


def test_vectors() -> None:
    """A vector is a matrix of one row or column, whose axis the result does not have."""
    m = Model()
    vector = X(codes((700,), "int16", 1), S16)  # float32 sums of these would be inexact
    other = X(codes((700,), "uint16", 6), U16)
    y = params("int8", 200)
    m.add("MatMul", [vector, X(codes((700, 3), "int8", 2), S8)], y, label="vector x matrix")
    m.add("MatMul", [vector, X(codes((2, 700, 3), "int8", 2), S8)], y, label="vector x stack")
    m.add("MatMul", [X(codes((2, 3, 700), "int16", 2), S16), vector], y, label="stack x vector")
    m.add("MatMul", [vector, other], y, label="vector x vector")
    one = weight((700, 3), 0.02, axis=1)
    m.add("MatMul", [vector, one], y, label="vector x weight", row="Dense")
    m.add("MatMul", [X(codes((2, 700), "int16", 2), S16), weight((700,), 0.02)], y)
    _, executable = m.check()
    integer_only(call_names(executable.module))


def test_narrow_weights() -> None:
    """4-bit weights next to 8-bit activations, one byte each in TVM."""
    import ml_dtypes

    m = Model()
    x = X(codes((3, 16), "int8"), S8)
    for kind in (ml_dtypes.int4, ml_dtypes.uint4):
        low, high = (-8, 7) if kind is ml_dtypes.int4 else (0, 15)
        data = np.random.default_rng(3).integers(low, high + 1, (16, 5)).astype(kind)
        scale = np.float32(0.1) * np.arange(1, 6, dtype=np.float32)
        p = QuantParams(DType.of(np.dtype(kind)), scale, np.zeros(5, np.int32), 1)
        m.add("MatMul", [x, X(data, p, fixed=True)], Y8, row="Dense", label=str(kind))
    _, executable = m.check()
    integer_only(call_names(executable.module))


def test_clamps_are_ranges() -> None:
    """Relu and Clip after a sum: a narrower range, one clip where zero is not the end."""
    m = Model()
    x = X(codes((1, 3, 5, 5), "uint8"), U8)
    w = weight((4, 3, 3, 3), 0.01)
    m.add("Conv", [x, w], params("uint8", 0.1, 0), then="Relu", label="implied")
    m.add("Conv", [x, w], params("uint8", 0.1, 55), then="Relu", label="narrow")
    m.add("Conv", [x, w], params("int8", 0.1, -128), then="Relu", label="implied")
    m.add("MatMul", [X(codes((3, 8), "int8"), S8), weight((8, 4))], TIES, row="Dense", then="Relu")
    graph, executable = m.check()
    assert "Relu" not in [node.op.name for node in graph.nodes]
    assert call_names(executable.module).count("relax.clip") == 2


def test_float_results() -> None:
    """Sums of quantized operands with a float result: dequantize the sum."""
    m = Model()
    x = X(codes((2, 3, 5, 5), "uint8"), U8)
    w = weight((4, 3, 3, 3), 0.01, axis=0)
    m.add("Conv", [x, w, bias(x, w, 4)], label="int32 bias")
    m.add("Conv", [x, weight((4, 3, 1, 1), 0.01)], label="no bias")
    y = X(codes((3, 16), "int8"), S8)
    w = weight((16, 5), 0.02, axis=1)
    m.add("MatMul", [y, w], row="Dense")
    m.add("Gemm", [y, w], row="Gemm", alpha=0.3)
    m.add("MatMul", [y, X(codes((16, 5), "uint8"), U8)])
    x1 = X(codes((1, 4, 5), "int8"), S8)
    m.add("ConvTranspose", [x1, weight((4, 3, 2), 0.02, axis=1)], group=1)
    graph, executable = m.check()
    names = call_names(executable.module)
    assert names.count("qnn.dequantize") == len(m.branches) == len(graph.nodes)
    assert "qnn.requantize" not in names


def test_float_biases() -> None:
    """A bias that is no multiple of the products' scale stays float, or becomes its integer."""
    m = Model()
    x = X(codes((2, 3, 5, 5), "uint8"), U8)
    w = weight((4, 3, 3, 3), 0.01, axis=0)
    vector = const([0.1, -37.3, 1e9, 3.0], np.float32)
    m.add("Conv", [x, w, vector], Y8, label="too large")
    m.add("Conv", [x, w, const([1, 2, 3, 4], np.float32)], Y8, label="integers")
    m.add("Conv", [x, w, vector], None, label="float result")
    m.add("ConvTranspose", [x, weight((3, 4, 2, 2), 0.01, axis=1), vector], None)
    y = X(codes((3, 16), "int8"), S8)
    w = weight((16, 4), 0.02, axis=1)
    m.add("Gemm", [y, w, vector], Y8, row="Dense", label="too large")
    m.add("Gemm", [y, w, const([1.5] * 4, np.float32)], Y8, row="Dense", beta=0.5)
    for shape in ((3, 4), (3, 1), (1, 4), (1,), ()):
        addend = const(np.random.default_rng(len(shape)).normal(size=shape), np.float32)
        m.add("Gemm", [y, w, addend], Y8, label=f"bias of shape {shape}", row="", alpha=0.3)
        m.add("Gemm", [y, w, addend], None, label=f"bias of shape {shape}", row="", beta=0.7)
    m.add("Gemm", [y, X(codes((16, 4), "uint8"), U8), X(real((3, 4)))], None, beta=0.7)
    m.add(
        "Gemm",
        [y, X(codes((16, 4), "uint8"), U8), X(codes((3, 4), "uint8"), U8)],
        Y8,
        whole=False,
        label="a quantized activation as bias",
    )
    m.check()


def test_symbolic_batch() -> None:
    m = Model()
    x = X(codes((3, 3, 5, 5), "uint8"), U8, shape=["n", 3, 5, 5])
    w = weight((4, 3, 3, 3), 0.01, axis=0)
    m.add("Conv", [x, w, bias(x, w, 4)], Y8)
    w = weight((3, 4, 2, 2), 0.01, axis=1)
    m.add("ConvTranspose", [x, w, bias(x, w, 4)], Y8)
    y = X(codes((3, 4, 8), "int8"), S8, shape=["n", 4, 8])
    m.add("MatMul", [y, weight((8, 3), 0.02)], Y8, row="Dense")
    m.add("MatMul", [y, X(codes((3, 8, 2), "int8"), S8, shape=["n", 8, 2])], Y8)
    _, executable = m.check()
    for count in (1, 2):
        equal(executable, {name: array[:count] for name, array in m.inputs.items()})


def blocked(shape: tuple[int, int], size: int, axis: int, dtype: Any) -> X:
    """A weight in blocks of ``size`` along ``axis``."""
    count = list(shape)
    count[axis] = -(-shape[axis] // size)
    rng = np.random.default_rng(5)
    kind = DType.of(np.dtype(dtype))
    data = rng.integers(kind.qmin, kind.qmax + 1, shape).astype(dtype)
    scale = (2.0 ** rng.uniform(-6, -3, count)).astype(np.float32)
    zero = rng.integers(kind.qmin, kind.qmax + 1, count) if "u" in kind.label else np.zeros(count)
    params_ = QuantParams(kind, scale, zero.astype(np.int32), axis, size)
    return X(data, params_, fixed=True, block=size)


def real(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_weight_only() -> None:
    """Float activations: the weight stays packed in the module and is dequantized there."""
    import ml_dtypes

    m = Model()
    x = X(real((3, 16)))
    image = X(real((1, 3, 5, 5)))
    m.add("MatMul", [x, weight((16, 4), 0.02, axis=1)], row="Dense")
    m.add("MatMul", [x, blocked((16, 4), 4, 0, ml_dtypes.int4)], row="", label="int4 blocks")
    m.add("MatMul", [x, blocked((16, 6), 5, 0, ml_dtypes.uint4)], row="", label="uint4 blocks")
    m.add("Gemm", [x, blocked((4, 16), 8, 1, np.int8)], row="", transB=1, label="int8 blocks")
    m.add("Conv", [image, weight((4, 3, 3, 3), 0.02, axis=0)])
    m.add("Conv", [image, weight((4, 3, 3, 3), 0.02, "uint8", 7)])
    m.add("ConvTranspose", [image, weight((3, 2, 2, 2), 0.02, axis=1)])
    graph = m.load()
    from qdqbridge import compile as build
    from qdqbridge import evaluate

    executable = build(graph, kernels="reference")
    expected, got = evaluate(graph, m.inputs), executable.run(m.inputs)
    for branch in m.branches:
        (name,) = branch.outputs
        # Float products of weights that stay stored: sums in another order.
        np.testing.assert_allclose(got[name], expected[name], 2e-6, 2e-6, err_msg=branch.label)
    assert "qnn.dequantize" in call_names(executable.module)
    weights = [v.quant.params for v in graph.values() if v.is_constant and v.quant]
    stored = {(str(params.storage_dtype), params.symmetric) for params in weights}
    assert {dtype for dtype, _ in stored} == {"int4", "int8"}
    assert ("int4", False) in stored  # of unsigned codes that do not fit around 0
