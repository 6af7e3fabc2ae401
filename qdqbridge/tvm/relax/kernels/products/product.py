"""What every product of bytes with a constant weight shares: its operands and its kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Scaled
from qdqbridge.tvm.relax.kernels.epilogues.fused_operators import extend
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.epilogues.requantization import (
    integer_bias,
    requantization,
    scaled,
)
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel
from qdqbridge.tvm.relax.kernels.operands import ActivationCodes
from qdqbridge.tvm.relax.kernels.products.names import name_of
from qdqbridge.tvm.relax.kernels.tiles.direct import build_parts
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.packing import pack, per_lane, reach

Form = Requantize | Scaled
"""How sums of integers become results."""


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """What a product computes with.

    Attributes:
        x: How its activations are stored.
        scale: float32 scale of the sums, one entry or one per output channel.
        weights: Centred weights, (groups, channels of a group, runs, length); several arrays where
            parts of the result have weights of their own.
    """

    x: ActivationCodes
    scale: Array
    weights: Sequence[Array]


def product(
    node: Node, operands: Operands, describe: Callable[[int, int, Form], Direct]
) -> Kernel | None:
    """Returns the kernel of a node.

    Args:
        node: The node; its operand 2 is a bias.
        operands: What it computes with.
        describe: Makes the description of a part: its index, the sums that make a weight, and the
            form of the epilogue.

    Returns:
        None where sums could leave int32, the result is neither codes nor float32, or codes have a
        bias that is not an integer.
    """
    x, weights = operands.x, operands.weights
    groups, channels = weights[0].shape[0], weights[0].shape[0] * weights[0].shape[1]
    real = scaled(node, operands.scale, channels)
    result = real or requantization(node.output, operands.scale)
    whole, bias = integer_bias(node, operands.scale, channels)
    if result is None or not (whole or real):
        return None
    parts: list[Direct] = []
    arrays: list[Array] = []
    for i, own in enumerate(weights):
        cpu = describe(i, 1, result.form).cpu
        packed = pack(cpu, own, x.zero_point, bias)
        if packed is None or not result.holds(reach(packed, own)):
            return None
        parts.append(describe(i, packed.parts, result.form))
        arrays += [packed.weights, packed.bias]
    spread = np.broadcast_to(result.multiplier, (channels,))
    multiplier = per_lane(parts[0].cpu, spread, groups)
    ends = np.asarray((*result.ends, x.zero_point), np.int32)
    work = sum(2 * part.counted * own.size for part, own in zip(parts, weights, strict=True))
    constants = [*arrays, multiplier, ends]
    if result.added is not None:
        constants.append(per_lane(parts[0].cpu, result.added, groups))
    return Kernel(
        name_of(node, parts), tuple(parts), build_parts, (node.operand(0),), tuple(constants),
        (node.output,), work, None if real else extend,
    )  # fmt: skip
