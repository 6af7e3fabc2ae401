"""Other operators as producers quantize them: the rows of E to J that other tests leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.types import QuantType
from tests.core.canonical.idiom_models import X, conv, node_of, notes_of, settled
from tests.onnx_models import Builder, ints, ops


@pytest.mark.idiom("E3")
@pytest.mark.parametrize("op_type", ["Mul", "Add"])
def test_an_operand_may_come_twice(op_type: str) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.qdq(b.op(op_type, x, x), 2**-3, 100))
    node = node_of(settled(b.model()), op_type)
    assert node.inputs[0] is node.inputs[1]


@pytest.mark.idiom("E4", "B7")
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (1, 1, 1, 1)])
def test_constant_operands_of_any_rank_are_stored(shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 2, 3, 4]), X, 128)
    codes = np.arange(250, 250 + int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    b.output(b.qdq(b.op("Mul", x, b.weight(codes, np.float32(2 / 256))), 2**-4, 128))
    node = node_of(settled(b.model()), "Mul")
    assert node.operand(1).quant is not None


@pytest.mark.idiom("E5")
def test_a_float_scalar_operand_is_one_operator_with_the_rounding() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.qdq(b.op("Div", x, b.init(np.float32(5.656854))), 2**-7, 128))
    g = settled(b.model())
    assert ops(g) == ["quantize", "Div", "dequantize"]
    assert node_of(g, "Div").output.quant is not None


@pytest.mark.idiom("E6")
@pytest.mark.parametrize("op_type", ["Sqrt", "Erf", "Exp", "Tanh", "HardSwish"])
def test_an_operator_the_producer_left_float_is_quantized_between_its_neighbours(
    op_type: str,
) -> None:
    b = Builder(14)
    x = b.qdq(b.input("x", [2, 4]), X, 0)
    b.output(b.qdq(b.op(op_type, x), 2**-7, 0))
    assert node_of(settled(b.model()), op_type).output.quant is not None


@pytest.mark.idiom("E6", "I2")
def test_a_decomposed_norm_is_an_island_with_reasons() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    mean = b.op("ReduceMean", x, axes=[-1], keepdims=1)
    centred = b.op("Sub", x, mean)
    variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes=[-1], keepdims=1)
    y = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.init(np.float32(1e-5)))))
    b.output(b.qdq(y, 2**-6, 128))
    g = settled(b.model())
    assert all(v.quant is None for v in node_of(g, "Sub").outputs)
    assert g.notes


@pytest.mark.idiom("E7")
@pytest.mark.parametrize("other", [X, X / 2])
def test_concat_of_equal_and_of_different_parameters(other: float) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 4]), X, 128)
    y = b.qdq(b.input("y", [1, 4]), other, 128)
    b.output(b.qdq(b.op("Concat", x, y, axis=1), X, 128))
    node = node_of(settled(b.model()), "Concat")
    assert all(v is not None and v.quant is not None for v in (*node.inputs, *node.outputs))


@pytest.mark.idiom("E9")
def test_an_add_of_a_dequantized_constant_is_an_add() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.qdq(b.op("Add", b.weight(ints((4,), 1), 2**-6), x), 2**-3, 100))
    assert ops(settled(b.model())) == ["quantize", "Add", "dequantize"]


FIXED: list[Any] = [
    pytest.param("Softmax", 1 / 255, 0, np.uint8, id="F1", marks=pytest.mark.idiom("F1")),
    pytest.param("Softmax", 1 / 255, -128, np.int8, id="F1s", marks=pytest.mark.idiom("F1")),
    pytest.param("Softmax", 1 / 256, 0, np.uint8, id="F2", marks=pytest.mark.idiom("F2")),
    pytest.param("Sigmoid", 0.0039015, 0, np.uint8, id="F3", marks=pytest.mark.idiom("F3")),
    pytest.param("Sigmoid", 1 / 65536, 0, np.uint16, id="F4", marks=pytest.mark.idiom("F4")),
    pytest.param("Tanh", 1 / 32768, 32768, np.uint16, id="F4t", marks=pytest.mark.idiom("F4")),
    pytest.param("Sigmoid", 1 / 65535, 0, np.uint16, id="F5", marks=pytest.mark.idiom("F5")),
    pytest.param("Sigmoid", 1 / 256, -128, np.int8, id="F6", marks=pytest.mark.idiom("F6")),
    pytest.param("Tanh", 1 / 128, 0, np.int8, id="F6t", marks=pytest.mark.idiom("F6")),
    pytest.param("Softmax", 1 / 127, 0, np.int8, id="F7", marks=pytest.mark.idiom("F7")),
]


@pytest.mark.parametrize(("op_type", "scale", "zero_point", "dtype"), FIXED)
def test_fixed_ranges_are_those_of_the_file(
    op_type: str, scale: float, zero_point: int, dtype: Any
) -> None:
    b = Builder(21)
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.qdq(b.op(op_type, x), scale, zero_point, dtype))
    type_ = node_of(settled(b.model()), op_type).output.type
    assert isinstance(type_, QuantType)
    assert type_.params.scale.tobytes() == np.float32(scale).tobytes()
    assert int(type_.params.zero_point) == zero_point


@pytest.mark.idiom("G2")
def test_a_mover_with_other_parameters_is_followed_by_a_requantize() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.qdq(b.op("Transpose", x, perm=[1, 0]), X * 0.9, 120))
    assert ops(settled(b.model())) == ["quantize", "Transpose", "requantize", "dequantize"]


@pytest.mark.idiom("G3")
def test_a_flatten_between_a_dequantize_and_a_product_works_on_integers() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 2, 2]), X, 128)
    y = b.op("Gemm", b.op("Flatten", x), b.weight(ints((4, 3), 1), 2**-7))
    b.output(b.qdq(y, 2**-2, 128))
    assert ops(settled(b.model())) == ["quantize", "Flatten", "Dense", "dequantize"]


@pytest.mark.idiom("G4")
def test_a_quantize_behind_a_mover_moves_in_front_of_it() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 4, 4]), X, 128)
    y = b.op("MaxPool", b.op("Relu", conv(b, x)), kernel_shape=[2, 2])
    b.output(b.qdq(y, 2**-2, 0))
    assert ops(settled(b.model())) == ["quantize", "Conv", "MaxPool", "dequantize"]


@pytest.mark.idiom("G6")
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pads_without_a_value_are_integers(mode: str) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 1, 4, 4]), X, 77)
    y = b.op("Pad", x, b.init(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)), mode=mode)
    b.output(b.qdq(y, X, 77))
    assert ops(settled(b.model())) == ["quantize", "Pad", "dequantize"]


@pytest.mark.idiom("G6")
def test_a_pad_value_that_is_dequantized_itself() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 4]), X, 77)
    value = b.dq(b.init(np.uint8(3)), X, 0)
    y = b.op("Pad", x, b.init(np.array([0, 1, 0, 2], np.int64)), value)
    b.output(b.qdq(y, X, 77))
    assert ops(settled(b.model())) == ["quantize", "Pad", "dequantize"]


@pytest.mark.idiom("G7")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
def test_pools_of_maxima_work_on_integers_of_any_width(dtype: Any) -> None:
    b = Builder(21)
    x = b.qdq(b.input("x", [1, 2, 4, 4]), X, 3, dtype)
    b.output(b.qdq(b.op("MaxPool", x, kernel_shape=[2, 2]), X, 3, dtype))
    assert ops(settled(b.model())) == ["quantize", "MaxPool", "dequantize"]


@pytest.mark.idiom("G7")
def test_arg_max_and_top_k_read_what_a_dequantize_yields() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 9]), X, 3)
    b.output(b.op("ArgMax", x, axis=1), None, TensorProto.INT64)
    b.output(b.op("TopK", x, b.init(np.array([2], np.int64)), outputs=2))
    b.output(b.qdq(b.op("ReduceMax", x, axes=[1]), X, 3))
    settled(b.model())


@pytest.mark.idiom("G8")
@pytest.mark.parametrize("op_type", ["DepthToSpace", "SpaceToDepth"])
def test_depth_and_space_are_moved_as_integers(op_type: str) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 4, 2, 2]), X, 3)
    b.output(b.qdq(b.op(op_type, x, blocksize=2), X, 3))
    assert ops(settled(b.model())) == ["quantize", op_type, "dequantize"]


@pytest.mark.idiom("G11")
def test_transpositions_around_layouts_stay_integers() -> None:
    b = Builder()
    x = b.q(b.input("x", [1, 4, 4, 3]), X, 128)
    x = b.dq(b.op("Transpose", x, perm=[0, 3, 1, 2]), X, 128)
    w = b.weight(ints((1, 1, 3, 4), 1), 2**-7)
    y = b.op("Conv", x, b.op("Transpose", w, perm=[3, 2, 0, 1]))
    y = b.op("Transpose", b.q(y, 2**-2, 128), perm=[0, 2, 3, 1])
    b.output(b.dq(y, 2**-2, 128))
    assert ops(settled(b.model())) == ["quantize", "Transpose", "Conv", "Transpose", "dequantize"]


@pytest.mark.idiom("G12")
def test_accumulating_operators_are_islands() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 3)
    b.output(b.qdq(b.op("CumSum", x, b.init(np.int64(1))), X, 3))
    assert ops(settled(b.model())) == [
        "quantize", "dequantize", "CumSum", "quantize", "dequantize",
    ]  # fmt: skip


@pytest.mark.idiom("H1", "H2")
@pytest.mark.parametrize("scale", [X, X * 0.7])
def test_average_pools_are_integer_sums(scale: float) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 2, 4, 4]), X, 127)
    y = b.qdq(b.op("AveragePool", x, kernel_shape=[2, 2]), scale, 127)
    b.output(b.qdq(b.op("GlobalAveragePool", y), scale, 127))
    g = settled(b.model())
    assert node_of(g, "AveragePool").output.quant is not None
    assert node_of(g, "GlobalAveragePool").output.quant is not None


@pytest.mark.idiom("H3")
@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("quantized", [True, False])
def test_means_of_both_spellings(opset: int, quantized: bool) -> None:
    b = Builder(opset)
    x = b.qdq(b.input("x", [1, 2, 4, 4]), X, 127)
    if opset < 18:
        y = b.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    else:
        y = b.op("ReduceMean", x, b.init(np.array([2, 3], np.int64)), keepdims=0)
    b.output(b.qdq(y, X, 127) if quantized else y)
    node = node_of(settled(b.model()), "ReduceMean")
    assert (node.output.quant is not None) == quantized


@pytest.mark.idiom("H4")
def test_a_product_that_corrects_a_pool_stays() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 2, 7, 7]), X, 0, np.int8)
    y = b.op("Mul", b.op("GlobalAveragePool", x), b.init(np.float32(49 * 21 / 1024)))
    b.output(b.qdq(y, X, 0, np.int8))
    assert "Mul" in ops(settled(b.model()))


@pytest.mark.idiom("I1", "C8")
@pytest.mark.parametrize("op_type", ["LayerNormalization", "InstanceNormalization"])
@pytest.mark.parametrize("gamma", [np.int8, np.uint8])
def test_norms_take_stored_gammas_and_real_betas(op_type: str, gamma: Any) -> None:
    b = Builder(17)
    shape = [1, 4, 8] if op_type == "InstanceNormalization" else [1, 8, 4]
    x = b.qdq(b.input("x", shape), X, 128)
    g, beta = ints((4,), 1, gamma), np.array([5, -6, 700, 0], np.int32)
    y = b.op(op_type, x, b.weight(g, 2**-6), b.weight(beta, X * 2**-6))
    b.output(b.qdq(y, 2**-5, 100))
    node = node_of(settled(b.model()), op_type)
    assert node.output.quant is not None
    assert node.operand(1).quant is not None
    assert node.operand(2).quant is None


@pytest.mark.idiom("I5")
@pytest.mark.parametrize("stored", [True, False])
def test_slopes_per_channel(stored: bool) -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 3, 2, 2]), X, 128)
    codes = np.array([16, 32, 64], np.int8).reshape(3, 1, 1)
    slope = b.weight(codes, 2**-7) if stored else b.init(codes.astype(np.float32) / 128)
    b.output(b.qdq(b.op("PRelu", x, slope), X, 128))
    assert node_of(settled(b.model()), "PRelu").output.quant is not None


@pytest.mark.idiom("J1")
def test_a_tensor_converted_for_some_of_its_readers() -> None:
    b = Builder(21)
    x = b.q(b.input("x", [2, 4]), X, 128)
    narrow = b.dq(x, X, 128)
    wide = b.qdq(b.dq(x, X, 128), X / 256, 32768, np.uint16)
    b.output(b.qdq(b.op("Mul", wide, wide), 2**-10, 0, np.uint16))
    b.output(b.qdq(b.op("Relu", narrow), X, 128))
    g = settled(b.model())
    assert [n for n in ops(g) if n in ("quantize", "requantize")].count("quantize") == 1
    assert ops(g).count("requantize") == 2


@pytest.mark.idiom("J7")
def test_unmatched_conversions_around_a_foreign_operator_stay() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [3, 3]), X, 128)
    b.output(b.op("Det", x))
    b.output(b.op("Det", b.op("Add", b.input("y", [3, 3]), b.dq(b.q(x, 0.1, 3), 0.1, 3))))
    g = settled(b.model())
    assert ops(g).count("Det") == 2
    assert not notes_of(g, "dequantize-through-data-movement")
