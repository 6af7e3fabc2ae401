"""Every form of a matrix product comes back from Relax as the same graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import TensorProto

from tests.onnx_models import Builder, canonical
from tests.product_variants import FACTORS, Product, model_of, products
from tests.tvm.relax.read_cases import kept


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


@pytest.mark.filterwarnings("ignore:Field 'shape':UserWarning")  # by TVM's importer, of the Squeeze
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (3, 1)])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_gemm_of_unknown_extents_keeps_its_digest(
    trans_b: int, bias: tuple[int, ...] | None
) -> None:
    """Only the rank of what a Squeeze by axes of run time gives is known, of their count."""
    b, chance = Builder(17), np.random.default_rng(5)
    axes = b.input("axes", [1], TensorProto.INT64)
    operands = [b.op("Squeeze", b.input("x", [3, 1, 4]), axes)]
    for shape in ((5, 4) if trans_b else (4, 5), bias):
        if shape is not None:
            operands.append(b.init(chance.normal(size=shape).astype(np.float32)))
    b.output(b.op("Gemm", *operands, transB=trans_b))
    kept(canonical(b.model()))


@pytest.mark.filterwarnings("ignore:Field 'shape':UserWarning")  # by TVM's importer, of the Squeeze
@pytest.mark.parametrize(
    ("op_type", "shape", "count", "product"),
    [
        ("Squeeze", ["n", 1, 4], 1, "Gemm"),
        ("Squeeze", [1, "n", 1, 4], 2, "Gemm"),
        ("Unsqueeze", [4], 1, "Gemm"),
        ("Unsqueeze", ["n", 4], 1, "MatMul"),
    ],
)
def test_a_matmul_behind_axes_of_run_time_keeps_its_digest(
    op_type: str, shape: list[int | str], count: int, product: str
) -> None:
    """TVM knows the rank, and so a MatMul of matrices as a Gemm; the reader does too."""
    b = Builder(17)
    x = b.op(op_type, b.input("x", shape), b.input("axes", [count], TensorProto.INT64))
    b.output(b.op("MatMul", x, b.init(np.ones((4, 5), np.float32))), None)
    graph = canonical(b.model())
    assert graph.nodes[-1].op.name == product
    kept(graph)
