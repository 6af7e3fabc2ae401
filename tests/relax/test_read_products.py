"""Every form of a matrix product comes back from Relax as the same graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.onnx_models import canonical
from tests.product_variants import FACTORS, Product, model_of, products
from tests.relax.read_cases import kept


@pytest.mark.parametrize("variant", ["qnn", "qdq"])
@settings(max_examples=120, deadline=None)
@given(product=products())
def test_products_keep_their_digest(variant: str, product: Product) -> None:
    kept(canonical(model_of(product)), variant=variant)


@pytest.mark.parametrize("quantized", ["", "operands", "all"])
@pytest.mark.parametrize("second", ["constant", "channels", "computed"])
@pytest.mark.parametrize("alpha", FACTORS)
def test_a_gemm_keeps_its_alpha(alpha: float, second: str, quantized: str) -> None:
    product = Product(((3, 4), (4, 5)), second, quantized, (alpha, 0.0, False, False), "row")
    kept(canonical(model_of(product)))
