"""Blocks of an image that become channels or batches, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbridge.tflite_io.conversion import Row, SubgraphConversion, UnknownForm
from qdqbridge.tflite_io.operators.products import channels_first, channels_last
from qdqbridge.tflite_io.schema import Op


def depth_to_space(c: SubgraphConversion, op: Op) -> None:
    """DEPTH_TO_SPACE: blocks lie row, column, channel."""
    x = channels_first(c, c.real(op.inputs[0]), 4)
    size = int(op.option("BlockSize"))
    result = c.to.node("DepthToSpace", [x], label=c.label(op), blocksize=size, mode="DCR")
    c.put(op, channels_last(c, result, 4))


def space_to_depth(c: SubgraphConversion, op: Op) -> None:
    """SPACE_TO_DEPTH."""
    x = channels_first(c, c.real(op.inputs[0]), 4)
    size = int(op.option("BlockSize"))
    result = c.to.node("SpaceToDepth", [x], label=c.label(op), blocksize=size)
    c.put(op, channels_last(c, result, 4))


def batch_to_space(c: SubgraphConversion, op: Op) -> None:
    """BATCH_TO_SPACE_ND (tensor, block, crops): reshape, transpose, reshape, crop."""
    block = c.numbers(op, 1)
    crops = np.asarray(c.numbers(op, 2)).reshape(-1, 2)
    batch, *extents = c.shape(op.inputs[0])
    count, spatial = len(block), extents[: len(block)]
    rest = extents[count:]
    need_known((batch, *extents))
    outer = batch // int(np.prod(block))
    x = c.to.node("Reshape", [c.real(op.inputs[0]), c.longs([*block, outer, *spatial, *rest])])
    perm = [count]
    for axis in range(count):
        perm += [count + 1 + axis, axis]
    perm += range(2 * count + 1, 2 * count + 1 + len(rest))
    x = c.to.node("Transpose", [x], perm=perm)
    whole = [s * b for s, b in zip(spatial, block, strict=True)]
    x = c.to.node("Reshape", [x, c.longs([outer, *whole, *rest])], label=c.label(op))
    ends = [w - int(e) for w, e in zip(whole, crops[:, 1], strict=True)]
    operands = [x, c.longs(crops[:, 0]), c.longs(ends), c.longs(range(1, count + 1))]
    c.put(op, c.to.node("Slice", operands, label=c.label(op)))


def space_to_batch(c: SubgraphConversion, op: Op) -> None:
    """SPACE_TO_BATCH_ND (tensor, block, pads): pad, reshape, transpose, reshape."""
    block = c.numbers(op, 1)
    pads = np.asarray(c.numbers(op, 2)).reshape(-1, 2)
    batch, *extents = c.shape(op.inputs[0])
    count, rest = len(block), extents[len(block) :]
    need_known((batch, *extents))
    zeros = np.zeros(len(rest), np.int64)
    amounts = np.concatenate([[0], pads[:, 0], zeros, [0], pads[:, 1], zeros]).astype(np.int64)
    x = c.to.node("Pad", [c.real(op.inputs[0]), c.to.constant(amounts)], label=c.label(op))
    padded = [e + int(p.sum()) for e, p in zip(extents, pads, strict=False)]
    shape = [batch]
    for extent, size in zip(padded, block, strict=True):
        shape += [extent // size, size]
    x = c.to.node("Reshape", [x, c.longs([*shape, *rest])])
    perm = [2 * axis + 2 for axis in range(count)] + [0]
    perm += [2 * axis + 1 for axis in range(count)]
    perm += range(2 * count + 1, 2 * count + 1 + len(rest))
    x = c.to.node("Transpose", [x], perm=perm)
    inner = [extent // size for extent, size in zip(padded, block, strict=True)]
    target = [batch * int(np.prod(block)), *inner, *rest]
    c.put(op, c.to.node("Reshape", [x, c.longs(target)], label=c.label(op)))


def need_known(extents: Sequence[int]) -> None:
    """Refuses open extents.

    Raises:
        UnknownForm: One is open.
    """
    if -1 in extents:
        raise UnknownForm("its tensor's extents are open")


ROWS: Mapping[str, Row] = {
    "BATCH_TO_SPACE_ND": batch_to_space,
    "DEPTH_TO_SPACE": depth_to_space,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPACE_TO_DEPTH": space_to_depth,
}
