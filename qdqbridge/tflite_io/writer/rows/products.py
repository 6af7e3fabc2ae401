"""Convolutions and matrix products: weights in TFLite's layouts, int32 biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.core.canonical.bias import derived_params
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.core.ops.build import constant
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.matmul import GEMM
from qdqbridge.tflite_io.writer.emission import Emission, WriterRow, written
from qdqbridge.tflite_io.writer.rows import kernels
from qdqbridge.tflite_io.writer.rows.windows import SAME, VALID, same_or_valid
from qdqbridge.tflite_io.writer.tensors import NoCounterpart, extents, fixed_extents, is_weight

_IMAGE = 4
_CONV_VERSIONS = {DType.FLOAT32: 1, DType.INT8: 3, DType.INT16: 4, DType.INT4: 7}
_DEPTHWISE_VERSIONS = {DType.FLOAT32: 2, DType.INT8: 3, DType.INT16: 5, DType.INT4: 7}
_DENSE_VERSIONS = {DType.FLOAT32: 5, DType.INT8: 5, DType.INT16: 7, DType.INT4: 10}
"""Operator versions by what decides them, from TFLite's ``op_version.cc``."""
_PER_CHANNEL_DENSE = 12
_GROUPED = 6


def _write_bias(e: Emission, value: Value | None, x: Value) -> list[int]:
    """Returns a bias; nothing where there is none.

    Beside activations of 16 bits it has 64. Beside floats it is float: LiteRT dequantizes no int32.
    """
    if value is None:
        return []
    data, quant = value.constant, value.quant
    if data is None or quant is None:
        return [e.operand(value)]
    params = quant.params
    if not e.integers:
        real = data.map(lambda array: dequantize(array, params), dtype=DType.FLOAT32)
        return [e.constant(np.asarray(real.numpy()), value.name)]
    if x.type.dtype is not DType.INT16:
        return [e.operand(value)]
    wide = data.map(lambda array: array.astype(np.int64), dtype=DType.INT64)
    kept = QuantParams(DType.INT64, params.scale, params.zero_point, params.axis)
    return [e.quantized_constant(wide, kept, value.name)]


def _zeros(e: Emission, node: Node) -> Value:
    """Returns the bias of a convolution without one: LiteRT 2.3 refuses that, or crashes."""
    x, weight = node.operand(0).quant, node.operand(1).quant
    channels = fixed_extents(node.operand(1))[0]
    if not e.integers or x is None or weight is None:
        return constant(Constant.of(np.zeros(channels, np.float32)), None, "")
    params = derived_params(node, x.params, weight.params)
    return constant(Constant.of(np.zeros(channels, np.int32)), params, "")


def _decides(node: Node, *, integers: bool) -> DType:
    """Returns the type that an operator's version follows from."""
    if not integers:
        return DType.FLOAT32
    weight = node.operand(1).type.dtype
    return weight if weight is DType.INT4 else node.operand(0).type.dtype


def convolution(
    e: Emission, node: Node, attributes: ConvAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """CONV_2D or DEPTHWISE_CONV_2D."""
    image, weight = node.operand(0), node.operand(1)
    if image.rank != _IMAGE:
        raise NoCounterpart(f"its image has rank {image.rank}", "use 2-D convolutions")
    shape = fixed_extents(weight)
    channels = extents(image)[-1]
    if channels == -1:
        raise NoCounterpart("the number of its image's channels is open", "fix it with --extent")
    # With one channel it is both, and written as CONV_2D.
    depthwise = attributes.group == channels and shape[1] == 1 and channels > 1
    order = (1, 2, 3, 0) if depthwise else (0, 2, 3, 1)
    padding = same_or_valid(node, attributes, shape[2:])
    fields = {
        "Padding": padding,
        "StrideH": attributes.strides[0],
        "StrideW": attributes.strides[1],
        "DilationHFactor": attributes.dilations[0],
        "DilationWFactor": attributes.dilations[1],
        "FusedActivationFunction": e.activation,
    }
    kind = _decides(node, integers=e.integers)
    bias = node.optional(2) or _zeros(e, node)
    operands = [x[0], e.weight(weight, shape, order), *_write_bias(e, bias, image)]
    if depthwise:
        fields["DepthMultiplier"] = shape[0] // channels
        version = _DEPTHWISE_VERSIONS[kind]
        e.add("DEPTHWISE_CONV_2D", operands, y, "DepthwiseConv2DOptions", version, **fields)
        return
    # The version is what an older runtime refuses by: it counts whichever demand is the newest.
    version = max(_CONV_VERSIONS[kind], _GROUPED if attributes.group > 1 else 1)
    e.add("CONV_2D", operands, y, "Conv2DOptions", version, **fields)


def transposed(
    e: Emission, node: Node, attributes: ConvTransposeAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """TRANSPOSE_CONV: the result's shape, weight, image, bias."""
    image, weight = node.operand(0), node.operand(1)
    if image.rank != _IMAGE:
        raise NoCounterpart(f"its image has rank {image.rank}", "use 2-D convolutions")
    if attributes.group != 1:
        raise NoCounterpart("it has groups", "write it as one ConvTranspose per group")
    if set(attributes.dilations) != {1}:
        raise NoCounterpart("it is dilated")
    kernel = fixed_extents(weight)[2:]
    given, wanted = extents(image)[1:-1], extents(node.output)[1:-1]
    if -1 in given or -1 in wanted:
        raise NoCounterpart("its image's extents are open", "fix them with --extent")
    padding = transposed_padding(attributes, kernel, given, wanted)
    if padding is None:
        raise NoCounterpart(f"its pads {list(attributes.pads)} are none that TFLite has")
    weights = e.weight(weight, fixed_extents(weight), (1, 2, 3, 0))
    bias = _write_bias(e, node.optional(2), image)
    version = 3 if bias else 2
    version = 4 if e.activation else version
    if e.integers and image.type.dtype is DType.INT16:
        version = max(version, 3)
    e.add(
        "TRANSPOSE_CONV", [e.whole_shape(node.output, x[0]), weights, x[0], *bias], y,
        "TransposeConvOptions", version, Padding=padding, StrideH=attributes.strides[0],
        StrideW=attributes.strides[1], FusedActivationFunction=e.activation,
    )  # fmt: skip


def transposed_padding(
    attributes: ConvTransposeAttrs,
    kernel: Sequence[int],
    given: Sequence[int],
    wanted: Sequence[int],
) -> int | None:
    """Returns SAME or VALID where a convolution of the result gives the image, and pads agree."""
    for padding in (VALID, SAME):
        begins: list[int] = []
        forward: list[int] = []
        for out, stride, size in zip(wanted, attributes.strides, kernel, strict=True):
            room = out if padding == SAME else out - size + 1
            # TFLite says a transposed convolution by the convolution that it is the gradient of:
            # its result's extents are that one's image.
            forward.append(-(-room // stride))
            begins.append(max((forward[-1] - 1) * stride + size - out, 0) // 2)
        if tuple(begins) == attributes.pads[:2] and forward == list(given):
            return padding
    return None


def dense(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """FULLY_CONNECTED over the last axis."""
    weight = node.operand(1)
    shape = fixed_extents(weight)
    _write_fully_connected(e, node, x[0], e.weight(weight, shape, (0, 1)), y)


def _write_fully_connected(e: Emission, node: Node, x: int, weight: int, y: Sequence[int]) -> None:
    quant = node.operand(1).quant
    version = _DENSE_VERSIONS[_decides(node, integers=e.integers)]
    if e.integers and quant is not None and not quant.params.per_tensor:
        version = _PER_CHANNEL_DENSE
    bias = _write_bias(e, node.optional(2), node.operand(0)) or [-1]
    e.add(
        "FULLY_CONNECTED", [x, weight, *bias], y, "FullyConnectedOptions", version,
        FusedActivationFunction=e.activation, KeepNumDims=node.operand(0).rank != 2,
        WeightsFormat=0,
    )  # fmt: skip


def general_product(
    e: Emission, node: Node, attributes: GemmAttrs, x: Sequence[int], y: Sequence[int]
) -> None:
    """Gemm: FULLY_CONNECTED of a constant matrix, or BATCH_MATMUL and an addition."""
    b = node.operand(1)
    bias = node.optional(2)
    if attributes.alpha != 1.0 or (attributes.beta != 1.0 and bias is not None):
        raise NoCounterpart(f"it has alpha {attributes.alpha:g} and beta {attributes.beta:g}")
    vector = bias is None or (bias.is_constant and bias.rank == 1)
    if is_weight(b) and vector and not attributes.trans_a:
        shape = fixed_extents(b)
        _write_fully_connected(
            e, node, x[0], e.weight(b, shape, (0, 1) if attributes.trans_b else (1, 0)), y
        )
        return
    product = y[0] if bias is None else e.like(y[0], e.type_of(y[0])[1])
    operands = [x[0], e.operand(b)]
    _batch(e, operands, product, attributes.trans_a, attributes.trans_b)
    if bias is not None:
        e.add("ADD", [product, e.operand(bias)], y, "AddOptions")


def matrix_product(e: Emission, node: Node, x: Sequence[int], y: Sequence[int]) -> None:
    """BATCH_MATMUL; FULLY_CONNECTED of a constant float matrix."""
    a, b = node.operand(0), node.operand(1)
    if (a.rank or 0) < 2 or (b.rank or 0) < 2:
        raise NoCounterpart("an operand is a vector", "reshape it to a matrix")
    # Of stored integers FULLY_CONNECTED demands a weight around zero; BATCH_MATMUL takes any zero
    # point.
    if is_weight(b) and b.rank == 2 and not e.integers:
        _write_fully_connected(e, node, x[0], e.weight(b, fixed_extents(b), (1, 0)), y)
        return
    _batch(e, [x[0], e.operand(b)], y[0], False, False)


def _batch(e: Emission, operands: list[int], y: int, adj_x: bool, adj_y: bool) -> None:
    versions = {"FLOAT32": 1, "INT8": 2, "INT16": 3}
    version = versions.get(e.type_of(operands[0])[0], 1)
    e.add("BATCH_MATMUL", operands, [y], "BatchMatMulOptions", version, AdjX=adj_x, AdjY=adj_y)


ROWS: Mapping[str, WriterRow] = {
    "Dense": WriterRow(dense, kernels.product, fused=True, own=(1, 2)),
    "MatMul": WriterRow(matrix_product, kernels.of_products, own=(1,)),
    **dict(
        (
            written(CONV, convolution, kernels.product, fused=True, own=(1, 2)),
            written(CONV_TRANSPOSE, transposed, kernels.product, fused=True, own=(1, 2)),
            written(GEMM, general_product, kernels.never, own=(1, 2)),
        )
    ),
}
