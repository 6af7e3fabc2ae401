"""Nodes that are depthwise convolutions, and their weights in the order of the interleaved rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.tvm.relax.kernels.elementwise.lookup import table_of
from qdqbridge.tvm.relax.kernels.epilogues.fused_operators import LARGE
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import (
    integer_bias,
    requantization,
    sum_scale,
)
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import along, centred_weight, codes_of, extents, image_of
from qdqbridge.tvm.relax.kernels.products.depthwise import Depthwise, build_depthwise
from qdqbridge.tvm.relax.kernels.tiles.packing import padded, per_lane

_RANKS = (3, 4)
_LEAST = 4
"""Channels from which lanes are filled well enough."""


def match_depthwise(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Conv of which every channel stands alone, with a constant weight."""
    attributes, x = node.attributes, codes_of(node.operand(0))
    if not isinstance(attributes, ConvAttrs) or x is None or not place.channels_last:
        return None
    shape, outcome = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    weight = centred_weight(node)
    if weight is None or shape is None or outcome is None or len(shape) not in _RANKS:
        return None
    channels = weight.shape[0]
    if attributes.group != channels or weight.shape[1] != 1 or shape[-1] != channels:
        return None
    scale = sum_scale(x, node.operand(1))
    result = requantization(node.output, scale)
    whole, bias = integer_bias(node, scale, channels)
    if result is None or not whole or channels < _LEAST:
        return None
    weight = weight.astype(np.int32)
    wide = weight.reshape(channels, *([1] if len(shape) == 3 else []), *weight.shape[2:])
    form = result.form
    assert isinstance(form, Requantize)
    sums = _sums(wide, x.zero_point, bias, place.cpu.dot.centre)
    if sums is None or not result.holds(sums[1]) or not _fits(wide, place):
        return None
    d = Depthwise(
        place.cpu, shape, outcome, shape[0], image_of(shape), channels, x.signed,
        (wide.shape[1], wide.shape[2]), along(attributes.strides, 1),
        along(attributes.dilations, 1),
        along(attributes.pads[: len(attributes.pads) // 2], 0), image_of(outcome), form,
        place.threads,
    )  # fmt: skip
    multiplier = per_lane(place.cpu, np.broadcast_to(result.multiplier, (channels,)), 1)
    ends = np.asarray((*result.ends, x.zero_point), np.int32)
    constants = pack(d, wide), per_lane(place.cpu, sums[0], 1), multiplier, ends
    work = 2 * (shape[0] or 1) * math.prod(d.result) * wide.size
    name = f"depthwise_{d.kernel[0]}x{d.kernel[1]}_s{d.strides[0]}_{channels}"
    name += f"_{d.result[0]}x{d.result[1]}"
    return Kernel(
        name, d, build_depthwise, (node.operand(0),), constants, (node.output,), work, extend
    )


def extend(kernel: Kernel, node: Node) -> Kernel | None:
    """Returns the kernel of a depthwise convolution that also computes a function of its codes.

    Args:
        kernel: The kernel, without such a function.
        node: The node that alone reads its result.
    """
    d = kernel.description
    assert isinstance(d, Depthwise)
    found = table_of(node) if d.cpu.permutes and not d.form.table and not d.form.signed else None
    if found is None or found[0] is not kernel.outputs[0]:
        return None
    if math.prod(extent or 1 for extent in d.outcome) < LARGE:
        return None
    form = replace(d.form, table=str(found[1].dtype))
    return replace(
        kernel, name=f"{kernel.name}_{node.op.name.lower()}", description=replace(d, form=form),
        constants=(*kernel.constants, found[1]), outputs=(node.output,),
    )  # fmt: skip


def pack(d: Depthwise, weight: Array) -> Array:
    """Returns weights of (channels, rows, columns) as (blocks, uses, columns, lanes, depth)."""
    channels, rows, columns = weight.shape
    depth = d.cpu.depth
    found = np.zeros((len(d.uses), columns, channels, depth), weight.dtype)
    for use, (row, group) in enumerate(d.uses):
        for i in range(depth):
            tap = group * depth + i - row * d.strides[0]
            if 0 <= tap < rows:
                found[use, :, :, i] = weight[:, tap].T
    lanes = padded(found, 2, d.cpu.lanes)
    split = lanes.reshape(len(d.uses), columns, d.blocks, d.cpu.lanes, depth)
    packed = split.transpose(2, 0, 1, 3, 4)
    return np.ascontiguousarray(packed, d.cpu.dot.weight)


def _sums(
    weight: Array, zero_point: int, bias: Array | None, centre: int
) -> tuple[Array, int] | None:
    """Returns what sums begin with, and a bound of all sums; None where int32 is too small."""
    flat = weight.reshape(len(weight), -1).astype(np.int64)
    start = -zero_point * flat.sum(axis=1)
    if bias is not None:
        start = start + bias.astype(np.int64)
    largest = int((255 * np.abs(flat).sum(axis=1) + np.abs(start)).max())
    if largest >= 1 << 31:
        return None
    return (start + centre * flat.sum(axis=1)).astype(np.int32), largest


def _fits(weight: Array, place: KernelPlace) -> bool:
    """True where weights have the type that the dot product takes."""
    return place.cpu.dot.weight != "int8" or (weight.min() >= -128 and weight.max() <= 127)
