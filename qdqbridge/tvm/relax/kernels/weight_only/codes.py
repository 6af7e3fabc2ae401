"""Products of float32 with weights of 4 or 8 bits in blocks, on dot products of bytes.

An activation is written as an integer times a scale of its own for every ``step`` neighbours of a
row, ``max |x| / 127``: as one digit of 8 bits, which is what a ``DynamicBlockDense`` is, bit for
bit, or as three of them, whose 24 bits are what a float32 has. The codes of the weight are read as
they lie in memory, so the product of a row is as fast as memory is. Everything up to the product
with both scales is exact; where an activation is infinite or no number, so is its row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.dynamic import DYNAMIC_BLOCK_DENSE
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.products.dense import rows_of
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_bias
from qdqbridge.tvm.relax.kernels.tiles.packing import padded, per_lane
from qdqbridge.tvm.relax.kernels.weight_only.dequantized import BlockedCodes, blocked_codes
from qdqbridge.tvm.relax.kernels.weight_only.loops import build_codes_product
from qdqbridge.tvm.relax.kernels.weight_only.product import NIBBLE, CodesProduct, half_unit
from qdqbridge.tvm.relax.tensors import lasting

_STEPS = (32, 16)
"""Activations that share a scale: no more, so that sums of three digits stay within int32."""
_BLOCKS = (16, 32, 64, 128, 256)
"""Activations that share a scale where they are one digit: sums stay within 24 bits."""


def match_block_dense(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a product of float32 with a weight of 4 or 8 bits in blocks.

    Of a Dense, and of a DynamicBlockDense.
    """
    rounded = DYNAMIC_BLOCK_DENSE.of(node)
    if node.op is not DENSE and rounded is None:
        return None
    size = 0 if rounded is None else rounded.block_size
    rows, weight = rows_of(node), blocked_codes(node.operand(1), size)
    if rows is None or weight is None or place.cpu.dot.code_bits < weight.bits:
        return None
    if not is_real(node.operand(0)) or not is_real(node.output):
        return None
    steps = [step for step in _BLOCKS if step == size] if size else _STEPS
    step = next((step for step in steps if weight.size % step == 0), None)
    units, inner = weight.shape
    bias = real_bias(node, units)
    if step is None or bias is None:
        return None
    digits = 1 if size else 3
    centre = int(weight.zeros.flat[0]) if (weight.zeros == weight.zeros.flat[0]).all() else None
    description = CodesProduct(
        place.cpu, rows.operand, rows.outcome, units, weight.bits, weight.size, step, digits,
        centre, not place.cpu.reads_ahead, place.threads,
    )  # fmt: skip
    unit = np.float32(half_unit(digits))
    constants: list[Array] = [_stream(description, weight, unit)]
    if centre is None:
        constants.append(_in_pairs(description, weight.zeros.astype(np.uint8)))
    constants.append(per_lane(place.cpu, bias, 1))
    return Kernel(
        f"dense_w{weight.bits}a{8 if digits == 1 else 32}_{inner}x{units}", description,
        build_codes_product,
        (node.operand(0),), tuple(constants), (node.output,),
        2 * (1 if rows.open else rows.count) * inner * units,
    )  # fmt: skip


def _stream(d: CodesProduct, weight: BlockedCodes, unit: np.float32) -> Array:
    """Returns codes and scales as (pairs, groups, registers, bytes), in the order of reading.

    A register has four neighbours of a sum in every lane. Of 4 bits a byte has one code in its low
    bits and the one that is four further on in its high bits.
    """
    found = lasting((d.pairs, d.groups, d.group_registers, d.register), np.dtype(np.uint8))
    words = found.view(np.uint32)
    codes = words[:, :, :-2].reshape(d.pairs, d.groups, d.group_codes, 2, d.cpu.lanes)
    assert np.shares_memory(codes, words)
    done = 0
    for part in _words(weight):
        some = _in_pairs(d, part)
        codes[done : done + len(some)] = some
        done += len(some)
    words.view(np.float32)[:, :, -2:] = _in_pairs(d, weight.scales * unit)[:, :, 0]
    return found


def _in_pairs(d: CodesProduct, rows: Array) -> Array:
    """Returns (units, groups * n) as (pairs, groups, n, 2, lanes); a block of 0 may be added."""
    several = padded(rows, 0, 2 * d.cpu.lanes)
    shape = (-1, 2, d.cpu.lanes, d.groups, rows.shape[1] // d.groups)
    return several.reshape(shape).transpose(0, 3, 4, 1, 2)


def _words(weight: BlockedCodes) -> Iterator[Array]:
    """Yields words of four bytes of codes; of 4 bits every second one in the high halves."""
    for part in weight.in_bytes():
        words = np.ascontiguousarray(part).view(np.uint32)
        if weight.bits == NIBBLE:  # codes 0 .. 7 become 0 4 1 5 2 6 3 7
            for mask, shift in ((0x0000FF00, 8), (0x00F000F0, 4)):
                swap = (words ^ (words >> np.uint32(shift))) & np.uint32(mask)
                words = words ^ swap ^ (swap << np.uint32(shift))
        yield words
