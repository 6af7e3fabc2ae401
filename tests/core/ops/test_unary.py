"""Every unary operator against onnxruntime, over all codes of 8-bit and samples of 16-bit types."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.numerics import codes, dequantize, quantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes, NoAttributes
from qdqbridge.core.graph.types import QuantType, per_tensor
from qdqbridge.core.ops import unary
from qdqbridge.core.ops.attributes import (
    AlphaAttrs,
    ClipAttrs,
    GeluAttrs,
    HardSigmoidAttrs,
    SeluAttrs,
)
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Operand,
    ideal,
    mismatches,
    ours,
    pairs,
    proven_ties,
    theirs,
)


def f32(value: float) -> float:
    return float(np.float32(value))


CLAIMED = {row.name: row for row in unary.OPERATORS if row.numerics.endswith(unary._EQUAL)}
"""Rows that say, or for which :func:`unary` says, that they equal onnxruntime."""
OUTSIDE = ["Log", "Sqrt"]
PLAIN = [
    name for name, row in CLAIMED.items() if row.attributes is NoAttributes and name not in OUTSIDE
]
EQUAL: list[tuple[str, Attributes, dict[str, float | str]]] = [
    *((name, NO_ATTRIBUTES, {}) for name in PLAIN),
    ("Gelu", GeluAttrs("none"), {"approximate": "none"}),
    ("Elu", AlphaAttrs(1.0), {}),
    ("Elu", AlphaAttrs(f32(0.7)), {"alpha": 0.7}),
    ("Celu", AlphaAttrs(1.0), {}),
    ("Celu", AlphaAttrs(f32(0.7)), {"alpha": 0.7}),
    ("Selu", SeluAttrs(f32(1.67326319217681884765625), f32(1.05070102214813232421875)), {}),
    ("Selu", SeluAttrs(f32(1.5), f32(0.3)), {"alpha": 1.5, "gamma": 0.3}),
    ("HardSigmoid", HardSigmoidAttrs(f32(0.2), 0.5), {}),
    ("HardSigmoid", HardSigmoidAttrs(f32(1 / 6), f32(0.4)), {"alpha": 1 / 6, "beta": 0.4}),
    ("LeakyRelu", AlphaAttrs(f32(0.01)), {}),
    ("LeakyRelu", AlphaAttrs(f32(0.1)), {"alpha": 0.1}),
    ("ThresholdedRelu", AlphaAttrs(1.0), {}),
    ("ThresholdedRelu", AlphaAttrs(f32(0.3)), {"alpha": 0.3}),
]
CONTRIB = "com.microsoft"  # its QuickGelu is opset 24's Swish, for any onnxruntime
APPROXIMATED = [
    ("Tanh", NO_ATTRIBUTES, {}, 21),
    ("Gelu", GeluAttrs("tanh"), {"approximate": "tanh"}, 21),
    ("Mish", NO_ATTRIBUTES, {}, 22),
    ("Swish", AlphaAttrs(1.0), {"alpha": 1.0, "domain": CONTRIB}, 21),
    ("Swish", AlphaAttrs(f32(1.702)), {"alpha": 1.702, "domain": CONTRIB}, 21),
]
DTYPES = (DType.UINT8, DType.INT8)
SETS = 60


def ident(case: object) -> str:
    return case if isinstance(case, str) else ""


def test_every_claim_is_held() -> None:
    own_tests = {*OUTSIDE, "Clip"}
    assert CLAIMED.keys() - own_tests <= {name for name, _, _ in EQUAL}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "attributes", "onnx_attributes"), EQUAL, ids=ident)
def test_every_code_equals_onnxruntime(name, attributes, onnx_attributes, dtype) -> None:
    for px, py in pairs(1, dtype, SETS):
        x = Operand(codes(px), px)
        (their,) = theirs(name, [x], [py], onnx_attributes)
        (our,) = ours(name, attributes, [x], [py])
        assert mismatches(their, our) == 0, (px, py)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OUTSIDE)
def test_codes_outside_of_the_domain_equal_onnxruntime(name, dtype) -> None:
    """Outside the domain the result is NaN, which becomes the smallest stored value."""
    for px, py in pairs(1, dtype, SETS):
        x = Operand(codes(px), px)
        (their,) = theirs(name, [x], [py])
        (our,) = ours(name, NO_ATTRIBUTES, [x], [py])
        assert mismatches(their, our) == 0, (px, py)
        assert (our[x.real < 0] == py.qmin).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "attributes", "onnx_attributes", "opset"), APPROXIMATED, ids=ident
)
def test_differences_are_ties_of_an_approximation(
    name, attributes, onnx_attributes, opset, dtype
) -> None:
    """onnxruntime approximates these in float32; only results next to a midpoint may differ."""
    differences = total = 0
    for px, py in pairs(1, dtype, SETS):
        x = Operand(codes(px), px)
        written = "QuickGelu" if "domain" in onnx_attributes else name
        (their,) = theirs(written, [x], [py], onnx_attributes, opset=opset)
        (our,) = ours(name, attributes, [x], [py])
        (real,) = ideal(name, attributes, [x])
        error = (np.abs(real) * 2.0**-21 + 2.0**-24) / float(py.scale)
        assert proven_ties(their, our, real, py, error), (px, py)
        differences += mismatches(their, our)
        total += our.size
    assert differences * 2000 < total


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-1.0, 1.0), (None, 0.75), (-0.1, None)])
def test_clip_equals_onnxruntime(low, high) -> None:
    bounds = [
        None if bound is None else Operand(np.asarray(bound, np.float32)) for bound in (low, high)
    ]
    for dtype in DTYPES:
        for px, py in pairs(2, dtype, SETS):
            x = Operand(codes(px), px)
            (their,) = theirs("Clip", [x, *bounds], [py])
            (our,) = ours("Clip", ClipAttrs(low, high), [x], [py])
            assert mismatches(their, our) == 0, (px, py)


@pytest.mark.parametrize("name", ["Sigmoid", "LeakyRelu", "HardSwish", "Abs", "Neg", "Softsign"])
def test_16_bit_codes_equal_onnxruntime_or_are_ties(name) -> None:
    attributes = AlphaAttrs(f32(0.01)) if name == "LeakyRelu" else NO_ATTRIBUTES
    for dtype in (DType.INT16, DType.UINT16):
        px, py = per_tensor(dtype, 2.0**-12, 17), per_tensor(dtype, f32(0.0001), 1001)
        x = Operand(codes(px), px)
        (their,) = theirs(name, [x], [py])
        (our,) = ours(name, attributes, [x], [py])
        (real,) = ideal(name, attributes, [x])
        error = (np.abs(real) * 2.0**-21 + 2.0**-24) / float(py.scale)
        assert proven_ties(their, our, real, py, error if name == "Sigmoid" else 0.0)


@pytest.mark.parametrize("name", ["Sigmoid", "Relu", "Gelu", "LeakyRelu"])
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16], ids=str)
def test_table_equals_direct_computation(name, dtype) -> None:
    attributes = {"Gelu": GeluAttrs(), "LeakyRelu": AlphaAttrs(f32(0.01))}.get(name, NO_ATTRIBUTES)
    px, py = per_tensor(dtype, 0.01, 3), per_tensor(dtype, 0.02, -1 if dtype.is_signed else 1)
    stored = np.random.default_rng(0).permutation(codes(px)).reshape(2, -1)
    row = BY_NAME[name]
    assert row.contract is not None
    result = QuantType(py, stored.shape)
    answer = row.contract(attributes, (stored,), (QuantType(px, stored.shape),), (result,))
    assert answer is not None
    (direct,) = row.compute(attributes, (dequantize(stored, px),))
    np.testing.assert_array_equal(answer[0], quantize(direct, py))


@pytest.mark.parametrize("name", sorted({*PLAIN, "Tanh", "Mish"}))
def test_dtype_of_the_operand_is_kept(name) -> None:
    for dtype in (np.float32, np.float64):
        (result,) = BY_NAME[name].compute(NO_ATTRIBUTES, (np.asarray([0.5, 2.0], dtype),))
        assert result.dtype == dtype


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("Exp", math.exp),
        ("Log", math.log),
        ("Tanh", math.tanh),
        ("Sin", math.sin),
        ("Cos", math.cos),
        ("Erf", math.erf),
    ],
)
def test_transcendental_functions_are_rounded_once(name, function) -> None:
    x = np.random.default_rng(0).uniform(0.01, 8, 2000).astype(np.float32)
    (result,) = BY_NAME[name].compute(NO_ATTRIBUTES, (x,))
    assert result.dtype == np.float32
    expected = np.asarray([np.float32(function(v)) for v in x.tolist()])
    np.testing.assert_array_equal(result, expected)


def test_erf_of_integers_is_that_of_float32() -> None:
    """ONNX's reference implementation alone computes it."""
    x = np.array([-100, -5, -4, -3, 0, 3, 4, 5], np.int32)
    (found,) = unary.ERF.compute(NO_ATTRIBUTES, [x])
    node = onnx.helper.make_node("Erf", ["x"], ["y"])
    (meant,) = ReferenceEvaluator(node).run(None, {"x": x})
    assert found.dtype == x.dtype and np.array_equal(found, meant)


def test_values_against_the_standard_library() -> None:
    x = np.asarray([-2.5, -0.3, 0.7, 3.0])
    expected = {
        "Erf": [math.erf(v) for v in x],
        "Sigmoid": [1 / (1 + math.exp(-v)) for v in x],
        "Softplus": [math.log1p(math.exp(v)) for v in x],
        "Mish": [v * math.tanh(math.log1p(math.exp(v))) for v in x],
        "HardSwish": [v * max(0.0, min(1.0, v / 6 + 0.5)) for v in x],
    }
    for name, values in expected.items():
        (result,) = BY_NAME[name].compute(NO_ATTRIBUTES, (x,))
        # The functions of C, and NumPy's: some ulp of float64.
        np.testing.assert_allclose(result, values, rtol=1e-14)
