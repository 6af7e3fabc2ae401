"""Broken quantization parameters, each with the error that it must give."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from qdqbridge.errors import (
    InvalidModelError,
    ScalesError,
    UnsupportedQuantization,
    UnusableScaleError,
)
from tests.onnx_io.bad_parts import (
    CASES,
    WEIGHT,
    Breaker,
    Model,
    case,
    initializer,
    node,
    put,
    set_attribute,
    weight,
)
from tests.onnx_models import ints


@case(ScalesError)
def scale_longer_than_the_axis(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 1, WEIGHT), np.ones(5, np.float32))


@case(ScalesError)
def zero_point_longer_than_the_scale(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(5, np.int8))


@case(ScalesError)
def scale_of_rank_three(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 1, WEIGHT), np.ones((2, 2, 1), np.float32))


@case(ScalesError)
def empty_scale(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 1), np.ones(0, np.float32))


@case(ScalesError)
def zero_point_of_another_type(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(4, np.uint8))


@case(UnsupportedQuantization)
def zero_point_is_float(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 2), np.float32(0))


@case(ScalesError)
def scale_is_float64(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 1), np.float64(1))


@case(ScalesError)
def scale_is_int64(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 1), np.int64(1))


def _scale(value: float, index: int) -> Breaker:
    def breaker(m: Model) -> None:
        shape = tuple(initializer(m, "DequantizeLinear", 1, index).dims)
        scale = np.full(shape, 0.5, np.float32)
        scale.reshape(-1)[-1] = value
        put(initializer(m, "DequantizeLinear", 1, index), scale)

    return breaker


for _value in (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3e38):
    CASES[f"activation scale {_value}"] = (_scale(_value, 0), UnusableScaleError)
    CASES[f"weight scale {_value}"] = (_scale(_value, WEIGHT), UnusableScaleError)
CASES["activation scale negative"] = (_scale(-0.5, 0), UnsupportedQuantization)


@case(ScalesError)
def axis_out_of_range(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "axis", 7)


@case(ScalesError)
def negative_axis_out_of_range(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "axis", -9)


@case(InvalidModelError)
def axis_is_a_float(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "axis", 0.0)


@case(InvalidModelError)
def attribute_given_twice(m: Model) -> None:
    node(m, "DequantizeLinear", WEIGHT).attribute.append(helper.make_attribute("axis", 1))


@case(InvalidModelError)
def block_size_at_an_old_opset(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "block_size", 2)


@case(ScalesError)
def negative_block_size(m: Model) -> None:
    m.opset_import[0].version = 21
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "block_size", -2)


@case(ScalesError)
def blocks_that_do_not_divide(m: Model) -> None:
    m.opset_import[0].version = 21
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "block_size", 2)
    put(initializer(m, "DequantizeLinear", 1, WEIGHT), np.ones((4, 3, 3, 3), np.float32))
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros((4, 3, 3, 3), np.int8))


@case(InvalidModelError)
def int4_at_opset_13(m: Model) -> None:
    import ml_dtypes

    put(weight(m), ints((4, 3, 3, 3)).astype(ml_dtypes.int4))
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(4, ml_dtypes.int4))


@case(InvalidModelError)
def per_channel_at_opset_10(m: Model) -> None:
    m.opset_import[0].version = 10


@case(InvalidModelError)
def output_dtype_against_the_zero_point(m: Model) -> None:
    m.opset_import[0].version = 21
    set_attribute(node(m, "QuantizeLinear"), "output_dtype", TensorProto.INT8)


@case(InvalidModelError)
def int64_into_a_quantize(m: Model) -> None:
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64


@case(UnsupportedQuantization)
def int64_data_into_a_dequantize(m: Model) -> None:
    put(weight(m), np.ones((4, 3, 3, 3), np.int64))
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(4, np.int64))


@case(InvalidModelError)
def quantize_to_int32(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 2), np.int32(0))
