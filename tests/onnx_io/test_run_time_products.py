"""Products with parameters of run time: onnxruntime's integers, bit for bit."""

from __future__ import annotations

import pytest

from qdqbridge.options import Kernels
from tests.onnx_io.run_time_products import Product, wrong

MANY = 60
OPERATORS = {"QGemm", "QLinearConv", "QLinearMatMul"}


@pytest.mark.parametrize("first", [0, MANY])
def test_random_products(first: int) -> None:
    assert {
        seed: found for seed in range(first, first + MANY) if (found := wrong(Product(seed)))
    } == {}


@pytest.mark.relax
@pytest.mark.parametrize(("kernels", "first"), [("fast", 200), ("reference", 201)])
def test_random_products_on_tvm(kernels: Kernels, first: int) -> None:
    """Every operator on either kind of kernels; ``sweep_seeds`` tries all on both."""
    pytest.importorskip("tvm")
    seeds = range(first, 210, 2)
    products = [Product(seed) for seed in seeds]
    assert {p.model.graph.node[0].op_type for p in products} == OPERATORS
    assert {p.seed: found for p in products if (found := wrong(p, kernels))} == {}


@pytest.mark.slow
@pytest.mark.relax
@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_many_random_products_on_tvm(kernels: Kernels) -> None:
    pytest.importorskip("tvm")
    seeds = range(200, 240)
    assert {seed: found for seed in seeds if (found := wrong(Product(seed), kernels))} == {}
