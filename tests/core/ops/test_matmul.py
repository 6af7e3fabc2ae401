"""Gemm, MatMul and Dense against onnxruntime's fused integer kernels and its float ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.accumulator import exact_dtype
from qdqbridge.core.ops.attributes import GemmAttrs
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Operand,
    dot_error,
    fused_operators,
    ideal,
    mismatches,
    ours,
    per_axis,
    product_bias,
    proven_ties,
    quantized,
    random_params,
    theirs,
)

PAIRS = ((DType.UINT8, DType.INT8), (DType.INT8, DType.INT8), (DType.UINT8, DType.UINT8))
MIXED = (DType.UINT8, DType.INT8)
FORMS = [(False, False), (False, True), (True, True)]
ALPHA = float(np.float32(0.7))
SEEDS = 12


def make(
    rng: np.random.Generator,
    dtypes: tuple[DType, DType],
    xs: tuple[int, ...],
    ws: tuple[int, ...],
    axis: int | None,
    depth: int,
) -> tuple[Operand, Operand, QuantParams]:
    dx, dw = dtypes
    px = random_params(rng, dx, nice=False, low=-8, high=-4)
    pw = (
        random_params(rng, dw, nice=False, low=-8, high=-4)
        if axis is None
        else per_axis(rng, dw, ws[axis], axis)
    )
    scale = float(px.scale) * float(pw.scale.mean()) * 70 * depth**0.5
    py = per_tensor(dx, np.float32(scale), int(rng.integers(dx.qmin, dx.qmax)))
    return quantized(rng, xs, px), quantized(rng, ws, pw, fixed=True), py


def gemm(
    seed: int, dtypes: tuple[DType, DType], form: tuple[bool, bool], *, per_column: bool
) -> tuple[list[Operand], QuantParams, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    trans_a, trans_b = form
    m, k, n = [(9, 33, 17), (5, 256, 40)][seed % 2]
    axis = (0 if trans_b else 1) if per_column else None
    a, b, py = make(
        rng, dtypes, (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n), axis, k
    )
    alpha = 1.0 if seed % 3 else ALPHA
    operands = [a, b]
    if seed % 4:
        operands.append(product_bias(rng, a, b, n, alpha=alpha))
    fields = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha}
    return operands, py, fields


def attributes(fields: dict[str, Any]) -> GemmAttrs:
    return GemmAttrs(fields["alpha"], 1.0, bool(fields["transA"]), bool(fields["transB"]))


@pytest.mark.parametrize("per_column", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("form", FORMS, ids=["nn", "nt", "tt"])
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_gemm_equals_the_fused_kernel(dtypes, form, per_column) -> None:
    """Bit for bit: QGemm, with alpha, with and without an int32 bias."""
    for seed in range(SEEDS):
        operands, py, fields = gemm(seed, dtypes, form, per_column=per_column)
        if seed < 2:
            assert "QGemm" in fused_operators("Gemm", operands, [py], fields)
        (their,) = theirs("Gemm", operands, [py], fields, optimized=True)
        (our,) = ours("Gemm", attributes(fields), operands, [py])
        assert mismatches(their, our) == 0, seed


@pytest.mark.parametrize("per_column", [False, True], ids=["tensor", "channel"])
def test_gemm_differs_from_the_float_kernel_in_ties_only(per_column) -> None:
    differences = total = 0
    for dtypes in PAIRS:
        for form in FORMS:
            for seed in range(SEEDS):
                operands, py, fields = gemm(seed, dtypes, form, per_column=per_column)
                (their,) = theirs("Gemm", operands, [py], fields)
                (our,) = ours("Gemm", attributes(fields), operands, [py])
                (real,) = ideal("Gemm", attributes(fields), operands)
                error = dot_error("Gemm", attributes(fields), operands, py, 256)
                assert proven_ties(their, our, real, py, error)
                differences, total = differences + mismatches(their, our), total + our.size
    assert differences * 5000 < total


@pytest.mark.parametrize("per_column", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_matmul_equals_the_fused_kernel(dtypes, per_column) -> None:
    """Bit for bit: QLinearMatMul."""
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        a, b, py = make(rng, dtypes, (2, 7, 65), (65, 19), 1 if per_column else None, 65)
        if seed == 0:
            assert "QLinearMatMul" in fused_operators("MatMul", [a, b], [py], {})
        (their,) = theirs("MatMul", [a, b], [py], optimized=True)
        (our,) = ours("MatMul", NO_ATTRIBUTES, [a, b], [py])
        assert mismatches(their, our) == 0, seed


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 7, 65), (65, 19)),
        ((2, 1, 7, 65), (3, 65, 5)),
        ((65,), (65, 4)),
        ((3, 65), (65,)),
        ((65,), (65,)),
    ],
    ids=str,
)
def test_matmul_differs_from_the_float_kernel_in_ties_only(shapes) -> None:
    differences = total = 0
    for dx, _ in PAIRS[:2]:
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            a, b, py = make(rng, (dx, dx), shapes[0], shapes[1], None, 65)
            (their,) = theirs("MatMul", [a, b], [py])
            (our,) = ours("MatMul", NO_ATTRIBUTES, [a, b], [py])
            (real,) = ideal("MatMul", NO_ATTRIBUTES, [a, b])
            error = dot_error("MatMul", NO_ATTRIBUTES, [a, b], py, 65)
            assert proven_ties(their, our, real, py, error)
            differences, total = differences + mismatches(their, our), total + our.size
    assert differences * 2000 < total + 2000


@pytest.mark.parametrize("per_column", [False, True], ids=["tensor", "channel"])
def test_float_result_equals_matmul_integer_to_float(per_column) -> None:
    """u8 x s8 with a float result is fused as well: f32(acc) * f32(sa * sb), bit for bit."""
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        a, b, _ = make(rng, MIXED, (2, 7, 65), (65, 19), 1 if per_column else None, 65)
        if seed == 0:
            assert "MatMulIntegerToFloat" in fused_operators("MatMul", [a, b], [None], {})
        (their,) = theirs("MatMul", [a, b], [None], optimized=True)
        (our,) = ours("MatMul", NO_ATTRIBUTES, [a, b], [None])
        np.testing.assert_array_equal(their, our)


@pytest.mark.parametrize("alpha", [1.0, ALPHA])
@pytest.mark.parametrize("per_column", [False, True], ids=["tensor", "channel"])
def test_float_result_of_gemm_equals_the_fused_kernel(per_column, alpha) -> None:
    """The bits of a float result show the order in which alpha and both scales are multiplied."""
    fields = {"alpha": alpha}
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        a, b, _ = make(rng, MIXED, (7, 65), (65, 19), 1 if per_column else None, 65)
        if seed == 0:
            assert "QGemm" in fused_operators("Gemm", [a, b], [None], fields)
        (their,) = theirs("Gemm", [a, b], [None], fields, optimized=True)
        (our,) = ours("Gemm", GemmAttrs(alpha), [a, b], [None])
        np.testing.assert_array_equal(their, our)


@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "channel"])
def test_dense_equals_gemm_with_a_transposed_weight(per_row) -> None:
    rng = np.random.default_rng(0)
    x, w, py = make(rng, MIXED, (6, 33), (11, 33), 0 if per_row else None, 33)
    bias = product_bias(rng, x, w, 11)
    (gemm_,) = ours("Gemm", GemmAttrs(trans_b=True), [x, w, bias], [py])
    (dense,) = ours("Dense", NO_ATTRIBUTES, [x, w, bias], [py])
    np.testing.assert_array_equal(dense, gemm_)
    cube = Operand(x.values.reshape(2, 3, 33), x.params)
    (dense,) = ours("Dense", NO_ATTRIBUTES, [cube, w, bias], [py])
    np.testing.assert_array_equal(dense, gemm_.reshape(2, 3, 11))


def test_bias_of_another_scale_is_added_in_float() -> None:
    """An int32 bias that is not in units of the products cannot join the accumulator."""
    rng = np.random.default_rng(1)
    x, w, py = make(rng, MIXED, (6, 33), (11, 33), 0, 33)
    assert x.params is not None and w.params is not None
    stored = rng.integers(-100, 100, 11).astype(np.int32)
    bias = Operand(stored, per_tensor(DType.INT32, 0.01))
    plain = Operand(stored.astype(np.float32) * np.float32(0.01))
    (a,) = ours("Dense", NO_ATTRIBUTES, [x, w, bias], [py])
    (b,) = ours("Dense", NO_ATTRIBUTES, [x, w, plain], [py])
    np.testing.assert_array_equal(a, b)
    acc = (x.values.astype(np.int64) - int(x.params.zero_point)) @ w.values.T.astype(np.int64)
    real = acc.astype(np.float32) * np.multiply(x.params.scale, w.params.scale) + plain.values
    expected = np.clip(np.rint(real / float(py.scale)) + py.zero_point, py.qmin, py.qmax)
    np.testing.assert_array_equal(a, expected)


def test_bias_with_a_zero_point_is_added_in_float() -> None:
    rng = np.random.default_rng(4)
    x, w, py = make(rng, MIXED, (6, 33), (11, 33), None, 33)
    assert x.params is not None and w.params is not None
    scale = np.multiply(x.params.scale, w.params.scale, dtype=np.float32)
    shifted = QuantParams(DType.INT32, scale, np.asarray(2000, np.int32))
    bias = Operand(rng.integers(-3000, 3000, 11).astype(np.int32), shifted)
    (a,) = ours("Dense", NO_ATTRIBUTES, [x, w, bias], [py])
    (b,) = ours("Dense", NO_ATTRIBUTES, [x, w, Operand(bias.real)], [py])
    np.testing.assert_array_equal(a, b)


def test_sums_are_formed_in_the_narrowest_exact_type() -> None:
    x, w = np.asarray([255, -3]), np.asarray([-128, 5])
    assert exact_dtype(x, w, 513) is np.float32  # 513 * 255 * 128 < 2**24
    assert exact_dtype(x, w, 515) is np.float64
    wide = np.asarray([65535])
    assert exact_dtype(wide, wide, 2**20) is np.float64
    assert exact_dtype(wide, wide, 2**22) is np.int64
    assert exact_dtype(np.zeros(0), w, 0) is np.float32


def test_beta_scales_the_bias() -> None:
    rng = np.random.default_rng(2)
    a, b, py = make(rng, MIXED, (6, 33), (33, 11), None, 33)
    bias = product_bias(rng, a, b, 11)
    fields = {"beta": 0.5}
    (our,) = ours("Gemm", GemmAttrs(beta=0.5), [a, b, bias], [py])
    (their,) = theirs("Gemm", [a, b, bias], [py], fields)
    (real,) = ideal("Gemm", GemmAttrs(beta=0.5), [a, b, bias])
    error = dot_error("Gemm", GemmAttrs(beta=0.5), [a, b, bias], py, 33)
    assert proven_ties(their, our, real, py, error)


def test_integers_that_are_not_quantized_multiply_exactly() -> None:
    a = np.asarray([[2**60, 1]], np.int64)
    (product,) = BY_NAME["MatMul"].compute(NO_ATTRIBUTES, (a, np.asarray([[1], [1]], np.int64)))
    assert product.tolist() == [[2**60 + 1]]


def test_float_weight_and_weight_only_have_no_integer_form() -> None:
    rng = np.random.default_rng(3)
    x, w, _ = make(rng, MIXED, (6, 33), (11, 33), 0, 33)
    contract = BY_NAME["Dense"].contract
    assert contract is not None
    real = Operand(x.real)
    stored = (real.values, w.values)
    assert contract(NO_ATTRIBUTES, stored, (real.type, w.type), (None,)) is None
    (our,) = ours("Dense", NO_ATTRIBUTES, [real, w], [None])
    exact = x.real.astype(np.float64) @ w.real.astype(np.float64).T
    np.testing.assert_array_equal(our, exact.astype(np.float32))
