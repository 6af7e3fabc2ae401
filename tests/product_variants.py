"""Gemm, MatMul and Dense as files write them: a strategy over their attributes and operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.onnx_models import Builder, ints

ROWS, INNER, COLUMNS = 3, 4, 5
FACTORS = (1.0, 0.0, -1.0, 0.5, -0.7, 3.0)
VECTORS = (((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)))
MATRICES = (
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((2, 2, 3, 4), (2, 2, 4, 5)),
    ((1, 4), (4, 1)), ((1, 1, 4), (4, 5)),
)  # fmt: skip
BIASES: dict[str, tuple[int, ...]] = {
    "scalar": (), "one": (1,), "row": (COLUMNS,), "flat row": (1, COLUMNS),
    "column": (ROWS, 1), "full": (ROWS, COLUMNS), "single": (1, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Product:
    """One product.

    Attributes:
        shapes: Of both operands, before any transposition.
        second: The second operand: ``constant``, one with scales per channel (``channels``), or
            ``computed``.
        quantized: Nothing, the ``operands``, or ``all`` three.
        gemm: ``alpha, beta, transA, transB``; None for a MatMul.
        bias: One of ``BIASES``, or nothing.
        bias_kind: ``float`` for a constant, ``computed``, or ``int32`` for a constant in units of
            the accumulator.
    """

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    second: str
    quantized: str
    gemm: tuple[float, float, bool, bool] | None = None
    bias: str = ""
    bias_kind: str = "float"

    @property
    def gives(self) -> Any:
        """The attributes as ONNX names them."""
        if self.gemm is None:
            return {}
        alpha, beta, trans_a, trans_b = self.gemm
        return {"alpha": alpha, "beta": beta, "transA": int(trans_a), "transB": int(trans_b)}


_QUANTIZED = st.sampled_from(["", "operands", "all"])
_SECOND = st.sampled_from(["constant", "channels", "computed"])


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Draws a product that ONNX allows."""
    quantized, second = draw(_QUANTIZED), draw(_SECOND)
    if draw(st.booleans()):
        shapes = draw(st.sampled_from(VECTORS + MATRICES))
        return Product(shapes, second, quantized)
    alpha, beta = draw(st.sampled_from(FACTORS)), draw(st.sampled_from(FACTORS))
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    shapes = (
        (INNER, ROWS) if trans_a else (ROWS, INNER),
        (COLUMNS, INNER) if trans_b else (INNER, COLUMNS),
    )
    bias = draw(st.sampled_from(["", *BIASES]))
    kind = draw(st.sampled_from(["float", "computed", "int32"]))
    gemm = (alpha, beta, trans_a, trans_b)
    return Product(shapes, second, quantized, gemm, bias, kind)


def model_of(product: Product) -> onnx.ModelProto:
    """Returns a file with the product alone; a Relu is behind what stays float."""
    b = Builder(17)
    x, scale = b.input("x", product.shapes[0]), 2**-5
    x = b.qdq(x, scale, 120) if product.quantized else b.op("Sigmoid", x)
    w, weight_scale = _second(b, product)
    bias = _bias(b, product, scale * weight_scale)
    operands = [x, w] if bias is None else [x, w, bias]
    y = b.op("MatMul" if product.gemm is None else "Gemm", *operands, **product.gives)
    b.output(b.qdq(y, 2**-2, 3) if product.quantized == "all" else b.op("Relu", y))
    return b.model()


def _second(b: Builder, product: Product) -> tuple[str, Any]:
    shape = product.shapes[1]
    if product.second == "computed":
        w = b.input("w", shape)
        return (b.qdq(w, 2**-6, 9) if product.quantized else b.op("Tanh", w)), 2**-6
    if not product.quantized:
        return b.init(np.random.default_rng(1).normal(size=shape).astype(np.float32)), 1.0
    scale, axis = np.float32(2**-6), None
    if product.second == "channels" and len(shape) == 2:
        axis = 0 if product.gemm is not None and product.gemm[3] else 1
        scale = np.float32(2**-6) * (1 + np.arange(shape[axis], dtype=np.float32))
    return b.weight(ints(shape, 2), scale, axis=axis), scale


def _bias(b: Builder, product: Product, scale: Any) -> str | None:
    if not product.bias:
        return None
    shape = BIASES[product.bias]
    if product.bias_kind == "computed":
        return b.op("Tanh", b.input("c", shape))
    if product.bias_kind == "int32" and product.quantized:
        assert product.gemm is not None
        units = np.asarray(np.float32(abs(product.gemm[0]) or 1.0) * scale, np.float32)
        axis = None
        if units.ndim:
            fits = shape[-1:] == units.shape
            axis, units = (len(shape) - 1, units) if fits else (None, units[:1].reshape(()))
        return b.dq(
            b.init(ints(shape, 3, np.int16).astype(np.int32)), units, 0, np.int32, axis=axis
        )
    return b.init(np.random.default_rng(4).normal(size=shape).astype(np.float32))
