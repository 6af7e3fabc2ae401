"""Quantized convolutions of images that were resized to the nearest pixel by whole factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.tvm.relax.kernels.epilogues.dequantized_sums import Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import sum_scale
from qdqbridge.tvm.relax.kernels.kernel import Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import (
    along,
    centred_weight,
    codes_of,
    extents,
    image_of,
)
from qdqbridge.tvm.relax.kernels.products.product import Operands, product
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct, Pair
from qdqbridge.tvm.relax.kernels.tiles.repeated_loops import pixels_at_once, sums_of_a_block
from qdqbridge.tvm.relax.kernels.windows.resampling import nearest_pixels

_CHANNELS = 8
"""Input channels from which fewer products are worth the sums: 3x3 behind 2x2 takes 1.00 of the
time with 4 channels, 0.78 with 8, 0.53 with 16, 0.33 with 64 (Zen 4)."""
_ROOM = 1 << 20
"""Bytes of sums of one block of channels: more than a second-level cache has are too many."""


def match_resized_conv(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Conv of bytes whose image was resized, which it then is not."""
    attributes, x = node.attributes, codes_of(node.operand(0))
    resize = node.operand(0).producer
    if not isinstance(attributes, ConvAttrs) or x is None or not place.channels_last:
        return None
    if resize is None or resize.op is not RESIZE or attributes.group != 1 or place.cpu.amx:
        return None
    source, weight = resize.operand(0), centred_weight(node)
    shape, result = extents(source.type.shape), extents(node.output.type.shape)
    repeats = _repeats(resize, place)
    if weight is None or shape is None or result is None or repeats is None:
        return None
    channels, kernel, outcome = weight.shape[1], weight.shape[2:], image_of(result)
    strides = along(attributes.strides, 1)
    if channels < _CHANNELS or strides != (1, 1) or pixels_at_once(place.cpu, kernel[1]) < 2:
        return None
    if kernel == (1, 1) or any(n % f for n, f in zip(outcome, repeats, strict=True)):
        return None

    def describe(part: int, sums: int, form: Requantize | Scaled) -> Direct:
        del part
        return Direct(
            place.cpu, shape, result, shape[0], image_of(shape), channels, x.signed,
            (kernel[0], kernel[1]), strides, along(attributes.dilations, 1),
            along(attributes.pads[: len(attributes.pads) // 2], 0), outcome, 1, len(weight), sums,
            form, place.threads, repeats=repeats,
        )  # fmt: skip

    taps = weight.transpose(0, 2, 3, 1).reshape(1, len(weight), -1, channels)
    made = product(node, Operands(x, sum_scale(x, node.operand(1)), [taps]), describe)
    if made is None or _bytes_of_sums(made) > _ROOM:
        return None
    return replace(made, inputs=(source,))


def _bytes_of_sums(kernel: Kernel) -> int:
    """Returns what the sums of one block of channels take."""
    parts: Any = kernel.description
    return sums_of_a_block(parts[0]) * parts[0].cpu.lanes * 4


def _repeats(resize: Node, place: KernelPlace) -> Pair | None:
    """Returns how often a Resize repeats rows and columns; None where it does something else."""
    tables = nearest_pixels(resize, place)
    if tables is None:
        return None
    shape = extents(resize.operand(0).type.shape)
    assert shape is not None
    found: list[int] = []
    for table, extent in zip(tables, image_of(shape), strict=True):
        factor = len(table) // extent
        if not np.array_equal(table, np.arange(extent).repeat(factor)):
            return None
        found.append(factor)
    return None if found == [1, 1] else (found[0], found[1])
