"""Softmax and LogSoftmax against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.core.ops.attributes import SoftmaxAttrs
from qdqbridge.core.ops.table import BY_NAME
from tests.core.ops.onnxruntime_oracle import (
    Operand,
    ideal,
    mismatches,
    ours,
    pairs,
    proven_ties,
    quantized,
    theirs,
)

DTYPES = (DType.UINT8, DType.INT8, DType.INT16)
SCALES = {"Softmax": (1 / 256, 1 / 255, 0.003, 2**-7), "LogSoftmax": (0.1, 0.05, 0.25, 2**-4)}


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(SCALES))
def test_equals_onnxruntime_but_for_ties(name, dtype, axis) -> None:
    """Both exponentials are float32 approximations, so a result next to a midpoint may differ."""
    differences = total = 0
    attributes = SoftmaxAttrs((axis,))
    for seed, (px, py) in enumerate(pairs(11, dtype, 40)):
        x = quantized(np.random.default_rng(seed), (4, 7, 33), px)
        out = per_tensor(dtype, np.float32(SCALES[name][seed % 4]), int(py.zero_point))
        (their,) = theirs(name, [x], [out], {"axis": axis})
        (our,) = ours(name, attributes, [x], [out])
        (real,) = ideal(name, attributes, [x])
        error = (np.abs(real) + 1) * 2.0**-20 / float(out.scale)
        assert proven_ties(their, our, real, out, error)
        differences, total = differences + mismatches(their, our), total + our.size
    assert differences * 10_000 < total


@pytest.mark.parametrize("name", sorted(SCALES))
def test_fine_16_bit_results_differ_in_ties_only(name) -> None:
    differences = total = 0
    fine = {"Softmax": 2.0**-15, "LogSoftmax": 2.0**-10}[name]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        px = per_tensor(DType.INT16, np.float32(2.0 ** rng.uniform(-13, -11)), seed)
        py = per_tensor(DType.INT16, fine, -30000 if name == "Softmax" else 30000)
        x = quantized(rng, (4, 7, 33), px)
        (their,) = theirs(name, [x], [py], {"axis": 2})
        (our,) = ours(name, SoftmaxAttrs((2,)), [x], [py])
        (real,) = ideal(name, SoftmaxAttrs((2,)), [x])
        error = (np.abs(real) + 1) * 2.0**-21 / fine
        assert proven_ties(their, our, real, py, error)
        differences, total = differences + mismatches(their, our), total + our.size
    assert differences * 2000 < total


def test_several_axes_are_normalized_together() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    for name in SCALES:
        (together,) = BY_NAME[name].compute(SoftmaxAttrs((1, 2)), (x,))
        (flat,) = BY_NAME[name].compute(SoftmaxAttrs((1,)), (x.reshape(3, 20),))
        np.testing.assert_array_equal(together, flat.reshape(x.shape))


def test_order_of_the_elements_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((1, 4000)) * 5).astype(np.float32)
    order = rng.permutation(4000)
    (straight,) = BY_NAME["Softmax"].compute(SoftmaxAttrs((1,)), (x,))
    (shuffled,) = BY_NAME["Softmax"].compute(SoftmaxAttrs((1,)), (x[:, order],))
    np.testing.assert_array_equal(straight[:, order], shuffled)


def test_float64_is_the_ideal() -> None:
    x = Operand(np.asarray([[0.0, 1.0, 2.0]], np.float32))
    (real,) = ideal("Softmax", SoftmaxAttrs((1,)), [x])
    powers = np.exp([0.0, 1.0, 2.0])
    np.testing.assert_allclose(real[0], powers / powers.sum(), rtol=1e-15)  # less the maximum: ulps
