"""Convolutions and matrix products: images channels-last, weights in TFLite's layouts.

Source: TFLite's reference kernels. SAME pads as ONNX's SAME_UPPER; a weight of a Conv is
(out, height, width, in), of a depthwise one (1, height, width, in · multiplier).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import unpack_from

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.ops.shapes import same_padding
from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.schema import Op

_SAME = 0
_SPATIAL: Mapping[int, tuple[str, ...]] = {4: ("H", "W"), 5: ("D", "H", "W")}


def first(rank: int) -> list[int]:
    """Returns the permutation from channels-last to channels-first."""
    return [0, rank - 1, *range(1, rank - 1)]


def last(rank: int) -> list[int]:
    """Returns the permutation from channels-first to channels-last."""
    return [0, *range(2, rank), 1]


def channels_first(c: SubgraphConversion, x: str, rank: int) -> str:
    """Returns an image channels-first."""
    return c.to.node("Transpose", [x], perm=first(rank))


def channels_last(c: SubgraphConversion, x: str, rank: int) -> str:
    """Returns an image channels-last."""
    return c.to.node("Transpose", [x], perm=last(rank))


def same_or_valid(op: Op) -> str:
    """Returns ONNX's ``auto_pad``."""
    return "SAME_UPPER" if int(op.option("Padding")) == _SAME else "VALID"


def per_axis(op: Op, kind: str, rank: int, default: int = 1) -> list[int]:
    """Returns an option of each spatial axis: ``StrideH`` and so on.

    Raises:
        UnknownForm: No image has this rank.
    """
    if rank not in _SPATIAL:
        raise UnknownForm(f"its image has rank {rank}")
    return [int(op.option(f"{kind}{axis}", default)) for axis in _SPATIAL[rank]]


def _real_weight(c: SubgraphConversion, op: Op, place: int) -> str:
    """Returns a weight's real numbers; notes where TFLite would quantize activations for it."""
    weight, data = c.at(op, place), c.at(op, 0)
    if c.quantization(weight) is not None and data.type == "FLOAT32":
        c.note(
            "hybrid-operator", op,
            f"{op.name} has quantized weights and float activations; TFLite quantizes the "
            "activations while it runs, here they stay float",
        )  # fmt: skip
    return c.float_of(weight.index)


def _import_bias(c: SubgraphConversion, op: Op, place: int) -> str:
    """Returns a bias's real numbers, empty where there is none."""
    if not c.has(op, place):
        return ""
    tensor = c.at(op, place)
    params = tensor.quantization
    if tensor.type == "INT64" and params is not None:
        array = c.array(tensor.index)
        if array is None:
            raise UnknownForm("its bias is computed while the model runs")
        if np.abs(array).max(initial=0) <= DType.INT32.qmax and params.per_tensor:
            stored = c.to.constant(array.astype(np.int32), tensor.name or "bias")
            return c.to.node("DequantizeLinear", [stored, c.to.constant(params.scale.reshape(()))])
        return c.to.constant((array * params.scale.astype(np.float64)).astype(np.float32))
    return c.float_of(tensor.index)


def _finish(c: SubgraphConversion, op: Op, result: str, rank: int) -> None:
    """Puts the fused activation behind a channels-first result, and its transpose."""
    kind = int(op.option("FusedActivationFunction"))
    c.put(op, channels_last(c, c.activated(result, op, kind), rank))


def convolution(c: SubgraphConversion, op: Op) -> None:
    """CONV_2D, CONV_3D; groups follow from the channels."""
    rank = c.rank(op.inputs[0])
    if rank not in _SPATIAL:
        raise UnknownForm(f"its image has rank {rank}")
    weight = _real_weight(c, op, 1)
    x = channels_first(c, c.float_of(op.inputs[0]), rank)
    channels, shape = c.shape(op.inputs[0])[-1], c.shape(op.inputs[1])
    if rank == 5:  # (depth, height, width, in, out)
        weight, inner = c.to.node("Transpose", [weight], perm=[4, 3, 0, 1, 2]), shape[3]
    else:
        weight, inner = channels_first(c, weight, rank), shape[-1]
    if channels < 1 or inner < 1 or channels % inner:
        raise UnknownForm(f"its image has {channels} channels and its weight {inner}")
    result = c.to.node(
        "Conv", _present(x, weight, _import_bias(c, op, 2)), label=c.label(op),
        auto_pad=same_or_valid(op), strides=per_axis(op, "Stride", rank),
        dilations=_dilations(op, rank),
        group=channels // inner,
    )  # fmt: skip
    _finish(c, op, result, rank)


def _dilations(op: Op, rank: int) -> list[int]:
    return [int(op.option(f"Dilation{axis}Factor", 1)) for axis in _SPATIAL[rank]]


def depthwise(c: SubgraphConversion, op: Op) -> None:
    """DEPTHWISE_CONV_2D."""
    weight = c.to.node("Transpose", [_real_weight(c, op, 1)], perm=[3, 0, 1, 2])
    x = channels_first(c, c.float_of(op.inputs[0]), 4)
    result = c.to.node(
        "Conv", _present(x, weight, _import_bias(c, op, 2)), label=c.label(op),
        auto_pad=same_or_valid(op), strides=per_axis(op, "Stride", 4),
        dilations=_dilations(op, 4), group=c.shape(op.inputs[0])[-1],
    )  # fmt: skip
    _finish(c, op, result, 4)


def transposed(c: SubgraphConversion, op: Op) -> None:
    """TRANSPOSE_CONV and CONV_3D_TRANSPOSE: the result's shape, weight, image, bias."""
    rank = c.rank(op.inputs[2])
    strides = per_axis(op, "Stride", rank)
    weight = _real_weight(c, op, 1)
    if rank == 5:  # (depth, height, width, out, in)
        perm, kernel = [4, 3, 0, 1, 2], c.shape(op.inputs[1])[:3]
    else:  # (out, height, width, in)
        perm, kernel = [3, 0, 1, 2], c.shape(op.inputs[1])[1:3]
    weight = c.to.node("Transpose", [weight], perm=perm)
    wanted = _wanted(c, op)
    pads, more = _pads(op, wanted, c.shape(op.inputs[2])[1:-1], kernel, strides)
    x = channels_first(c, c.float_of(op.inputs[2]), rank)
    result = c.to.node(
        "ConvTranspose", _present(x, weight, _import_bias(c, op, 3)), label=c.label(op),
        strides=strides, pads=pads, output_padding=more,
    )  # fmt: skip
    _finish(c, op, result, rank)


def _wanted(c: SubgraphConversion, op: Op) -> Sequence[int]:
    """Returns the spatial extents of the result: as asked for, or as its tensor declares them."""
    if c.array(op.inputs[0]) is not None:
        return c.numbers(op, 0)[1:-1]
    declared = c.shape(op.outputs[0])[1:-1]
    if -1 in declared:
        raise UnknownForm("its result's extents are computed while the model runs")
    return declared


def _pads(
    op: Op, wanted: Sequence[int], given: Sequence[int], kernel: Sequence[int],
    strides: Sequence[int],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Returns pads (begins, ends) and output padding that give the wanted extents.

    TFLite cuts ``(given - 1) · stride + kernel - wanted`` elements off, half of them (rounded
    down) at the begin; a negative number of them are zeros at the end.
    """
    if -1 in given:
        raise UnknownForm("its image's extents are open")
    begins: list[int] = []
    ends: list[int] = []
    more: list[int] = []
    same = int(op.option("Padding")) == _SAME
    for out, into, size, stride in zip(wanted, given, kernel, strides, strict=True):
        whole = (into - 1) * stride + size
        # VALID leaves no begin: its windows end inside the result.
        begin = max(same_padding(out, size, stride), 0) // 2 if same else 0
        begins.append(begin)
        ends.append(max(whole - out - begin, 0))
        more.append(max(out + begin - whole, 0))
    return [*begins, *ends], more


def dense(c: SubgraphConversion, op: Op) -> None:
    """FULLY_CONNECTED: ``x · wᵀ + b`` over the last axis of the weight."""
    if int(op.option("WeightsFormat")) != 0:
        raise UnknownForm("its weights are shuffled")
    units, depth = c.shape(op.inputs[1])
    x, weight, bias = c.float_of(op.inputs[0]), _real_weight(c, op, 1), _import_bias(c, op, 2)
    shape = c.shape(op.inputs[0])
    keep = bool(op.option("KeepNumDims", False))
    if not keep and (len(shape) != 2 or shape[-1] != depth):
        x = c.to.node("Reshape", [x, c.to.constant(np.asarray([-1, depth], np.int64))])
        shape = (-1, depth)
    if len(shape) == 2:
        result = c.to.node("Gemm", _present(x, weight, bias), label=c.label(op), transB=1)
    else:
        weight = c.to.node("Transpose", [weight], perm=[1, 0])
        result = c.to.node("MatMul", [x, weight], label=c.label(op))
        if bias:
            result = c.to.node("Add", [result, bias], label=c.label(op))
    result = c.activated(result, op, int(op.option("FusedActivationFunction")))
    declared = c.tensor(op.outputs[0]).shape
    if not keep and declared is not None and len(declared) != 2:
        target = [*declared[:-1], units]
        if target.count(-1) > 1:
            raise UnknownForm("its result has more than one open extent")
        result = c.to.node("Reshape", [result, c.to.constant(np.asarray(target, np.int64))])
    c.put(op, result)


def batch_product(c: SubgraphConversion, op: Op) -> None:
    """BATCH_MATMUL; either matrix may be transposed before."""
    operands: list[str] = []
    for place, flag in enumerate(("AdjX", "AdjY")):
        x = c.float_of(op.inputs[place])
        if op.option(flag, False):
            rank = c.rank(op.inputs[place])
            perm = [*range(rank - 2), rank - 1, rank - 2]
            x = c.to.node("Transpose", [x], perm=perm)
        operands.append(x)
    c.put(op, c.to.node("MatMul", operands, label=c.label(op)))


def media_pipe_transposed(c: SubgraphConversion, op: Op) -> None:
    """MediaPipe's Convolution2DTransposeBias, whose options are TFLite's in C.

    Source: ``mediapipe/util/tflite/operations/transpose_conv_bias.cc``: padding, stride width,
    stride height (int32 each); the weight is (out, height, width, in).
    """
    if len(op.custom) < 12:
        raise UnknownForm("its options are missing")
    padding, across, down = unpack_from("<iii", op.custom)
    x = channels_first(c, c.float_of(op.inputs[0]), 4)
    weight = c.to.node("Transpose", [c.float_of(op.inputs[1])], perm=[3, 0, 1, 2])
    kernel, strides = c.shape(op.inputs[1])[1:3], (down, across)
    given = c.shape(op.inputs[0])[1:3]
    if -1 in given or min(strides) < 1 or padding not in (1, 2):
        raise UnknownForm("its image's extents are open, or its options make no sense")
    same = padding == 1
    begins = [max(k - s, 0) // 2 if same else 0 for k, s in zip(kernel, strides, strict=True)]
    ends = [
        max(k - s, 0) - b if same else 0 for k, s, b in zip(kernel, strides, begins, strict=True)
    ]
    more = [max(s - k, 0) if same else 0 for k, s in zip(kernel, strides, strict=True)]
    result = c.to.node(
        "ConvTranspose", _present(x, weight, _import_bias(c, op, 2)), label=c.label(op),
        strides=list(strides), pads=[*begins, *ends], output_padding=more,
    )  # fmt: skip
    c.put(op, channels_last(c, result, 4))


def _present(*operands: str) -> list[str]:
    return [name for name in operands if name]


def embedding(c: SubgraphConversion, op: Op) -> None:
    """EMBEDDING_LOOKUP: rows of a table by index."""
    table = c.float_of(op.inputs[1])
    c.put(op, c.to.node("Gather", [table, c.long(op, 0)], label=c.label(op), axis=0))


ROWS: Mapping[str, Row] = {
    "BATCH_MATMUL": batch_product,
    "CONV_2D": convolution,
    "CONV_3D": convolution,
    "CONV_3D_TRANSPOSE": transposed,
    "CUSTOM Convolution2DTransposeBias": media_pipe_transposed,
    "DEPTHWISE_CONV_2D": depthwise,
    "EMBEDDING_LOOKUP": embedding,
    "FULLY_CONNECTED": dense,
    "TRANSPOSE_CONV": transposed,
}
