"""Every problem that verify knows, and that sound graphs have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.errors import GraphError, InvalidModelError
from tests.core.graph.graphs import (
    OUT,
    U8,
    W8,
    apply,
    const,
    dq,
    graph,
    plain,
    q,
    quant,
    rq,
    stored,
    typed,
)


def claimed(*inputs: Value, result: Value) -> Graph:
    g = graph(inputs, result)
    g.canonical = True
    return g


def dense(bias: Value | None) -> Graph:
    x = stored("x", U8, (2, 3))
    w = const(np.ones((4, 3), np.int8), W8)
    operands = [x, w] if bias is None else [x, w, bias]
    extra = [bias] if bias is not None and bias.constant is None else []
    y = apply("Dense", *operands, type_=typed((2, 4), OUT))
    return claimed(x, *extra, result=y)


def bias(params: QuantParams | None, dtype: type = np.int32) -> Value:
    return const(np.zeros(4, dtype), params, "bias")


BIAS = per_tensor(DType.INT32, 2**-12)


@pytest.mark.parametrize(
    "value", [None, bias(BIAS), bias(None, np.float32)], ids=["none", "int32", "float"]
)
def test_sound_graphs_pass(value: Value | None) -> None:
    verify(dense(value))


@pytest.mark.parametrize(
    "value",
    [
        bias(per_tensor(DType.INT8, 2**-12), np.int8),
        bias(per_tensor(DType.INT32, 2**-12, 3)),
        stored("bias", BIAS, (4,)),
    ],
    ids=["int8", "zero point", "not constant"],
)
def test_biases_are_int32_constants(value: Value) -> None:
    with pytest.raises(GraphError, match="canonical form") as caught:
        verify(dense(value))
    assert "bias 'bias' is not an int32 constant" in caught.value.why


def test_problems_of_the_canonical_form_need_the_claim() -> None:
    x = stored("x", U8, (2,))
    g = claimed(x, result=q(dq(x), OUT))
    with pytest.raises(GraphError, match="canonical form") as caught:
        verify(g)
    assert "must be a requantize" in caught.value.why
    g.canonical = False
    verify(g)


def test_quantize_of_a_wide_dequantize_is_allowed() -> None:
    x = stored("x", per_tensor(DType.INT32, 2**-5), (2,))
    verify(claimed(x, result=q(dq(x), OUT)))


@pytest.mark.parametrize("op", ["quantize", "requantize"])
def test_constants_are_stored_quantized(op: str) -> None:
    if op == "quantize":
        y = q(const(np.ones(2, np.float32)), U8)
    else:
        y = rq(const(np.ones(2, np.uint8), U8), OUT)
    with pytest.raises(GraphError) as caught:
        verify(claimed(result=y))
    assert "a constant must be stored quantized" in caught.value.why


@pytest.mark.parametrize(
    ("result", "sound"),
    [(U8, True), (U8.with_range(3, 9), True), (OUT, False), (None, False)],
    ids=["same", "range", "other", "float"],
)
def test_movers_keep_quantization(result: QuantParams | None, sound: bool) -> None:
    x = stored("x", U8, (2, 3))
    y = apply("Transpose", x, type_=typed((3, 2), result), attributes=TransposeAttrs((1, 0)))
    g = claimed(x, result=y)
    if sound:
        verify(g)
        return
    with pytest.raises(GraphError) as caught:
        verify(g)
    assert "a data-movement operator must keep" in caught.value.why


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan], ids=str)
def test_scales_are_positive_and_finite(scale: float) -> None:
    x = stored("x", per_tensor(DType.UINT8, scale), (2,))
    with pytest.raises(GraphError) as caught:
        verify(claimed(x, result=dq(x)))
    assert "scale of 'x' is not positive and finite" in caught.value.why


def test_a_constant_may_keep_a_negative_scale() -> None:
    c = const(np.array([-128, 3], np.int8), per_tensor(DType.INT8, -0.5))
    x = stored("x", U8, (2,))
    verify(claimed(x, result=apply("Add", x, c, type_=typed((2,), OUT))))


SCALES = quant(DType.INT8, np.ones(2, np.float32), np.int32(0), axis=0)
BLOCKS = quant(DType.INT8, np.ones((2, 2), np.float32), np.int32(0), axis=0, block_size=2)


@pytest.mark.parametrize(
    ("params", "shape", "why"),
    [
        (replace(SCALES, axis=-1), (3, 2), "axis -1 of 2"),
        (SCALES, (), "axis 0 of 0"),
        (SCALES, (3, 2), "scales of shape [2], [3] are expected"),
        (BLOCKS, (5, 2), "scales of shape [2, 2], [3, 2] are expected"),
        (BLOCKS, (4, 3), "scales of shape [2, 2], [2, 3] are expected"),
    ],
)  # fmt: skip
def test_scales_fit_the_shape_wherever_a_value_stands(
    params: QuantParams, shape: tuple[int, ...], why: str
) -> None:
    x, real = stored("x", params, shape), plain("real", shape)
    c = const(np.zeros(shape, np.int8), params)
    moved = apply("Identity", x, type_=x.type)
    found = [
        graph([x], x), graph([x], dq(x)), graph([real], dq(q(real, params))), graph([], dq(c)),
        graph([], c), graph([stored("x", SCALES, ("n", 2))], moved),
    ]  # fmt: skip
    for g in found:
        with pytest.raises(InvalidModelError) as caught:
            verify(g)
        assert caught.value.why == why


def test_scales_of_open_extents_fit() -> None:
    for params, shape in ((SCALES, ("n", 3)), (BLOCKS, ("n", 2)), (SCALES, None)):
        verify(graph([x := stored("x", params, shape)], dq(x)))


def test_operators_check_their_nodes_in_any_graph() -> None:
    x = plain("x", (2, 3))
    g = graph([x], apply("dequantize", x, name="broken"))
    with pytest.raises(InvalidModelError) as caught:
        verify(g, "model.onnx")
    assert caught.value.where == "model.onnx"
    assert "dequantize 'broken': the operand is not quantized" in caught.value.why
    with pytest.raises(InvalidModelError) as caught:
        verify(g)
    assert caught.value.where == "dequantize 'broken'"


def test_long_lists_are_cut() -> None:
    x = plain("x", (2,))
    g = graph([x], *(apply("dequantize", x, name=f"n{i}") for i in range(11)))
    with pytest.raises(InvalidModelError) as caught:
        verify(g)
    assert "(and 3 more)" in caught.value.why
    assert "n7" in caught.value.why
    assert "n8" not in caught.value.why
