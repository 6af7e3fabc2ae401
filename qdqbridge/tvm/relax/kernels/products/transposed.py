"""Quantized transposed convolutions: one convolution for every remainder of the stride.

Element ``o`` of the result, with ``t = o + pad``, sums ``x[i] w[k]`` over ``t = i s + k``. All
elements with one remainder ``r = t mod s`` see the taps ``k = r, r + s, ...`` only, as a
convolution of stride 1 does whose kernel those taps are, in reverse. Nothing is multiplied by the
zeros that a transposed convolution is said to put between its activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as pairs

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.operator import geometry_of
from qdqbridge.core.ops.attributes import ConvTransposeAttrs
from qdqbridge.core.ops.shapes import span
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import sum_scale
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import (
    ActivationCodes,
    along,
    centred_weight,
    codes_of,
    extents,
    image_of,
    known_extent,
)
from qdqbridge.tvm.relax.kernels.products.convolution import merge_groups, runs
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_constant, real_product
from qdqbridge.tvm.relax.kernels.products.product import Operands, product
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, PixelPlacement


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
        stride: The stride.
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
