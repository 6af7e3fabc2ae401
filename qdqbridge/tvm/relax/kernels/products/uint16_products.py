"""Dense products and convolutions of uint16 activations with weights of up to 8 bits."""

from __future__ import annotations

import math

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import multiplier
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ConvAttrs, GemmAttrs
from qdqbridge.tvm.relax.kernels.codegen.codes import storage, words_of
from qdqbridge.tvm.relax.kernels.epilogues.requantization import integer_bias
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import by_channel, centred_weight, extents, known_extent
from qdqbridge.tvm.relax.kernels.products.convolution import merge_groups, runs, window_of
from qdqbridge.tvm.relax.kernels.products.names import name_of
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import Halves
from qdqbridge.tvm.relax.kernels.tiles.direct import build_parts
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, Pair
from qdqbridge.tvm.relax.kernels.tiles.packing import pack

_REACH = 1 << 30
"""Rounded products below it fit int32 with a zero point added."""
_MOST = (1 << 16) - 1


def match_dense(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of rows of uint16 by a constant matrix."""
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    w = node.operand(1)
    gemm = node.attributes if isinstance(node.attributes, GemmAttrs) else GemmAttrs()
    if shape is None or result is None or w.rank != 2 or gemm != GemmAttrs(trans_b=gemm.trans_b):
        return None
    weight = centred_weight(node)
    if weight is None:
        return None
    weight = by_channel(weight, node)
    batch = None if shape[0] is None and len(shape) > 1 else 1
    count = math.prod(extent for extent in shape[:-1] if extent is not None)
    grid = (1, count), (1, 1), (1, 1), (1, 1), (0, 0), (1, count)
    return _uint16_product_kernel(node, place, weight[None, :, None], batch, grid)


def match_convolution(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Conv of images or sequences of uint16, channels-last."""
    attributes, weight = node.attributes, centred_weight(node)
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    if not isinstance(attributes, ConvAttrs) or not place.channels_last or weight is None:
        return None
    if shape is None or result is None or len(shape) not in (3, 4):
        return None
    weight = weight[:, :, None] if len(shape) == 3 else weight
    if attributes.group > 1 and weight.shape[1] == 1:
        return None  # most weights would be zeros
    merged, groups = merge_groups(weight, attributes.group, place.cpu.lanes)
    kernel = weight.shape[2], weight.shape[3]
    window = window_of(attributes, shape, result, kernel, place.threads)
    grid = (
        window.image,
        window.kernel,
        window.strides,
        window.dilations,
        window.begin,
        window.result,
    )
    return _uint16_product_kernel(
        node, place, runs(merged, groups, attributes.dilations[-1]), shape[0], grid
    )


Grid = tuple[Pair, Pair, Pair, Pair, Pair, Pair]
"""Image, kernel, strides, dilations, padding and result of a :class:`~.geometry.Direct`."""


def _uint16_product_kernel(
    node: Node, place: KernelPlace, weight: Array, batch: int | None, grid: Grid
) -> Kernel | None:
    """Returns the kernel of a product with a weight of (groups, channels, runs, length)."""
    x, result, cpu = words_of(node.operand(0)), words_of(node.output), place.cpu
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    if x is None or result is None or x.storage_dtype is not DType.UINT16:
        return None
    groups, channels = weight.shape[0], weight.shape[0] * weight.shape[1]
    found = _finish(node, x, result, weight)
    packed = (
        pack(cpu, _paired(weight, cpu.lanes), 0, None)
        if _columns_fill_lanes(weight, cpu.lanes)
        else None
    )
    if found is None or packed is None or shape is None or outcome is None:
        return None
    form, factors, offsets = found
    image, kernel, strides, dilations, begin, end = grid
    direct = Direct(
        cpu, shape, outcome, batch, image, 2 * known_extent(shape[-1]), False, kernel, strides,
        dilations, begin, end, groups, 2 * channels, packed.parts, form, place.threads,
    )  # fmt: skip
    ends = np.asarray(
        (int(result.zero_point), result.qmin, result.qmax, int(x.zero_point)), np.int32
    )
    work = 2 * math.prod(end) * (batch or 1) * weight.size
    constants = packed.weights, packed.bias, factors, ends, offsets
    return Kernel(
        f"{name_of(node, (direct,))}_16_bits", (direct,), build_parts, (node.operand(0),),
        constants, (node.output,), work,
    )  # fmt: skip


def _columns_fill_lanes(weight: Array, lanes: int) -> bool:
    return weight.shape[1] % lanes == 0


def _paired(weight: Array, lanes: int) -> Array:
    """Returns weights of low bytes, of high bytes, block after block, with zeros in between."""
    groups, channels, count, length = weight.shape
    wide = np.zeros((groups, channels // lanes, 2, lanes, count, length, 2), weight.dtype)
    for half in (0, 1):
        wide[:, :, half, :, :, :, half] = weight.reshape(groups, -1, lanes, count, length)
    return wide.reshape(groups, 2 * channels, count, 2 * length)


def _finish(
    node: Node, x: QuantParams, result: QuantParams, weight: Array
) -> tuple[Halves, Array, Array] | None:
    """Returns the form of the results, multipliers and offsets; None where they do not fit."""
    w = node.operand(1).quant
    channels = weight.shape[0] * weight.shape[1]
    assert w is not None
    scale = x.scale.astype(np.float32) * w.params.scale.astype(np.float32)
    whole, bias = integer_bias(node, np.asarray(scale, np.float32).reshape(-1), channels)
    if not whole:
        return None
    with np.errstate(all="ignore"):
        factor = multiplier(np.asarray(scale, np.float32).reshape(-1), denominator=result.scale)
    sums = weight.sum(axis=(2, 3), dtype=np.int64).reshape(-1)
    offsets = (0 if bias is None else bias.astype(np.int64)) - int(x.zero_point) * sums
    magnitudes = np.abs(weight.astype(np.int32)).sum(axis=(2, 3), dtype=np.int64).reshape(-1)
    largest = int((_MOST * magnitudes + np.abs(offsets)).max(initial=0))
    reach = largest * float(np.abs(factor).max(initial=0))
    if not (np.isfinite(reach) and reach < _REACH):
        return None
    form = Halves(storage(result), largest >= 1 << 31, not result.full_range)
    spread = np.ascontiguousarray(np.broadcast_to(factor, (channels,)))
    return form, spread, np.ascontiguousarray(offsets.astype(form.offsets))
