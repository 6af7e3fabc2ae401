"""TensorRT's quantization as torch's exporters and ModelOpt write it: ONNX's own, and of blocks."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.rewrite import Rule
from qdqbridge.onnx_io.lowering.context import MICROSOFT, LoweringContext, reading_rule

_STORED = {"TRT_FP8": TensorProto.FLOAT8E4M3FN, "TRT_INT4": TensorProto.INT4}
"""What TensorRT's QuantizeLinear stores where its name says it, by what the name begins with."""
_ROUND_UP = 24
"""The opset since which a Cast to powers of two rounds up."""
_BIAS = 127
"""Of the exponents that a uint8 holds as powers of two."""


def _plain(kind: str, name: str) -> Rule:
    """Returns the rule of TensorRT's QuantizeLinear or DequantizeLinear."""
    names = tuple(f"trt::{prefix}{kind}" for prefix in ("", *_STORED))

    @reading_rule(name, (names, "x", "scale", "zero?"))
    def lower(context: LoweringContext) -> Value:
        """``trt::QuantizeLinear(x) -> QuantizeLinear(x)``: the same node, its usual name.

        Source: NVIDIA ModelOpt, modelopt/torch/quantization/export_onnx.py.
        """
        given = context.same_attributes()
        stored = _STORED.get(context.op_type.removesuffix(kind))
        if stored is not None and kind == "QuantizeLinear" and context.optional(2) is None:
            given["output_dtype"] = stored
        return context.op(kind, context.operands, context.output, domain=MICROSOFT, **given)

    return lower


@reading_rule("trt-mxfp8-dequantize", ("trt::TRT_MXFP8DequantizeLinear", "x", "scale"))
def mxfp8_dequantize(context: LoweringContext) -> Value:
    """``MXFP8DequantizeLinear(x, e) -> Cast(DequantizeLinear(x, 2^(e - 127)))`` in blocks.

    Source: NVIDIA ModelOpt, modelopt/onnx/export/mxfp8_exporter.py.
    """
    scale = context.operand(1)
    if context.operand(0).type.dtype is not DType.FLOAT8_E4M3FN:
        raise context.refusal(
            "no float8",
            f"'{context.proto.input[0]}' is {context.operand(0).type.dtype}",
            "export with what quantizes it, in blocks along a last axis that is known",
        )
    if scale.type.dtype is DType.UINT8:
        exponents = context.array(1, "its scale").astype(np.int32) - _BIAS
        scale = context.enter(np.ldexp(np.float32(1), exponents), "scale")
    else:
        scale = context.op("Cast", [scale], to=TensorProto.FLOAT)
    to = context.int_("output_dtype", TensorProto.FLOAT)
    plain = to == TensorProto.FLOAT
    real = context.dequantize(
        context.operand(0), scale, axis=context.int_("axis", -1),
        block_size=context.int_("block_size", 32), result=context.output if plain else "",
    )  # fmt: skip
    return real if plain else context.op("Cast", [real], context.output, to=to)


@reading_rule("trt-mxfp8-quantize", ("trt::TRT_MXFP8DynamicQuantize", "x"))
def mxfp8_quantize(context: LoweringContext) -> list[Value]:
    """``MXFP8DynamicQuantize(x) -> QuantizeLinear(x, 2^ceil(log2(max|x| / 448)))`` in blocks.

    Source: TensorRT, IDynamicQuantizeLayer; modelopt/onnx/quantization/quant_utils.py.
    """
    context.made_in = max(context.made_in, _ROUND_UP)
    x, size, largest = _blocks(context)
    share = context.op("Div", [largest, context.enter(np.float32(448), "largest")])
    power = context.op(
        "Cast", [share], context.proto.output[1], to=TensorProto.FLOAT8E8M0, round_mode="up"
    )
    scale = context.op("Cast", [power], to=TensorProto.FLOAT)
    return [_stored(context, x, scale, size, TensorProto.FLOAT8E4M3FN), power]


@reading_rule("trt-fp4-quantize", ("trt::TRT_FP4DynamicQuantize", "x", "scale"))
def fp4_quantize(context: LoweringContext) -> list[Value]:
    """``FP4DynamicQuantize(x, s) -> QuantizeLinear(x, DQ(QuantizeLinear(max|x| / 6, s), s))``.

    The scales of blocks are float8 with a scale of their own.
    Source: TensorRT, IDynamicQuantizeLayer; modelopt/torch/quantization/export_onnx.py.
    """
    context.made_in = max(context.made_in, _ROUND_UP)
    x, size, largest = _blocks(context)
    share = context.op("Div", [largest, context.enter(np.float32(6), "largest")])
    own = context.operand(1)
    scales = context.op(
        "QuantizeLinear", [share, own], context.proto.output[1], domain=MICROSOFT,
        output_dtype=TensorProto.FLOAT8E4M3FN,
    )  # fmt: skip
    scale = context.dequantize(scales, own)
    return [_stored(context, x, scale, size, TensorProto.FLOAT4E2M1), scales]


def _blocks(context: LoweringContext) -> tuple[Value, int, Value]:
    """Returns the float32 operand, the extent of its blocks, and the largest value of each."""
    x, size = context.operand(0), context.int_("block_size", 32)
    shape, axis = x.type.shape, context.int_("axis", -1)
    last = shape[-1] if shape else None
    if not shape or axis not in (-1, len(shape) - 1) or not isinstance(last, int) or last % size:
        raise context.refusal(
            "blocks that do not fill the last axis",
            f"blocks of {size} along axis {axis} of {shape}",
            "export with a known rank, and a last extent that is a multiple of the block",
        )
    if x.type.dtype is not DType.FLOAT32:
        x = context.op("Cast", [x], to=TensorProto.FLOAT)
    target = np.array([*[0] * (len(shape) - 1), last // size, size])
    rows = context.op("Reshape", [context.op("Abs", [x]), context.enter(target, "blocks")])
    axes = context.enter(np.array([-1]), "axes")
    return x, size, context.op("ReduceMax", [rows, axes], keepdims=0)


def _stored(context: LoweringContext, x: Value, scale: Value, size: int, to: int) -> Value:
    return context.op(
        "QuantizeLinear", [x, scale], context.output, domain=MICROSOFT, axis=-1, block_size=size,
        output_dtype=to,
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    _plain("QuantizeLinear", "trt-quantize"),
    _plain("DequantizeLinear", "trt-dequantize"),
    mxfp8_dequantize,
    mxfp8_quantize,
    fp4_quantize,
)
