"""Faults of QNN's HTP backend (Hexagon): their models, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from fault_models import Fault, QDQChain, of_pattern
from onnx import TensorProto, helper, numpy_helper


def instance_norm() -> onnx.ModelProto:
    """Returns an InstanceNormalization with float parameters between uint8 activations."""
    numbers = {
        "scale": np.float32(0.02), "zero": np.uint8(128),
        "gain": np.linspace(0.5, 1.2, 4, dtype=np.float32), "bias": np.zeros(4, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"]),
        helper.make_node("InstanceNormalization", ["x_real", "gain", "bias"], ["normal"]),
        helper.make_node("QuantizeLinear", ["normal", "scale", "zero"], ["result"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, (1, 4, 6, 6))
        for name in ("x", "result")
    ]
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()]
    graph = helper.make_graph(nodes, "instance_norm", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _floats(*steps: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a model of operators of floats, one behind the other."""

    def build() -> onnx.ModelProto:
        chain = QDQChain()
        x = chain.real("x", 0.05, np.uint8(128))
        for step in steps:
            operands = [x]
            if step in ("Div", "Mul", "Sub"):
                operands.append(chain.number(np.float32(1.41)))
            if step == "Where":
                mask = np.tril(np.ones((8, 8), bool))
                operands = [chain.number(mask), x, chain.number(np.float32(-1e4))]
            x = chain.add(step, *operands)
        return chain.model((2, 8, 8))

    return build


def float_padding() -> onnx.ModelProto:
    """Returns a padded Conv of a zero point, whose result stays float."""
    chain = QDQChain()
    x = chain.real("x", 0.03, np.uint8(100))
    made = chain.add("Conv", x, chain.weight(4, 3, 3, 3), pads=[1] * 4)
    chain.stored(chain.add("Sigmoid", made), 1 / 256, np.uint8(0))
    return chain.model((1, 3, 5, 5))


def divided_scores() -> onnx.ModelProto:
    """Returns attention whose scores are divided by a float."""
    chain, zero = QDQChain(), np.uint8(120)
    x = chain.real("x", 0.1, zero)
    scores = chain.pair(chain.add("Div", x, chain.number(np.float32(2.828427))), 0.04, zero)
    shares = chain.pair(chain.add("Softmax", scores, axis=-1), 1 / 256, np.uint8(0))
    chain.stored(chain.add("MatMul", shares, x), 0.1, zero)
    return chain.model((1, 4, 8, 8))


def lost_rounding() -> onnx.ModelProto:
    """Returns a Conv, its pair, and floats computed of it."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.uint8(128))
    bias = chain.real(chain.number(np.arange(-6, 6, dtype=np.int32) * 600), 2e-4, np.int32(0))
    conv = chain.add("Conv", x, chain.weight(12, 8, 3, 3), bias, pads=[1] * 4)
    real = chain.pair(conv, 0.047, np.uint8(120))
    gate = chain.add("Mul", chain.add("Tanh", real), chain.add("Sigmoid", real))
    chain.stored(gate, 1.3 / 255, np.uint8(60))
    return chain.model((1, 8, 6, 6))


def _narrow_first(*readers: str) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a sum that is stored in half of the range of what reads it."""

    def build() -> onnx.ModelProto:
        chain = QDQChain()
        x = chain.real("x", 0.05, np.uint8(100))
        sum_ = chain.pair(chain.add("Add", x, x), 0.035, np.uint8(100))
        for reader in readers:
            sum_ = chain.add(reader, sum_, chain.pair(x, 0.07, np.uint8(100)), axis=1)
        chain.stored(sum_, 0.07, np.uint8(100))
        return chain.model((1, 8, 6, 6), 17)

    return build


def one_channel() -> onnx.ModelProto:
    """Returns a Concat of an input of one channel and what a Conv makes of it, and a MaxPool."""
    chain = QDQChain()
    x = chain.real("x", 0.0039, np.uint8(0))
    conv = chain.pair(
        chain.add("Conv", x, chain.weight(12, 1, 3, 3), pads=[1] * 4), 0.027, np.uint8(0)
    )
    joined = chain.pair(chain.add("Concat", x, conv, axis=1), 0.027, np.uint8(0))
    chain.stored(chain.add("MaxPool", joined, kernel_shape=[2, 2]), 0.027, np.uint8(0))
    return chain.model((1, 1, 8, 8), 17)


def two_widths() -> onnx.ModelProto:
    """Returns an Add of a result of 8 bits and one of 16."""
    chain = QDQChain()
    x = chain.real("x", 0.05, np.uint8(100))
    wide = chain.pair(x, 0.05 / 256, np.uint16(25600))
    narrow = chain.pair(chain.add("MatMul", x, chain.weight(16, 16)), 0.23, np.uint8(100))
    chain.stored(chain.add("Add", wide, narrow), 0.3 / 256, np.uint16(25600))
    return chain.model((8, 16), 21)


def activations() -> onnx.ModelProto:
    """Returns a MatMul of two activations around 118, whose result covers a part of the sums."""
    chain = QDQChain()
    x = chain.real("x", 0.04, np.uint8(123))
    turned = chain.pair(chain.add("Transpose", x, perm=[0, 2, 1]), 0.04, np.uint8(118))
    chain.stored(chain.add("MatMul", x, turned), 0.01, np.uint8(128))
    return chain.model((3, 8, 64), 17)


def half_bias() -> onnx.ModelProto:
    """Returns a Conv of half floats with a float bias."""
    chain, half = QDQChain(), np.float16
    stored = chain.number(chain.chance.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8))
    x = chain.add("DequantizeLinear", "x", chain.number(half(0.02)), chain.number(np.uint8(100)))
    zero = chain.number(np.int8(0))
    weight = chain.add("DequantizeLinear", stored, chain.number(half(0.01)), zero)
    conv = chain.add("Conv", x, weight, chain.number(np.ones(4, half)))
    chain.add("QuantizeLinear", conv, chain.number(half(0.05)), chain.number(np.uint8(128)))
    return chain.model((1, 3, 5, 5))


def tan_of_five_axes() -> onnx.ModelProto:
    """Returns a Tan between DQ and Q, of five axes."""
    chain = QDQChain()
    x = chain.real("x", 0.004, np.uint8(128))
    chain.stored(chain.add("Tan", x), 0.01, np.uint8(128))
    return chain.model((1, 2, 3, 4, 5), 17)


def reflection_of_five_axes() -> onnx.ModelProto:
    """Returns a Pad by reflection between DQ and Q, of five axes."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.uint8(100))
    pads = chain.number(np.array([0, 0, 0, 1, 1, 0, 0, 0, 1, 1]))
    chain.stored(chain.add("Pad", x, pads, mode="reflect"), 0.02, np.uint8(100))
    return chain.model((1, 2, 3, 4, 5), 18)


def group_norm() -> onnx.ModelProto:
    """Returns a GroupNormalization between DQ and Q."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.uint8(100))
    gain, bias = (chain.number(np.full(4, number, np.float32)) for number in (1, 0))
    chain.stored(chain.add("GroupNormalization", x, gain, bias, num_groups=2), 0.03, np.uint8(128))
    return chain.model((1, 4, 6, 6), 21)


def response_norm_of_int8() -> onnx.ModelProto:
    """Returns an LRN between DQ and Q, of int8."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.int8(0))
    chain.stored(chain.add("LRN", x, size=3), 0.02, np.int8(0))
    return chain.model((1, 4, 6, 6), 17, TensorProto.INT8)


def gather_of_another_scale() -> onnx.ModelProto:
    """Returns a Gather whose result has twice the scale of its operand."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.uint8(100))
    rows = chain.add("Gather", x, chain.number(np.array([0, 2])), axis=1)
    chain.stored(rows, 0.04, np.uint8(100))
    return chain.model((1, 4, 16), 17)


def running_sum() -> onnx.ModelProto:
    """Returns a CumSum whose sums leave the range of the result on the way."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.uint8(128))
    chain.stored(chain.add("CumSum", x, chain.number(np.array(1))), 0.03, np.uint8(128))
    return chain.model((4, 64), 17)


def _matrix(bias_scale: object) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a MatMul of channels with a stored bias of these scales."""

    def build() -> onnx.ModelProto:
        chain = QDQChain()
        x, scale = chain.real("x", 0.02, np.uint8(120)), np.linspace(0.002, 0.01, 8)
        stored = chain.number(chain.chance.integers(-127, 128, (16, 8)).astype(np.int8))
        channels = [chain.number(scale.astype(np.float32)), chain.number(np.zeros(8, np.int8))]
        weight = chain.add("DequantizeLinear", stored, *channels, axis=1)
        own = np.asarray(bias_scale, np.float32)
        codes = np.rint(np.linspace(-3, 3, 8) / own).astype(np.int32)
        zero = chain.number(np.zeros(own.shape, np.int32))
        numbers = [chain.number(codes), chain.number(own), zero]
        bias = chain.add("DequantizeLinear", *numbers, axis=0)
        chain.stored(chain.add("Gemm", x, weight, bias), 0.1, np.uint8(128))
        return chain.model((4, 16), 17)

    return build


def floats_of_five_axes() -> onnx.ModelProto:
    """Returns a Reshape of a dequantized input of int8 and five axes."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.int8(5))
    rows = chain.add("Reshape", x, chain.number(np.array([6, 20])))
    chain.stored(chain.add("Neg", chain.add("Neg", rows)), 0.02, np.int8(5))
    return chain.model((1, 2, 3, 4, 5), 17, TensorProto.INT8)


_PARAMETERS = ((0.5, 1.2), (-0.2, 0.3))


def norm_of_16_bits() -> onnx.ModelProto:
    """Returns a LayerNormalization of uint16 with float parameters."""
    chain = QDQChain()
    x = chain.pair(chain.real("x", 0.02, np.uint8(120)), 8e-5, np.uint16(32000))
    gain, bias = (chain.number(np.linspace(a, b, 32, dtype=np.float32)) for a, b in _PARAMETERS)
    norm = chain.add("LayerNormalization", x, gain, bias)
    chain.stored(norm, 1e-4, np.uint16(32768))
    return chain.model((1, 8, 32), 21)


def pool_of_stored() -> onnx.ModelProto:
    """Returns a MaxPool of the integers themselves."""
    chain = QDQChain()
    pool = chain.add("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    chain.stored(chain.real(pool, 0.02, np.uint8(100)), 0.03, np.uint8(100))
    return chain.model((1, 4, 6, 6), 17)


def added_factor() -> onnx.ModelProto:
    """Returns a MatMul whose second operand is a sum around 118, with numbers up to its ends."""
    chain = QDQChain()
    x = chain.real("x", 0.02, np.uint8(128))
    chain.stored(
        chain.add("MatMul", x, chain.pair(chain.add("Add", x, x), 0.02, np.uint8(118))),
        0.05,
        np.uint8(128),
    )
    return chain.model((1, 16, 16), 17)


def wide_convolution(dtype: type[np.signedinteger[Any]]) -> Callable[[], onnx.ModelProto]:
    """Returns what makes a Conv of uint16 with weights per channel, of int16 with a float bias."""

    def build() -> onnx.ModelProto:
        chain, top = QDQChain(), int(np.iinfo(dtype).max)
        x = chain.real("x", 2.0**-15, np.uint16(30000))
        codes = chain.number(chain.chance.integers(-top, top + 1, (12, 8, 3, 3)).astype(dtype))
        scales = chain.number((np.linspace(0.35, 0.7, 12) / top).astype(np.float32))
        zeros = chain.number(np.zeros(12, dtype))
        weight = chain.add("DequantizeLinear", codes, scales, zeros, axis=0)
        bias = [chain.number(chain.chance.normal(size=12).astype(np.float32))]
        conv = chain.add("Conv", x, weight, *(bias if dtype is np.int16 else []))
        chain.stored(conv, 2.0**-11, np.uint16(32000))
        return chain.model((1, 8, 6, 6), inputs=TensorProto.UINT16)

    return build


FAULTS = (
    Fault(
        "hexagon_conv_relu_before_quantize.onnx", "qnn-htp", "wrong",
        "Conv, Relu, QuantizeLinear with zero point 128: negative results come out",
        of_pattern("Conv", "u8", "middle", "tensor", "none", "relu", "end", "17", "4"),
    ),
    Fault(
        "hexagon_clip_of_one_end_behind_pair.onnx", "qnn-htp", "wrong",
        "Conv, Q, DQ, Clip to an upper bound, Q: the bound is lost",
        of_pattern("Conv", "u8", "low", "tensor", "int32", "q-clip-high", "end", "21", "4"),
    ),
    Fault(
        "hexagon_softmax_int8_zero_0.onnx", "qnn-htp", "wrong",
        "Softmax to int8 with zero point 0: computed as if it were -128",
        of_pattern("Softmax", "s8", "middle", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_pad_int8_zero_-128.onnx", "qnn-htp", "wrong",
        "Pad with 0.0 of int8 with zero point -128: padded with another number",
        of_pattern("Pad", "s8", "low", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_sigmoid_uint16_zero_32768.onnx", "qnn-htp", "wrong",
        "Sigmoid to uint16 with zero point 32768 at the end of a graph: as if that were 0",
        of_pattern("Sigmoid", "u16", "middle", "-", "-", "none", "end", "21", "2"),
    ),
    Fault(
        "hexagon_leaky_relu_int8.onnx", "qnn-htp", "left",
        "LeakyRelu of int8 is left to the CPU; of uint8 it is taken",
        of_pattern("LeakyRelu", "s8", "middle", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_transpose_alone.onnx", "qnn-htp", "left",
        "Transpose by 0, 2, 1 alone is left to the CPU; beside another operator it is taken",
        of_pattern("Transpose", "u8", "middle", "-", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "hexagon_depthwise_conv_int16.onnx", "qnn-htp", "refused",
        "a depthwise Conv of int16 is claimed and then not made: the session fails",
        of_pattern("ConvDepthwise", "s16", "middle", "tensor", "none", "none", "end", "21", "4"),
    ),
    Fault(
        "hexagon_hard_swish_int16.onnx", "qnn-htp", "refused",
        "HardSwish of int16: the graph cannot be finalized, and the session fails",
        of_pattern("HardSwish", "s16", "middle", "-", "-", "none", "end", "21", "4"),
    ),
    Fault(
        "hexagon_instance_norm_float_bias.onnx", "qnn-htp", "refused",
        "InstanceNormalization with a float bias: no memory to finalize; with int32 it is right",
        instance_norm,
    ),
    Fault(
        "hexagon_padding_of_float_conv.onnx", "qnn-htp", "wrong",
        "DQ with zero point 100, padded Conv, Sigmoid, Q: padded with another number than 0.0",
        float_padding,
    ),
    Fault(
        "hexagon_lost_rounding.onnx", "qnn-htp", "wrong",
        "Conv, Q, DQ, Tanh * Sigmoid of floats, Q: not of the rounded result; of uint16 it is",
        lost_rounding,
    ),
    Fault(
        "hexagon_divided_scores.onnx", "qnn-htp", "refused",
        "Div by a float in front of Softmax and MatMul: no memory to finalize",
        divided_scores,
    ),
    Fault(
        "hexagon_float_div_mul.onnx", "qnn-htp", "refused",
        "Div, Mul of floats: no memory to finalize; Mul, Mul is right",
        _floats("Div", "Mul"),
    ),
    Fault(
        "hexagon_float_sub_mul.onnx", "qnn-htp", "refused",
        "Sub, Mul of floats: no memory to finalize; Add, Mul is right",
        _floats("Sub", "Mul"),
    ),
    Fault(
        "hexagon_float_gelu.onnx", "qnn-htp", "refused",
        "Gelu of floats: no memory to finalize",
        _floats("Gelu"),
    ),
    Fault(
        "hexagon_float_where.onnx", "qnn-htp", "refused",
        "Where of floats: no memory to finalize",
        _floats("Where", "Softmax"),
    ),
    Fault(
        "hexagon_float_round.onnx", "qnn-htp", "refused",
        "Round of floats: no memory to finalize",
        _floats("Round"),
    ),
    Fault(
        "hexagon_float_elu.onnx", "qnn-htp", "refused",
        "Elu of floats: no memory to finalize",
        _floats("Abs", "Elu"),
    ),
    Fault(
        "hexagon_half_float_bias.onnx", "qnn-htp", "refused",
        "Conv with half-float scales and bias: the layout is asked for and then not taken",
        half_bias,
    ),
    Fault(
        "hexagon_float_exp_mul.onnx", "qnn-htp", "refused",
        "Exp, Mul of floats: no memory to finalize; behind another float Mul it is right",
        _floats("Exp", "Mul"),
    ),
    Fault(
        "hexagon_div_before_matmul.onnx", "qnn-htp", "refused",
        "Div by a float, Q, DQ, MatMul of integers: no memory to finalize",
        of_pattern("DivNumber", "u8", "odd", "-", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "hexagon_concat_wider_than_operand.onnx", "qnn-htp", "wrong",
        "Add, Q, DQ, Concat, Q of twice the range: what the first Q has clamped comes out",
        _narrow_first("Concat"),
    ),
    Fault(
        "hexagon_concat_of_one_channel.onnx", "qnn-htp", "wrong",
        "Concat of an input of one channel with another scale, MaxPool: other numbers",
        one_channel,
    ),
    Fault(
        "hexagon_wider_behind_pair.onnx", "qnn-htp", "wrong",
        "Add, Q, DQ, Q of twice the range: what the first Q has clamped comes out",
        _narrow_first(),
    ),
    Fault(
        "hexagon_shared_initializer.onnx", "qnn-htp", "wrong",
        "one initializer behind two DequantizeLinear of other scales: computed with one of them",
        of_pattern("SharedConstant", "u8", "odd", "-", "-", "none", "end", "17", "4"),
    ),
    Fault(
        "hexagon_converted_rows.onnx", "qnn-htp", "wrong",
        "Transpose, Reshape, Q of another scale, MatMul: other rows; right with Q before Reshape",
        of_pattern("RowsConverted", "u8", "odd", "-", "-", "none", "end", "17", "3"),
    ),
    Fault(
        "hexagon_sum_of_two_widths.onnx", "qnn-htp", "wrong",
        "Add of a result of 8 bits and one of 16: steps of the 8 bits off",
        two_widths,
    ),
    Fault(
        "hexagon_matmul_of_activations.onnx", "qnn-htp", "wrong",
        "MatMul of two of uint8 around 118: many steps off where the result has a small scale",
        activations,
    ),
    Fault(
        "hexagon_tan_of_five_axes.onnx", "qnn-htp", "crash",
        "Tan of five axes: running it ends in an abort (SIGABRT)",
        tan_of_five_axes,
    ),
    Fault(
        "hexagon_reflection_of_five_axes.onnx", "qnn-htp", "crash",
        "Pad by reflection of five axes: running it ends in a segmentation fault",
        reflection_of_five_axes,
    ),
    Fault(
        "hexagon_group_norm.onnx", "qnn-htp", "refused",
        "GroupNormalization is claimed and then not made: the session fails",
        group_norm,
    ),
    Fault(
        "hexagon_lrn_int8.onnx", "qnn-htp", "refused",
        "LRN of int8 is claimed and then not made: the session fails; of uint8 it is right",
        response_norm_of_int8,
    ),
    Fault(
        "hexagon_gather_of_another_scale.onnx", "qnn-htp", "refused",
        "Gather whose result has another scale: no memory to finalize; of one scale it is right",
        gather_of_another_scale,
    ),
    Fault(
        "hexagon_cumulative_sum.onnx", "qnn-htp", "wrong",
        "CumSum: the running sum is kept within the ends of the result",
        running_sum,
    ),
    Fault(
        "hexagon_bias_of_one_scale.onnx", "qnn-htp", "wrong",
        "Gemm with weights per channel and a bias of one scale: the bias is added wrongly",
        _matrix(1e-4),
    ),
    Fault(
        "hexagon_bias_of_other_scales.onnx", "qnn-htp", "wrong",
        "Gemm with weights per channel and a bias of half of scale x * scale w; in a Conv it is "
        "converted rightly",
        _matrix(0.5 * 0.02 * np.linspace(0.002, 0.01, 8)),
    ),
    Fault(
        "hexagon_reshape_of_five_axes_int8.onnx", "qnn-htp", "wrong",
        "DQ of an input of int8 and five axes, Reshape of the floats: half of the range off",
        floats_of_five_axes,
    ),
    Fault(
        "hexagon_layer_norm_uint16.onnx", "qnn-htp", "wrong",
        "LayerNormalization of uint16 with float parameters: some 10 steps off; with a scale of "
        "uint8 and a bias of int32 it is right",
        norm_of_16_bits,
    ),
    Fault(
        "hexagon_max_pool_of_integers.onnx", "qnn-htp", "refused",
        "MaxPool of uint8 without DQ and Q: the layout is asked for and then not taken",
        pool_of_stored,
    ),
    Fault(
        "hexagon_added_factor.onnx", "qnn-htp", "wrong",
        "MatMul whose second operand an Add makes around 118: computed around 128, where what is "
        "more than 127 steps above the zero point saturates",
        added_factor,
    ),
    Fault(
        "hexagon_conv_uint16.onnx", "qnn-htp", "wrong",
        "Conv of uint16 with int8 weights per channel, before v73: some 15 steps off; where scale "
        "x * scale w / scale y is a power of two for every channel it is exact",
        wide_convolution(np.int8),
    ),
    Fault(
        "hexagon_conv_int16_weights.onnx", "qnn-htp-v73", "wrong",
        "Conv of uint16 with int16 weights per channel and a float bias (htp_arch 73): thousands "
        "of steps off; with one scale, or without the bias, 5 to 40",
        wide_convolution(np.int16),
    ),
)  # fmt: skip
