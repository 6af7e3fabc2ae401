"""From the sums of a product to its result: biases, multipliers, operands of the epilogue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import multiplier
from qdqbridge.core.ops.accumulator import with_bias
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Scaled
from qdqbridge.tvm.relax.kernels.epilogues.integer_sums import Requantize
from qdqbridge.tvm.relax.kernels.kernel import ActivationCodes, Array, codes_of
from qdqbridge.tvm.relax.kernels.products.float_products import is_real

_REACH = 1 << 30
"""Rounded products below it fit int32 with a zero point added."""


@dataclass(frozen=True, slots=True, eq=False)
class Requantization:
    """What belongs to one result.

    Attributes:
        form: The shape of the code.
        multiplier: float32, one entry or one per channel.
        ends: Zero point, smallest and largest code, as uint8 codes; of floats they say nothing.
        added: float32, what is added to floats, one entry per channel; None for nothing.
    """

    form: Requantize | Scaled
    multiplier: Array
    ends: tuple[int, int, int]
    added: Array | None = None

    def holds(self, largest: int) -> bool:
        """True where sums up to ``largest`` become numbers that int32 holds, or floats."""
        if isinstance(self.form, Scaled):
            return True
        reach = largest * float(np.abs(self.multiplier).max(initial=0))
        return np.isfinite(reach) and reach < _REACH


def requantization(result: Value, scale: Array) -> Requantization | None:
    """Returns how sums of ``scale`` (float32) become the codes of a result."""
    codes = codes_of(result)
    if codes is None:
        return None
    params = codes.params
    ends = codes.zero_point, codes.code(params.qmin), codes.code(params.qmax)
    with np.errstate(all="ignore"):
        factor = multiplier(scale, denominator=params.scale)
    form = Requantize(ends[0] != 0, ends[1:] != (0, 255), codes.signed)
    return Requantization(form, factor.reshape(-1), ends)


def scaled(node: Node, scale: Array, channels: int) -> Requantization | None:
    """Returns how sums of ``scale`` (float32) become a result of floats; None for other results."""
    if not is_real(node.output):
        return None
    whole, _ = integer_bias(node, scale, channels)
    added = None if whole else _real_bias(node, channels)
    if not whole and added is None:
        return None
    return Requantization(Scaled(added is not None), scale.reshape(-1), (0, 0, 0), added)


def _real_bias(node: Node, channels: int) -> Array | None:
    """Returns a constant bias of one entry per channel as float32."""
    bias = node.operand(2)
    if bias.constant is None or bias.rank != 1 or bias.constant.size != channels:
        return None
    zeros = np.zeros(channels, np.int64)
    _, real = with_bias(zeros, np.zeros(1, np.float32), bias.constant.numpy(), bias.type)
    return real


def integer_bias(node: Node, scale: Array, channels: int) -> tuple[bool, Array | None]:
    """Returns whether a bias can be added to the sums, and the bias (None without one)."""
    bias = node.optional(2)
    if bias is None:
        return True, None
    if bias.constant is None or bias.rank != 1 or bias.constant.size != channels:
        return False, None
    zeros = np.zeros(channels, np.int64)
    total, real = with_bias(zeros, scale.reshape(-1), bias.constant.numpy(), bias.type)
    return real is None, total


def sum_scale(x: ActivationCodes, weight: Value, alpha: float = 1.0) -> Array:
    """Returns the scale of the sums, ``f32(f32(alpha * sx) * sw)``: one entry, or per channel."""
    assert weight.quant is not None
    first = x.params.scale.astype(np.float32)
    if alpha != 1.0:
        first = np.asarray(np.float32(alpha) * first, np.float32)
    return np.asarray(first * weight.quant.params.scale.astype(np.float32), np.float32).reshape(-1)
