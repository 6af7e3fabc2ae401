"""Products with a constant matrix have one form, and biases one unit."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbridge.core.canonical import bias, canonicalize, linear
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from tests.core.canonical.at_work import alone, reasons, settled
from tests.core.graph.graphs import (
    OUT,
    U8,
    W8,
    Array,
    apply,
    const,
    dq,
    graph,
    names,
    q,
    quant,
    stored,
    typed,
)

CODES = np.array([[1, -2, 3], [4, 5, -6]], np.int8)  # [K=2, N=3]
N3 = np.array([0.5, 0.25, 0.125], np.float32)
ACC = np.float32(2**-12)  # U8.scale * W8.scale


def per_channel(axis: int) -> QuantParams:
    return quant(DType.INT8, N3, np.int32(0), axis=axis)


def rows() -> Value:
    return stored("x", U8, (4, 2))


def gemm(x: Value, w: Value, c: Value | None = None, attributes: GemmAttrs | None = None) -> Value:
    operands = [x, w] if c is None else [x, w, c]
    return apply("Gemm", *operands, attributes=attributes or GemmAttrs(), type_=typed((4, 3)),
                 name="gemm")  # fmt: skip


def only(g: Graph) -> Node:
    (node,) = [n for n in g.nodes if n.op.name not in ("dequantize", "quantize", "requantize")]
    return node


def array_of(value: Value) -> Array:
    assert value.constant is not None
    return value.constant.numpy()


# ---- one form ---------------------------------------------------------------------------------


@pytest.mark.idiom("B4")
@pytest.mark.parametrize("params", [W8, per_channel(1)], ids=["tensor", "channel"])
def test_matmul_and_gemm_are_one_dense(params: QuantParams) -> None:
    texts: set[str] = set()
    for form in ("MatMul", "Gemm", "Gemm transposed"):
        x = rows()
        codes, moved = CODES, params
        if form == "Gemm transposed":
            codes = np.ascontiguousarray(CODES.T)
            moved = params if params.axis is None else params.with_axis(0)
        w = dq(const(codes, moved))
        if form == "MatMul":
            y = apply("MatMul", dq(x), w, type_=typed((4, 3)))
        else:
            y = gemm(dq(x), w, attributes=GemmAttrs(trans_b=form != "Gemm"))
        g = settled(graph([x], dq(q(y, OUT))))
        texts.add(g.text())
        assert names(g) == ["Dense", "dequantize"]
        np.testing.assert_array_equal(array_of(only(g).operand(1)), CODES.T)
    assert len(texts) == 1


@pytest.mark.idiom("D9")
def test_gemm_with_more_to_it_keeps_its_form() -> None:
    x = stored("x", U8, (4, 2))
    g = graph([x], gemm(x, const(CODES, W8), attributes=GemmAttrs(alpha=0.3)))
    assert alone(g, linear.gemm_is_dense) == [
        "Gemm with alpha 0.3 keeps its form: no exact part of the scales"
    ]
    assert names(settled(g)) == ["Gemm"]


def test_float_and_activation_weights_keep_their_form() -> None:
    x, b = rows(), stored("b", W8, (2, 3))
    g = graph([x, b], gemm(x, b), apply("MatMul", x, b, type_=typed((4, 3))))
    assert alone(g, linear.gemm_is_dense, linear.matmul_is_dense) == []
    assert names(g) == ["Gemm", "MatMul"]


def test_stacks_of_matrices_are_no_dense_and_a_vector_is_a_row() -> None:
    x, w = stored("x", U8, (2, 4, 2)), const(np.stack([CODES, CODES]), W8)
    v, m = stored("v", U8, (2,)), const(CODES, W8)
    g = graph([x, v], apply("MatMul", x, w, type_=typed((2, 4, 3))),
              apply("MatMul", v, m, type_=typed((3,))))  # fmt: skip
    alone(g, linear.matmul_is_dense)
    assert names(g) == ["MatMul", "Reshape", "Dense", "Reshape"]
    assert g.outputs[1].type.shape == (3,)


@pytest.mark.idiom("D9")
@pytest.mark.parametrize(
    ("shape", "kept"),
    [((3,), True), ((1, 3), True), ((1,), True), ((), True), ((1, 1), True), ((4, 1), False),
     ((4, 3), False)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_bias_shapes(shape: tuple[int, ...], kept: bool, beta: float) -> None:
    data = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    x = rows()
    g = graph([x], gemm(x, const(CODES, W8), const(data), GemmAttrs(beta=beta)))
    refused = alone(g, linear.gemm_is_dense)
    assert refused == ([] if kept else [f"its bias has shape {shape}"])
    if kept:
        expected = np.broadcast_to(data.reshape(-1) * np.float32(beta), (3,))
        np.testing.assert_array_equal(array_of(only(g).operand(2)), expected)
    settled(g)


def test_a_gemm_with_a_computed_bias_keeps_its_form() -> None:
    x, c = rows(), stored("c", OUT, (3,))
    g = graph([x, c], gemm(x, const(CODES, W8), dq(c)))
    assert alone(g, linear.gemm_is_dense) == ["its bias is not constant"]


# ---- derived-bias -----------------------------------------------------------------------------

INT32 = per_tensor(DType.INT32, ACC)


def dense_of(bias_: Value, w: QuantParams = W8) -> Graph:
    x = rows()
    y = apply("Dense", x, const(np.ascontiguousarray(CODES.T), w), bias_, type_=typed((4, 3), OUT))
    return graph([x], y)


@pytest.mark.idiom("C1")
def test_a_bias_in_its_units_is_taken_as_it_is() -> None:
    g = dense_of(dq(const(np.array([1, -2, 3], np.int32), INT32)))
    assert alone(g, bias.derived_bias) == []
    value = only(g).operand(2)
    assert value.type == typed((3,), INT32)
    assert array_of(value).tolist() == [1, -2, 3]
    assert value.written is None


def test_units_may_differ_by_a_rounding() -> None:
    near = np.nextafter(ACC, np.float32(1))
    x_scale = [dense_of(dq(const(np.array([10**9, -2, 3], np.int32), per_tensor(DType.INT32, s))))
               for s in (ACC, near)]  # fmt: skip
    texts = {canonicalize(g).text() for g in x_scale}
    assert len(texts) == 1


@pytest.mark.idiom("C3", "C5")
@pytest.mark.parametrize(
    ("data", "params", "expected"),
    [
        (np.array([1, -2, 3], np.int32), per_tensor(DType.INT32, ACC * 4), [4, -8, 12]),
        (np.array([2, -4, 6], np.int32), per_tensor(DType.INT32, ACC / 2), [1, -2, 3]),
        (np.array([4, 5, 6], np.int32), per_tensor(DType.INT32, ACC, 4), [0, 1, 2]),
        (np.array([1, -2, 3], np.int8), per_tensor(DType.INT8, ACC * 64), [64, -128, 192]),
        (np.array([1, -2, 3], np.float32) * 2**-10, None, [4, -8, 12]),
        (np.array([0.5, 1.5, -0.5], np.float32) * ACC, None, [0, 2, 0]),
    ],
    ids=["other scale", "finer scale", "zero point", "int8", "float", "float ties"],
)
def test_other_biases_are_derived(
    data: Array, params: QuantParams | None, expected: list[int]
) -> None:
    c = const(data, params)
    x = rows()
    y = apply("Dense", x, const(np.ascontiguousarray(CODES.T), W8), c if params is None else dq(c),
              type_=typed((4, 3), per_tensor(DType.INT8, 2**-3)))  # fmt: skip
    g = canonicalize(graph([x], y))
    value = only(g).operand(2)
    assert value.type == typed((3,), INT32)
    assert array_of(value).tolist() == expected
    assert value.written is not None
    real = data if params is None else dequantize(data, params)
    np.testing.assert_array_equal(value.written.numpy(), np.asarray(real, np.float32))


@pytest.mark.idiom("C2")
def test_biases_per_channel() -> None:
    g = canonicalize(dense_of(const(np.array([1, 1, 1], np.float32)), per_channel(0)))
    value = only(g).operand(2)
    assert value.quant is not None
    np.testing.assert_array_equal(value.quant.params.scale, np.float32(2**-5) * N3)
    assert (value.quant.params.axis, array_of(value).tolist()) == (0, [64, 128, 256])


@pytest.mark.parametrize("wrong", [2.0**30, np.inf, np.nan], ids=str)
def test_biases_that_do_not_fit_stay_float(wrong: float) -> None:
    g = dense_of(const(np.array([0, wrong, 0], np.float32)))
    (reason,) = alone(g, bias.derived_bias)
    assert "does not fit int32 in units of scale_x * scale_w and stays float" in reason
    assert only(g).operand(2).quant is None


def test_computed_biases_are_refused() -> None:
    x, c = rows(), stored("c", OUT, (3,))
    w = const(np.ascontiguousarray(CODES.T), W8)
    g = graph([x, c], apply("Dense", x, w, dq(c), type_=typed((4, 3), OUT)))
    assert alone(g, bias.derived_bias) == ["its bias is not constant"]
    assert reasons(settled(g)) == {"derived-bias": "its bias is not constant"}


@pytest.mark.idiom("B14")
def test_one_bias_of_two_layers_is_derived_for_each() -> None:
    x, c = rows(), const(np.array([1, 2, 3], np.float32))
    w = np.ascontiguousarray(CODES.T)
    a = apply("Dense", x, const(w, W8), c, type_=typed((4, 3), OUT))
    b = apply("Dense", x, const(w, per_tensor(DType.INT8, 2**-5)), c, type_=typed((4, 3), OUT))
    g = settled(graph([x], a, b))
    biases = [array_of(n.operand(2)).tolist() for n in g.nodes]
    assert biases == [[4096, 8192, 12288], [1024, 2048, 3072]]


@pytest.mark.idiom("B13")
def test_a_grouped_transposed_convolution_repeats_its_scales() -> None:
    w_params = quant(DType.INT8, np.array([0.5, 0.25], np.float32), np.int32(0), axis=1)
    w = const(np.ones((2, 2, 1, 1), np.int8), w_params)
    x = stored("x", U8, (1, 2, 2, 2))
    attributes = ConvTransposeAttrs((1, 1), (1, 1), (0, 0, 0, 0), (0, 0), group=2)
    ones = const(np.ones(4, np.float32))
    y = apply("ConvTranspose", x, w, ones, attributes=attributes,
              type_=typed((1, 4, 2, 2), OUT))  # fmt: skip
    g = settled(graph([x], y))
    assert array_of(only(g).operand(2)).tolist() == [64, 128, 64, 128]


# ---- bias-from-add ----------------------------------------------------------------------------


def added(addend: Value, *, first: bool = False, op: str = "Dense") -> Graph:
    if op == "Dense":
        x, shape = rows(), (4, 3)
        y = apply("Dense", x, const(np.ascontiguousarray(CODES.T), W8), type_=typed(shape))
    else:
        x, shape = stored("x", U8, (1, 2, 2, 2)), (1, 3, 2, 2)
        w = const(CODES.T.reshape(3, 2, 1, 1), W8)
        y = apply("Conv", x, w, type_=typed(shape),
                  attributes=ConvAttrs((1, 1), (1, 1), (0, 0, 0, 0)))  # fmt: skip
    operands = (addend, y) if first else (y, addend)
    return graph([x], q(apply("Add", *operands, type_=typed(shape), name="add"), OUT))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("shape", [(3,), (1, 3)], ids=str)
def test_addends_are_biases(first: bool, shape: tuple[int, ...]) -> None:
    g = added(const(np.array([1, 2, 3], np.float32).reshape(shape)), first=first)
    assert alone(g, bias.bias_from_add) == []
    assert names(settled(g)) == ["Dense"]
    assert array_of(only(g).operand(2)).tolist() == [4096, 8192, 12288]


@pytest.mark.idiom("C10")
def test_int32_addends_keep_their_integers() -> None:
    scale = np.full(3, ACC)
    params = quant(DType.INT32, scale, np.int32(0), axis=1)
    g = settled(added(dq(const(np.array([[5, 6, 7]], np.int32), params))))
    assert names(g) == ["Dense"]
    assert array_of(only(g).operand(2)).tolist() == [5, 6, 7]


def test_addends_of_8_bits_are_rounded_to_the_accumulator() -> None:
    codes = np.array([1, 2, 3], np.uint8)
    g = settled(added(dq(const(codes, U8))))
    assert names(g) == ["Dense"]
    real = dequantize(codes, U8).astype(np.float64)
    assert array_of(only(g).operand(2)).tolist() == np.rint(real / ACC).tolist()


def test_addends_of_convolutions() -> None:
    g = settled(added(const(np.array([1, 2, 3], np.float32).reshape(3, 1, 1)), op="Conv"))
    assert names(g) == ["Conv"]
    assert array_of(only(g).operand(2)).tolist() == [4096, 8192, 12288]


@pytest.mark.parametrize(
    "addend",
    [
        const(np.float32(1)),
        const(np.ones((4, 1), np.float32)),
        const(np.ones((4, 3), np.float32)),
    ],
    ids=["scalar", "column", "matrix"],
)
def test_other_addends_are_refused(addend: Value) -> None:
    g = added(addend)
    assert alone(g, bias.bias_from_add) == [
        "an addend of an integer product is not a constant vector of its channels"
    ]
    assert "Add" in names(g)
    settled(g)


def test_a_second_bias_or_a_second_reader_stays_an_add() -> None:
    x, c = rows(), const(np.array([1, 2, 3], np.float32))
    w = const(np.ascontiguousarray(CODES.T), W8)
    biased = apply("Dense", x, w, c, type_=typed((4, 3)))
    shared = apply("Dense", x, w, type_=typed((4, 3)))
    g = graph([x], apply("Add", biased, c), apply("Add", shared, c), shared)
    alone(g, bias.bias_from_add)
    assert names(g).count("Add") == 2


@pytest.mark.idiom("C9")
def test_a_rounding_between_product_and_addend_stays() -> None:
    x = rows()
    w = const(np.ascontiguousarray(CODES.T), W8)
    y = apply("Dense", x, w, type_=typed((4, 3), OUT))
    c = dq(const(np.array([1, 2, 3], np.uint8), U8))
    g = settled(graph([x], q(apply("Add", dq(y), c), OUT)))
    assert names(g) == ["Dense", "Add"]
