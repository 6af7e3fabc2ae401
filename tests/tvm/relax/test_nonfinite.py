"""NaN and infinities on TVM are what the interpreter has; sweep_nonfinite runs many."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.options import Kernels
from tests.onnx_models import Array, Builder, canonical, run
from tests.tvm.relax.nonfinite_models import differences, nonfinite_model

pytestmark = pytest.mark.relax


@pytest.mark.parametrize(("kernels", "seed"), [("fast", 3), ("reference", 4)])
def test_random_operators(kernels: Kernels, seed: int) -> None:
    made = nonfinite_model(seed, 14)
    assert len(made.labels) == 14
    assert any(not np.isfinite(array).all() for array in made.feeds.values())
    assert differences(made, kernels) == []


X = np.array([[np.nan, np.inf, -np.inf, 0.4], [-np.inf, -np.inf, -np.inf, np.nan]], np.float32)


def on_tvm(b: Builder, y: str, kind: int = TensorProto.FLOAT) -> tuple[Array, Array]:
    """Returns a value of the interpreter and of TVM."""
    b.output(y, None, kind)
    graph = canonical(b.model())
    (meant,) = run(graph, {"x": X})
    (got,) = qb.compile(graph, kernels="reference").run({"x": X}).values()
    return meant, got


def test_clamps_keep_nan() -> None:
    b = Builder(17)
    x = b.input("x", [2, 4])
    bounds = b.init(np.float32(-1)), b.init(np.float32(2))
    results = b.op("Relu", x), b.op("Clip", x, *bounds), b.op("Max", x, bounds[0])
    meant, got = on_tvm(b, b.op("Concat", *results, axis=0))
    nan = np.nan
    expected = [
        [nan, np.inf, 0, np.float32(0.4)], [0, 0, 0, nan],
        [nan, 2, -1, np.float32(0.4)], [-1, -1, -1, nan],
        [nan, np.inf, -1, np.float32(0.4)], [-1, -1, -1, nan],
    ]  # fmt: skip
    np.testing.assert_array_equal(meant, np.array(expected, np.float32))
    np.testing.assert_array_equal(got, meant)


def test_a_range_holds_what_it_says() -> None:
    """NaN becomes the smallest code of the range, not of the storage."""
    b = Builder(17)
    meant, got = on_tvm(b, b.qdq(b.op("Relu", b.input("x", [2, 4])), 0.1, 3))
    assert meant[0, 0] == meant[1, 3] == 0
    np.testing.assert_array_equal(got, meant)


def test_a_product_by_zero_is_computed() -> None:
    b = Builder(17)
    x, zero = b.input("x", [2, 4]), b.init(np.float32(0))
    results = b.op("Mul", x, zero), b.op("Div", zero, b.op("Mul", x, zero)), b.op("Div", x, zero)
    meant, got = on_tvm(b, b.op("Concat", *results, axis=0))
    assert np.isnan(meant).sum() == 7 + 8 + 2
    np.testing.assert_array_equal(got, meant)


def test_the_largest_of_infinities_has_a_place() -> None:
    """TVM starts from the lowest finite number, at the place -1."""
    b = Builder(17)
    y = b.op("ArgMax", b.input("x", [2, 4]), axis=1, keepdims=0)
    meant, got = on_tvm(b, y, TensorProto.INT64)
    assert meant.tolist() == got.tolist() == [0, 0]


def test_softmax_of_nothing_finite() -> None:
    b = Builder(17)
    meant, got = on_tvm(b, b.op("Softmax", b.input("x", [2, 4]), axis=-1))
    assert np.isnan(meant).all()
    np.testing.assert_array_equal(got, meant)
