"""Normalizations against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.operator import Attributes, Operator, Row
from qdqbridge.core.graph.types import QuantParams, TensorType, per_tensor
from qdqbridge.core.ops.attributes import EpsilonAttrs, GroupNormAttrs, NormAttrs
from qdqbridge.core.ops.bodies import body_of, folded, results, step_shape
from qdqbridge.core.ops.folding import NODE, steps
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Operand,
    assert_equal,
    ideal,
    mismatches,
    ours,
    pairs,
    proven_ties,
    quantized,
    theirs,
)

DTYPES = (DType.UINT8, DType.INT8)
SHAPE = (3, 6, 5, 8)
EPSILON = 1e-5
CASES = {
    "LayerNormalization": (NormAttrs(2, EPSILON), {"axis": 2}, (5, 8), 21),
    "LayerNormalization last": (NormAttrs(3, EPSILON), {"axis": -1}, (8,), 21),
    "RMSNormalization": (NormAttrs(2, EPSILON), {"axis": 2}, (5, 8), 23),
    "InstanceNormalization": (EpsilonAttrs(EPSILON), {}, (6,), 21),
    "GroupNormalization": (GroupNormAttrs(2, EPSILON), {"num_groups": 2}, (6,), 21),
}


def floats(rng: np.random.Generator, *shape: int) -> Operand:
    return Operand(rng.standard_normal(shape).astype(np.float32))


def result(dtype: DType, seed: int, py: QuantParams) -> QuantParams:
    return per_tensor(dtype, np.float32((2**-5, 0.02, 2**-6, 0.015)[seed % 4]), int(py.zero_point))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", sorted(CASES))
def test_equals_onnxruntime_but_for_ties(case, dtype) -> None:
    """onnxruntime sums in float32, in an order of its own; we sum integers."""
    attributes, fields, affine, opset = CASES[case]
    name, differences, total = case.split()[0], 0, 0
    for seed, (px, py) in enumerate(pairs(12, dtype, 30)):
        rng = np.random.default_rng(seed)
        out = result(dtype, seed, py)
        operands = [quantized(rng, SHAPE, px), floats(rng, *affine)]
        if name != "RMSNormalization":
            operands.append(floats(rng, *affine))
        (their,) = theirs(name, operands, [out], {**fields, "epsilon": EPSILON}, opset=opset)
        (our,) = ours(name, attributes, operands, [out])
        (real,) = ideal(name, attributes, operands)
        error = (np.abs(real) + 8) * 2.0**-19 / float(out.scale)
        assert proven_ties(their, our, real, out, error)
        differences, total = differences + mismatches(their, our), total + our.size
    assert differences * 10_000 < total


@pytest.mark.parametrize("case", sorted(CASES))
def test_fine_16_bit_results_differ_in_ties_only(case) -> None:
    attributes, fields, affine, opset = CASES[case]
    name, differences, total = case.split()[0], 0, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        px = per_tensor(DType.INT16, np.float32(2.0 ** rng.uniform(-13, -11)), seed)
        py = per_tensor(DType.INT16, 2.0**-12, -seed)
        operands = [quantized(rng, SHAPE, px), floats(rng, *affine)]
        if name != "RMSNormalization":
            operands.append(floats(rng, *affine))
        (their,) = theirs(name, operands, [py], {**fields, "epsilon": EPSILON}, opset=opset)
        (our,) = ours(name, attributes, operands, [py])
        (real,) = ideal(name, attributes, operands)
        error = (np.abs(real) + 8) * 2.0**-21 / float(py.scale)
        assert proven_ties(their, our, real, py, error)
        differences, total = differences + mismatches(their, our), total + our.size
    assert differences * 1000 < total


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batch_normalization_equals_onnxruntime(dtype) -> None:
    """The same float32 operations in the same order, so even float results agree in every bit."""
    attributes, fields = EpsilonAttrs(EPSILON), {"epsilon": EPSILON}
    for seed, (px, py) in enumerate(pairs(13, dtype, 30)):
        rng = np.random.default_rng(seed)
        variance = Operand((rng.random(6) + 0.1).astype(np.float32))
        vectors = [floats(rng, 6), floats(rng, 6), floats(rng, 6), variance]
        operands = [quantized(rng, SHAPE, px), *vectors]
        assert_equal("BatchNormalization", attributes, operands, py, fields)
        assert_equal("BatchNormalization", attributes, operands, None, fields)


def test_quantized_scale_and_bias_are_dequantized_first() -> None:
    rng = np.random.default_rng(0)
    px, py = per_tensor(DType.UINT8, 0.1, 100), per_tensor(DType.UINT8, 0.03, 120)
    x = quantized(rng, SHAPE, px)
    gamma = quantized(rng, (8,), per_tensor(DType.INT8, 0.01))
    beta = Operand(rng.integers(-500, 500, 8).astype(np.int32), per_tensor(DType.INT32, 0.001))
    attributes = NormAttrs(3, EPSILON)
    (stored,) = ours("LayerNormalization", attributes, [x, gamma, beta], [py])
    plain = [x, Operand(gamma.real), Operand(beta.real)]
    (real,) = ours("LayerNormalization", attributes, plain, [py])
    np.testing.assert_array_equal(stored, real)


def test_statistics_are_exact_for_16_bit_rows_that_overflow_int64() -> None:
    """n * S2 of 2**17 codes of +-2**15 is beyond 2**63; the result must still be the ideal's."""
    stored = np.full((1, 2**17), 32767, np.int16)
    stored[0, ::2] = -32768
    px, py = per_tensor(DType.INT16, 0.5), per_tensor(DType.INT16, 2.0**-14)
    gamma = Operand(np.ones(2**17, np.float32))
    operands = [Operand(stored, px), gamma]
    (our,) = ours("LayerNormalization", NormAttrs(1, EPSILON), operands, [py])
    (real,) = ideal("LayerNormalization", NormAttrs(1, EPSILON), operands)
    expected = np.clip(np.rint(real / 2.0**-14), -32768, 32767).astype(np.int16)
    np.testing.assert_array_equal(our, expected)


def test_order_of_the_elements_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    px, py = per_tensor(DType.UINT8, 0.013, 100), per_tensor(DType.INT16, 2.0**-13)
    x = quantized(rng, (2, 500), px)
    order = rng.permutation(500)
    gamma = Operand(np.ones(500, np.float32))
    attributes = NormAttrs(1, EPSILON)
    (straight,) = ours("LayerNormalization", attributes, [x, gamma], [py])
    mixed = Operand(x.values[:, order], px)
    (shuffled,) = ours("LayerNormalization", attributes, [mixed, gamma], [py])
    np.testing.assert_array_equal(straight[:, order], shuffled)


def test_float32_operands_give_float32_and_float64_float64() -> None:
    rng = np.random.default_rng(2)
    for dtype in (np.float32, np.float64):
        x, gamma = rng.standard_normal((2, 6, 5)).astype(dtype), np.ones(6, dtype)
        (y,) = BY_NAME["InstanceNormalization"].compute(
            EpsilonAttrs(EPSILON), (x, gamma, np.zeros(6, dtype))
        )
        assert y.dtype == dtype
        np.testing.assert_allclose(y.mean(axis=2), 0, atol=1e-6)  # float32 ulps
        np.testing.assert_allclose(y.std(axis=2), 1, atol=1e-4)  # the operator adds epsilon


@pytest.mark.parametrize("row", (LAYER_NORMALIZATION, RMS_NORMALIZATION), ids=lambda row: row.name)
def test_a_norm_is_what_its_body_says(row: Row[NormAttrs]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 5)))
        attributes = NormAttrs(int(rng.integers(len(shape))), float(10.0 ** -rng.integers(1, 6)))
        vary = [int(n) if rng.random() < 0.7 else 1 for n in shape[rng.integers(len(shape)) :]]
        x, gamma, beta = (rng.normal(1, 2, s).astype(np.float32) for s in (shape, vary, vary))
        operands = (x, gamma, beta)[: rng.integers(2, 4)]
        body = body_of(row, attributes, x.shape, len(operands))
        (wanted,) = row.compute(attributes, operands)
        # float32 steps; rows of nearly equal numbers magnify their roundings
        np.testing.assert_allclose(results(body, operands)[-1], wanted, rtol=2e-4, atol=2e-4)


def test_a_norm_of_channels_is_what_its_body_says() -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        groups, share = (int(n) for n in rng.integers(1, 4, 2))
        batch, *pixels = (int(n) for n in rng.integers(2, 5, rng.integers(2, 4)))
        shape, epsilon = (batch, groups * share, *pixels), float(10.0 ** -rng.integers(1, 4))
        x = rng.normal(1, 2, shape).astype(np.float32)
        vectors = [rng.normal(1, 2, shape[1]).astype(np.float32) for _ in range(3)]
        vectors.append(rng.uniform(0.5, 2, shape[1]).astype(np.float32))
        for name, attributes, count in (
            ("InstanceNormalization", EpsilonAttrs(epsilon), 2),
            ("GroupNormalization", GroupNormAttrs(groups, epsilon), 2),
            ("BatchNormalization", EpsilonAttrs(epsilon), 4),
        ):
            row, operands = BY_NAME[name], (x, *vectors[:count])
            found = results(body_of(row, attributes, shape, len(operands)), operands)[-1]
            (wanted,) = row.compute(attributes, operands)
            # float32 steps; rows of nearly equal numbers magnify their roundings
            np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
            opened = ("N", *shape[1:])
            assert step_shape(row, attributes, [opened, *(v.shape for v in vectors)]) == opened


def test_equal_steps_of_a_body_are_one_and_the_offset_may_be_left_out() -> None:
    counted: list[str] = []

    def step(op: Operator, attributes: Attributes, operands: list[str]) -> str:
        del attributes
        counted.append(op.name)
        return f"{op.name}({', '.join(operands)})"

    body = body_of(LAYER_NORMALIZATION, NormAttrs(1, 0.5), (2, 3), 2)
    text = folded(body, ["x", "g"], step, str)
    assert counted == ["ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    centred = "Sub(x, ReduceMean(x))"
    root = f"Sqrt(Add(ReduceMean(Mul({centred}, {centred})), 0.5))"
    assert text == f"Mul(Div({centred}, {root}), g)"
    whole = body_of(LAYER_NORMALIZATION, NormAttrs(1, 0.5), (2, 3), 3)
    assert folded(whole, ["x", "g", "b"], step, str) == f"Add({text}, b)"


@pytest.mark.parametrize("row", (LAYER_NORMALIZATION, RMS_NORMALIZATION), ids=lambda row: row.name)
def test_a_norm_of_constants_is_folded(row: Row[NormAttrs]) -> None:
    data = [Constant.of(np.ones(shape, np.float32)) for shape in ((2, 3), (3,))]
    values = [Value(TensorType(DType.FLOAT32, each.shape), constant=each) for each in data]
    node = Node(row, NormAttrs(1, EPSILON), values, [Value(values[0].type)])
    assert steps(node, data) == NODE + 6 + 6 + 3
