"""Products of float32 on the register tile, in float regions: weights are dequantized.

Sums are formed in float32, one fused multiply-add after the other; the last bits are not those of
the plain legalization, which TVM and LLVM sum in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.ops.attributes import ClipAttrs, GemmAttrs
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.unary import RELU
from qdqbridge.tvm.relax.kernels.codegen.codes import alike
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel
from qdqbridge.tvm.relax.kernels.products.names import name_of
from qdqbridge.tvm.relax.kernels.tiles.direct import build_parts
from qdqbridge.tvm.relax.kernels.tiles.geometry import Direct
from qdqbridge.tvm.relax.kernels.tiles.packing import padded, per_lane


def is_real(value: Value) -> bool:
    """True for float32 values that are not quantized."""
    return value.quant is None and value.type.dtype is DType.FLOAT32


def real_constant(value: Value | None) -> Array | None:
    """Returns a constant as float32, dequantized where it is quantized; None for other values."""
    if value is None or value.constant is None:
        return None
    stored = value.constant.numpy()
    if value.quant is not None:
        if not value.quant.params.storage_dtype.is_integer:
            return None
        return dequantize(stored, value.quant.params).astype(np.float32)
    return stored if value.type.dtype is DType.FLOAT32 else None  # pyright: ignore[reportReturnType]


def real_product(
    node: Node, weights: Sequence[Array], describe: Callable[[int, int, Plain], Direct]
) -> Kernel | None:
    """Returns the kernel of a product of float32 with a constant weight.

    Args:
        node: The node; its operand 2 is a bias.
        weights: float32, (groups, channels of a group, runs, length), for every part.
        describe: Makes the description of a part: its index, 1, and the form of the results.

    Returns:
        None where the bias is not constant along the channels.
    """
    groups, channels = weights[0].shape[0], weights[0].shape[0] * weights[0].shape[1]
    bias = real_bias(node, channels)
    if bias is None:
        return None
    parts = [describe(i, 1, Plain()) for i in range(len(weights))]
    arrays: list[Array] = []
    for part, own in zip(parts, weights, strict=True):
        arrays += [pack_reals(part.cpu, own), per_lane(part.cpu, bias, groups)]
    work = sum(2 * part.counted * own.size for part, own in zip(parts, weights, strict=True))
    return Kernel(
        f"float_{name_of(node, parts)}", tuple(parts), build_parts, (node.operand(0),),
        tuple(arrays), (node.output,), work, extend,
    )  # fmt: skip


def pack_reals(cpu: Cpu, weights: Array) -> Array:
    """Returns weights as (groups, blocks, runs, length, lanes, 1), zeros filling the last block."""
    wide = padded(weights.astype(np.float32), 1, cpu.lanes)
    groups, channels, runs, length = wide.shape
    split = wide.reshape(groups, channels // cpu.lanes, cpu.lanes, runs, length, 1)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2, 5))


def real_bias(node: Node, channels: int) -> Array | None:
    """Returns the bias of a product per channel, zeros without one; None for other operands."""
    value = node.optional(2)
    if value is None:
        return np.zeros(channels, np.float32)
    bias = real_constant(value)
    if bias is None or bias.size not in (1, channels) or bias.shape[-1:] != (bias.size,):
        return None
    beta = node.attributes.beta if isinstance(node.attributes, GemmAttrs) else 1.0
    return np.broadcast_to(bias.reshape(-1) * np.float32(beta), (channels,))


# ---- what follows ---------------------------------------------------------------------------


def extend(kernel: Kernel, node: Node) -> Kernel | None:
    """Returns the kernel that also adds another tensor, or bounds the results."""
    parts: Any = kernel.description
    form: Plain = parts[0].form
    if form.clamped or not is_real(node.output):
        return None
    bounds = _bounds(node)
    if bounds is not None:
        constants = (*kernel.constants, np.asarray(bounds, np.float32))
        return _changed(kernel, node, replace(form, clamped=True), constants=constants)
    if node.op is not ADD or form.added or node.operand(0) is node.operand(1):
        return None
    other = node.operand(int(node.operand(0) is kernel.outputs[0]))
    if other.constant is not None or not is_real(other):
        return None
    if not alike(kernel.outputs[0], other, node.output):
        return None
    inputs = (*kernel.inputs, other)
    return _changed(kernel, node, replace(form, added=True), inputs=inputs)


def _bounds(node: Node) -> tuple[float, float] | None:
    if node.op is RELU:
        return 0.0, math.inf
    attributes = node.attributes
    if not isinstance(attributes, ClipAttrs):
        return None
    low = -math.inf if attributes.low is None else attributes.low
    return low, math.inf if attributes.high is None else attributes.high


def _changed(kernel: Kernel, node: Node, form: Plain, **fields: Any) -> Kernel:
    parts: Any = kernel.description
    return replace(
        kernel, name=f"{kernel.name}_{node.op.name.lower()}", outputs=(node.output,),
        description=tuple(replace(part, form=form) for part in parts), **fields,
    )  # fmt: skip
