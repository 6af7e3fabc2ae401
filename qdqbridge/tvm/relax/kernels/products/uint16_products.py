"""Dense products and convolutions of uint16 activations with weights of up to 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product as pairs

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.numerics import multiplier
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.attributes import ConvAttrs, ConvTransposeAttrs, GemmAttrs
from qdqbridge.core.ops.shapes import span
from qdqbridge.tvm.relax.kernels.codegen.codes import storage, words_of
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import integer_bias, sum_scale
from qdqbridge.tvm.relax.kernels.kernel import (
    ActivationCodes,
    Array,
    Kernel,
    KernelPlace,
    along,
    by_channel,
    centred_weight,
    codes_of,
    extents,
    image_of,
    known_extent,
)
from qdqbridge.tvm.relax.kernels.products.convolution import (
    Operands,
    merge_groups,
    product,
    runs,
    window_of,
)
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant, real_product
from qdqbridge.tvm.relax.kernels.products.names import name_of
from qdqbridge.tvm.relax.kernels.tiles.byte_halves import Halves
from qdqbridge.tvm.relax.kernels.tiles.direct import build_parts
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, Pair, PixelPlacement
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
    # A word is two bytes that the tile reads one beside the other: twice as many channels of uint8.
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


# ---- Quantized transposed convolutions: one convolution for every remainder of the stride --------
# Element ``o`` of the result, with ``t = o + pad``, sums ``x[i] w[k]`` over ``t = i s + k``. All
# elements with one remainder ``r = t mod s`` see the taps ``k = r, r + s, ...`` only, as a
# convolution of stride 1 does whose kernel those taps are, in reverse. Nothing is multiplied by the
# zeros that a transposed convolution is said to put between its activations.


@dataclass(frozen=True, slots=True)
class Phase:
    """The elements of one remainder along one axis.

    Attributes:
        first: The first element of the result.
        count: How many there are.
        taps: Elements of the kernel, as the convolution has them.
        begin: Activations before the first one that its first element sees.
    """

    first: int
    count: int
    taps: tuple[int, ...]
    begin: int


def phases(kernel: int, stride: int, pad: int, extent: int) -> list[Phase] | None:
    """Returns the phases of an axis.

    Args:
        kernel: Elements of the kernel.
        pad: Elements cropped at the beginning.
        extent: Elements of the result.

    Returns:
        None where elements see no tap, or the first activations are not looked at.
    """
    found: list[Phase] = []
    for remainder in range(stride):
        first = (remainder - pad) % stride
        count = len(range(first, extent, stride))
        taps = tuple(range(remainder, kernel, stride))[::-1]
        if not count:
            continue
        begin = len(taps) - 1 - (first + pad) // stride
        if not taps or begin < 0:
            return None
        found.append(Phase(first, count, taps, begin))
    return found


def match_conv_transpose(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a ConvTranspose of bytes, or of float32, whose weight is constant."""
    attributes, x = node.attributes, codes_of(node.operand(0))
    if not isinstance(attributes, ConvTransposeAttrs) or not place.channels_last:
        return None
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    weight = _as_conv_weight(node, attributes, x)
    if weight is None or shape is None or result is None or len(shape) not in (3, 4):
        return None
    axes = _transposed_phases(attributes, weight, image_of(result))
    if axes is None:
        return None
    merged, groups = merge_groups(weight, attributes.group, place.cpu.lanes)
    grid = list(pairs(*axes))
    kernels = [merged[:, :, rows.taps][..., columns.taps] for rows, columns in grid]
    strides, outcome = along(attributes.strides, 1), image_of(result)

    def describe(part: int, sums: int, form: Requantize | Plain | Scaled) -> Direct:
        rows, columns = grid[part]
        placement = PixelPlacement(
            rows.first * outcome[1] + columns.first, strides[0] * outcome[1], strides[1],
            outcome[0] * outcome[1],
        )  # fmt: skip
        return Direct(
            place.cpu, shape, result, shape[0], image_of(shape), known_extent(shape[-1]),
            x is not None and x.signed, (len(rows.taps), len(columns.taps)), (1, 1), (1, 1),
            (rows.begin, columns.begin), (rows.count, columns.count), groups, len(weight), sums,
            form, place.threads, placement,
        )  # fmt: skip

    weights = [runs(own, groups, 1) for own in kernels]
    if x is None:
        return real_product(node, weights, describe)
    geometry = geometry_of(node)
    assert geometry is not None
    scale = geometry.spread(sum_scale(x, node.operand(1)))
    scale = scale if scale.size == len(weight) else scale[:1]
    return product(node, Operands(x, scale, weights), describe)


def _as_conv_weight(
    node: Node, attributes: ConvTransposeAttrs, x: ActivationCodes | None
) -> Array | None:
    """Returns the weight as one of a convolution, (channels, inputs of a group, rows, columns)."""
    if x is not None:
        weight = centred_weight(node)
    elif is_real(node.operand(0)) and is_real(node.output) and set(attributes.dilations) == {1}:
        weight = _finite(real_constant(node.operand(1)))
    else:
        return None
    if weight is None:
        return None
    if weight.ndim == 3:
        weight = weight[:, :, None]
    inputs, channels = weight.shape[:2]
    split = weight.reshape(attributes.group, inputs // attributes.group, *weight.shape[1:])
    permuted = split.swapaxes(1, 2)
    dilations = along(attributes.dilations, 1)
    spread = [span(n, d) for n, d in zip(weight.shape[2:], dilations, strict=True)]
    wide = np.zeros((*permuted.shape[:3], *spread), weight.dtype)
    wide[..., :: dilations[0], :: dilations[1]] = permuted
    return wide.reshape(attributes.group * channels, *wide.shape[2:])


def _finite(weight: Array | None) -> Array | None:
    """Returns a weight that may be multiplied by the zeros around an image, else None."""
    return None if weight is None or not np.isfinite(weight).all() else weight


def _transposed_phases(
    attributes: ConvTransposeAttrs, weight: Array, result: tuple[int, int]
) -> tuple[list[Phase], list[Phase]] | None:
    """Returns the phases of rows and of columns."""
    half = len(attributes.pads) // 2
    strides, begin = along(attributes.strides, 1), along(attributes.pads[:half], 0)
    rows, columns = (phases(weight.shape[2 + i], strides[i], begin[i], result[i]) for i in (0, 1))
    return None if rows is None or columns is None else (rows, columns)
