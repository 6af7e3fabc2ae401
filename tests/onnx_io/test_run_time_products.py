"""Products with parameters of run time: onnxruntime's integers, bit for bit."""

from __future__ import annotations

import pytest

from tests.onnx_io.run_time_products import Product, wrong

MANY = 60


@pytest.mark.parametrize("first", [0, MANY])
def test_random_products(first: int) -> None:
    assert {
        seed: found for seed in range(first, first + MANY) if (found := wrong(Product(seed)))
    } == {}


@pytest.mark.relax
@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_random_products_on_tvm(kernels: str) -> None:
    pytest.importorskip("tvm")
    seeds = range(200, 210)
    assert {seed: found for seed in seeds if (found := wrong(Product(seed), kernels))} == {}
