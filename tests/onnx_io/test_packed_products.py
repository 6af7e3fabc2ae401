"""MatMulNBits of every width, block and level beside onnxruntime; rounded ones alike everywhere."""

from __future__ import annotations

import pytest

from qdqbridge.options import Kernels
from tests.onnx_io.packed_products import PackedProduct, wrong

MANY = 60


@pytest.mark.parametrize("first", [0, MANY])
def test_random_products(first: int) -> None:
    assert {
        seed: found
        for seed in range(first, first + MANY)
        if (found := wrong(PackedProduct(seed))[0])
    } == {}


@pytest.mark.relax
@pytest.mark.parametrize("kernels", ["fast", "reference"])
def test_random_products_on_tvm(kernels: Kernels) -> None:
    pytest.importorskip("tvm")
    seeds = range(200, 210)
    found = {seed: wrong(PackedProduct(seed), kernels)[0] for seed in seeds}
    assert not any(found.values()), found
