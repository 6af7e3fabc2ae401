"""Float operators: what TVM computes against onnxruntime, within a few units in the last place."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("tvm")

import qdqbridge as qb
from tests.tvm.relax.read_cases import same
from tests.tvm.relax.single_ops import Array, Model, X, const, load

pytestmark = pytest.mark.relax

ULP = 2.0**-23
EXACT = {
    "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Relu", "Clip", "Add", "Sub", "Mul", "Div",
    "Min", "Max", "Where", "PRelu", "Concat", "LeakyRelu", "ThresholdedRelu", "Sqrt", "Reciprocal",
    "Cast", "Shape", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Reshape", "Transpose",
    "Slice", "Gather", "Pad", "Split", "Tile", "Expand", "DepthToSpace",
}  # fmt: skip
"""Operators that no library may round differently."""


def real(*shape: int, seed: int = 0, low: float = -4, high: float = 4) -> X:
    values = np.random.default_rng(seed).uniform(low, high, shape)
    return X(values.astype(np.float32))


def outputs(m: Model) -> list[tuple[str, Array, Array]]:
    """Returns label, TVM's and onnxruntime's result of every branch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        path.write_bytes(m.proto().SerializeToString())
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        theirs = session.run(None, m.inputs)
        executable = qb.compile(qb.load(path))
    if not any(n.op.name == "Min" and len(n.inputs) == 1 for n in executable.graph.nodes):
        same(qb.from_relax(qb.to_relax(executable.graph)[0]), executable.graph)
    ours = executable.run(m.inputs)
    names = {name: branch.label for branch in m.branches for name in branch.outputs}
    return [
        (names[value.name], ours[value.name], np.asarray(part))
        for value, part in zip(session.get_outputs(), theirs, strict=True)
    ]


def close(m: Model, ulps: float, terms: float = 0) -> None:
    """Asserts that results agree within ``ulps`` of themselves plus ``terms`` ulps of 1."""
    problems: list[str] = []
    for label, ours, theirs in outputs(m):
        assert ours.dtype == theirs.dtype, label
        assert ours.shape == theirs.shape, label
        op = label.split()[0]
        bound = 0.0 if op in EXACT or " exact " in label else ulps
        with np.errstate(invalid="ignore"):  # infinities are equal or not
            error = np.where(ours == theirs, 0, ours.astype(np.float64) - theirs)
        error = np.abs(error)
        allowed = ULP * (bound * np.abs(np.nan_to_num(theirs)) + (terms if bound else 0))
        if not (error <= allowed).all():
            worst = float((error / np.maximum(np.abs(theirs), 1e-30)).max()) / ULP
            problems.append(f"{label}: {worst:.1f} ulp, {float(error.max() / ULP):.1f} ulp of 1")
    assert not problems, "\n".join(problems)


def test_unary() -> None:
    m = Model(opset=22)
    x, positive = real(3, 50), real(3, 50, low=0.01, high=9)
    for op in (
        "Sigmoid", "Tanh", "Exp", "Erf", "Sin", "Cos", "Softplus", "Softsign", "Mish", "HardSwish",
        "HardSigmoid", "Elu", "Celu", "Selu", "Gelu", "LeakyRelu", "ThresholdedRelu", "Abs", "Neg",
        "Floor", "Ceil", "Round", "Sign", "Relu",
    ):  # fmt: skip
        m.add(op, [x])
    for op in ("Log", "Sqrt", "Reciprocal"):
        m.add(op, [positive])
    m.add("Gelu", [x], approximate="tanh")
    m.add("Celu", [x], alpha=0.3)
    m.add("Elu", [x], alpha=2.5)
    m.add("HardSigmoid", [x], alpha=0.3, beta=0.1)
    m.add("Clip", [x, const(np.float32(-1)), const(np.float32(2.5))])
    m.add("Clip", [x, None, const(np.float32(0.5))])
    m.add("QuickGelu", [x], domain="com.microsoft")
    m.builder.opsets["com.microsoft"] = 1
    close(m, ulps=16, terms=8)


def test_arithmetic() -> None:
    m = Model()
    a, b = real(2, 3, 4), real(3, 1, seed=1, low=0.5)
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu"):
        m.add(op, [a, b])
    m.add("Max", [a, b, real(4, seed=2)])
    m.add("Min", [a])
    m.add("Pow", [real(2, 3, low=0.1), real(3, seed=4)])
    m.add("Pow", [a, const(np.int64(3))])
    m.add("Pow", [X(np.arange(1, 7, dtype=np.int32)), const(np.float32(2))], dtype=6, whole=False)
    m.add("Where", [X(np.array([[True], [False], [True]])), a, b])
    m.add("Concat", [a, real(2, 3, 1, seed=6)], axis=-1)
    m.add("Cast", [X(np.linspace(-3, 3, 9, dtype=np.float32))], to=6, dtype=6)
    m.add("Cast", [X(np.arange(-3, 4))], to=1)
    m.add("Shape", [a], dtype=7)
    m.add("Shape", [a], dtype=7, start=-2)
    m.add("Add", [X(np.arange(6, dtype=np.int64)), const(np.int64(3))], dtype=7)
    m.add("Div", [X(np.array([7, -7, 7, -7, 0])), X(np.array([2, 2, -2, -2, 3]))], dtype=7)
    m.add("Div", [X(np.array([7, 9, 0], np.int32)), const(np.int32(-4))], dtype=6)
    close(m, ulps=4)


def test_products() -> None:
    """Sums of at most 40 products of numbers below 4: a few ulp of their largest sum."""
    m = Model()
    image = real(2, 3, 6, 5)
    w = X(real(4, 3, 3, 2, seed=1).values, fixed=True)
    bias = X(real(4, seed=2).values, fixed=True)
    m.add("Conv", [image, w, bias], pads=[1, 0, 2, 1], strides=[1, 2])
    m.add("Conv", [real(1, 4, 9), X(real(4, 2, 3, seed=1).values, fixed=True)], group=2)
    m.add("Conv", [real(1, 2, 4, 4, 4), X(real(2, 2, 2, 2, 2, seed=1).values, fixed=True)])
    w = X(real(3, 2, 3, 2, seed=1).values, fixed=True)
    m.add("ConvTranspose", [image, w], strides=[2, 2], output_padding=[1, 0], pads=[1, 0, 0, 1])
    m.add("ConvTranspose", [real(1, 4, 5), X(real(4, 2, 3, seed=1).values, fixed=True)], group=2)
    a, b = real(3, 8), real(8, 5, seed=1)
    m.add("MatMul", [real(2, 3, 8), b])
    m.add("MatMul", [real(8), b], label="vector")
    m.add("Gemm", [a, b, X(real(5, seed=2).values)], alpha=0.5, beta=2.0)
    m.add("Gemm", [real(8, 3), real(5, 8, seed=1), const(np.float32(1.5))], transA=1, transB=1)
    close(m, ulps=8, terms=400)


def test_rows() -> None:
    m = Model(opset=23)
    x, image = real(2, 3, 8), real(2, 4, 6, 5)
    for axis in (0, 1, -1):
        m.add("Softmax", [x], axis=axis)
        m.add("LogSoftmax", [x], axis=axis)
    for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"):
        m.add(op, [x, const([0, -1], np.int64)], keepdims=0)
    gamma, beta = X(real(8, seed=1).values, fixed=True), X(real(8, seed=2).values, fixed=True)
    m.add("LayerNormalization", [x, gamma, beta])
    m.add("LayerNormalization", [x, gamma], label="no beta", axis=-1, epsilon=0.1)
    matrix = X(real(3, 8, seed=1).values, fixed=True)
    m.add("LayerNormalization", [x, matrix, matrix], label="two axes", axis=1)
    m.add("RMSNormalization", [x, gamma], epsilon=1e-3)
    vector = [X(real(4, seed=i, low=0.1).values, fixed=True) for i in range(4)]
    m.add("InstanceNormalization", [image, *vector[:2]])
    m.add("GroupNormalization", [image, *vector[:2]], num_groups=2)
    m.add("BatchNormalization", [image, *vector])
    close(m, ulps=16, terms=32)


def test_windows() -> None:
    m = Model()
    image = real(1, 3, 7, 6)
    m.add("AveragePool", [image], kernel_shape=[3, 2], pads=[1, 0, 2, 1], strides=[2, 1])
    m.add("AveragePool", [image], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    m.add("AveragePool", [image], kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2])
    m.add(
        "AveragePool",
        [image],
        kernel_shape=[3, 3],
        ceil_mode=1,
        strides=[2, 2],
        pads=[1, 0, 0, 1],
        count_include_pad=1,
    )
    m.add("AveragePool", [real(1, 2, 9)], kernel_shape=[4], strides=[2])
    m.add("GlobalAveragePool", [image])
    m.add("MaxPool", [image], kernel_shape=[3, 2], ceil_mode=1, strides=[2, 3], pads=[1, 1, 0, 0])
    m.add("GlobalMaxPool", [image])
    close(m, ulps=16, terms=32)


def test_resize() -> None:
    m = Model()
    image, scales = real(1, 3, 7, 6), const([1, 1, 1.7, 0.6], np.float32)
    sizes = const([1, 3, 5, 9], np.int64)
    for mode in ("nearest", "linear", "cubic"):
        label = "exact" if mode == "nearest" else ""
        for kind in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
            m.add(
                "Resize",
                [image, None, scales],
                label=label,
                mode=mode,
                coordinate_transformation_mode=kind,
            )
        m.add("Resize", [image, None, None, sizes], label=label, mode=mode)
    for mode in ("floor", "ceil", "round_prefer_ceil"):
        m.add("Resize", [image, None, scales], label="exact", mode="nearest", nearest_mode=mode)
    m.add("Resize", [image, None, scales], mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
    m.add("Resize", [real(1, 2, 5), None, const([1, 1, 2.5], np.float32)], mode="linear")
    m.add(
        "Resize", [real(1, 1, 3, 4, 5), None, const([1, 1, 2, 1, 1.5], np.float32)], mode="linear"
    )
    m.add("Resize", [real(2, 3), None, const([2, 3], np.float32)], label="exact", mode="nearest")
    nothing = const([1, 1, 0.7, 2], np.float32)  # of one row there are 0.7, which is none
    for mode in ("linear", "cubic"):
        m.add("Resize", [real(1, 2, 1, 5), None, nothing], mode=mode)
    close(m, ulps=16, terms=32)


def test_movers() -> None:
    m = Model()
    x = real(2, 4, 6, 4)
    m.add("Reshape", [x, const([0, -1], np.int64)])
    m.add("Transpose", [x], perm=[3, 0, 2, 1])
    m.add(
        "Slice",
        [
            x,
            const([-1], np.int64),
            const([-9], np.int64),
            const([2], np.int64),
            const([-2], np.int64),
        ],
    )
    m.add("Gather", [x, const([1, -1], np.int64)], axis=2)
    for mode in ("constant", "reflect", "edge", "wrap"):
        m.add("Pad", [x, const([0, 0, 1, 2, 0, 0, 3, 1], np.int64)], mode=mode)
    m.add("Pad", [x, const([0, 1, 0, 0, 0, 0, 0, 0], np.int64), const(np.float32(-np.inf))])
    m.add("Split", [x, const([1, 3], np.int64)], None, None, axis=1)
    m.add("Tile", [x, const([1, 2, 1, 1], np.int64)])
    m.add("Expand", [x, const([3, 1, 1, 1, 1], np.int64)])
    m.add("DepthToSpace", [x], blocksize=2, mode="CRD")
    close(m, ulps=0)


def test_double_and_half() -> None:
    """Other float types than float32."""
    m = Model()
    wide: Any = X(np.linspace(-3, 3, 12).reshape(3, 4))
    m.add("Add", [wide, const(0.1)], dtype=11)
    m.add("Mul", [wide, const(0.1)], dtype=11)
    half: Any = X(np.linspace(-3, 3, 12).reshape(3, 4).astype(np.float16))
    m.add("Add", [half, const(np.float16(0.1))], dtype=10)
    m.add("Relu", [half], dtype=10)
    m.add("Cast", [half], to=1)
    close(m, ulps=0)


def test_a_norm_broadcasts_its_scale() -> None:
    """Also for an onnxruntime that does not know it yet (before 1.24)."""
    m = Model(opset=23)
    x = real(2, 3, 8)
    gamma = np.asarray(real(8, seed=1).values)
    whole = X(np.ascontiguousarray(np.broadcast_to(gamma, (3, 8))), fixed=True)
    m.add("LayerNormalization", [x, X(gamma, fixed=True)], label="vector", axis=1)
    m.add("LayerNormalization", [x, whole], label="matrix", axis=1)
    graph = load(m.proto())
    vector, matrix = qb.compile(graph).run(m.inputs).values()
    np.testing.assert_allclose(vector, matrix, rtol=1e-6, atol=1e-6)  # float: a few ulp


@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("base", [np.int32, np.int64])
def test_powers_of_integers(base: type[np.integer[Any]], exponent: type[np.number[Any]]) -> None:
    """Exact where onnxruntime's float64 is, and 3 ** -1 is 0."""
    m = Model(opset=15)
    powers = [(3, 15), (-3, 19), (7, 1), (-1, 100), (0, 1), (5, 0), (-2, 31), (1, 7)]
    powers += [(7, -1), (1, -3), (-1, -3), (-1, -2), (-2, -1)]
    x, by = (np.array(numbers) for numbers in zip(*powers, strict=True))
    pair = [X(x.astype(base)), X(by.astype(exponent))]
    m.add("Pow", pair, dtype=6 if base is np.int32 else 7, label="Pow exact of integers")
    graph, found = load(m.proto()), qb.compile(load(m.proto())).run(m.inputs)
    for name, ours in qb.evaluate(graph, m.inputs).items():
        np.testing.assert_array_equal(ours, found[name])
    close(m, ulps=0)


@pytest.mark.parametrize("exponent", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("base", [np.int32, np.int64])
def test_powers_beyond_float64_are_exact(
    base: type[np.integer[Any]], exponent: type[np.integer[Any]]
) -> None:
    """What Python's integers give, modulo what the type holds; broadcast, and read back."""
    bases, exponents = [3, -3, 7, 10, 2, -2, 12345], [39, 38, 22, 18, 62, 63, 4, 33, 100]
    m = Model(opset=15)
    column = X(np.array(bases, base)[:, None])
    m.add("Pow", [column, X(np.array(exponents, exponent))], dtype=6 if base is np.int32 else 7)
    graph = load(m.proto())
    bits = np.iinfo(base).bits
    meant = [
        [(b**e + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for e in exponents] for b in bases
    ]
    (ours,), (found,) = (
        qb.evaluate(graph, m.inputs).values(),
        qb.compile(graph).run(m.inputs).values(),
    )
    np.testing.assert_array_equal(ours, np.array(meant, base))
    np.testing.assert_array_equal(found, np.array(meant, base))
    assert qb.from_relax(*qb.to_relax(graph)).digest == graph.digest


@pytest.mark.parametrize("alpha", [-1.0, -0.5, 2.0])
def test_celu_of_either_sign(alpha: float) -> None:
    """ONNX takes the lesser of 0 and the grown x, whatever the sign of x / alpha."""
    m = Model(opset=12)
    m.add("Celu", [real(4, 16)], alpha=alpha)
    ((_, ours, theirs),) = outputs(m)
    (meant,) = qb.evaluate(load(m.proto()), m.inputs).values()
    for found in (ours, meant):  # float: a few ulp
        np.testing.assert_allclose(found, theirs, rtol=2e-6, atol=1e-6)
