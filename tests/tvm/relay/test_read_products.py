"""Every variant of a matrix product comes back from Relay as the same graph."""

import pytest
from hypothesis import given, settings

from qdqbridge.core.graph.graph import Graph
from qdqbridge.tvm.relay import emit, from_relay
from tests.onnx_models import canonical
from tests.product_variants import Product, model_of, products

FORMS = [
    *((variant, layout) for variant in ("canonical", "tflite") for layout in ("NCHW", "NHWC")),
    ("dnnl", "NCHW"),
    ("fq2i", "NCHW"),
]
ODD = {
    "vector by vector": Product(((4,), (4,)), "computed", "all"),
    "vector by constant": Product(((4,), (4, 5)), "channels", "all"),
    "matrix by vector": Product(((3, 4), (4,)), "constant", "operands"),
    "one for all of a stack": Product(((3, 4), (2, 4, 5)), "computed", "all"),
    "a stack of one": Product(((1, 3, 4), (2, 4, 5)), "computed", "operands"),
    "a stack by one matrix": Product(((2, 3, 4), (4, 5)), "computed", "all"),
    "a real bias": Product(
        ((4, 3), (5, 4)), "computed", "all", (0.5, -0.7, True, True), "column", "computed"
    ),
    "nothing but a bias": Product(
        ((3, 4), (4, 5)), "computed", "all", (0.0, 3.0, False, False), "full", "float"
    ),
}


def differing(graph: Graph) -> list[tuple[str, str]]:
    """Returns the forms that come back with another digest."""
    return [form for form in FORMS if from_relay(*emit(graph, *form)).digest != graph.digest]


@pytest.mark.parametrize("product", ODD.values(), ids=ODD)
def test_an_odd_product_keeps_its_digest(product):
    assert differing(canonical(model_of(product))) == []


@settings(max_examples=25, deadline=None)
@given(product=products())
def test_products_keep_their_digest(product):
    assert differing(canonical(model_of(product))) == []
