"""Products of float32 with weights of 4 or 8 bits, which become floats in registers only.

Weights stay packed in memory, two codes of 4 bits to a byte; ``(code - zero_point) * scale`` is
computed where a tile needs them. Scales belong to channels, or to blocks of ``size`` products of a
channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.matmul import DENSE
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.cpu import Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    flat,
    floats,
    load,
    number,
    wide,
)
from qdqbridge.tvm.relax.kernels.codegen.loops import share, turns, within
from qdqbridge.tvm.relax.kernels.codegen.script import T, prim_func, root
from qdqbridge.tvm.relax.kernels.epilogues.float_sums import Plain, PlainWriter
from qdqbridge.tvm.relax.kernels.kernel import Array, Kernel, KernelPlace
from qdqbridge.tvm.relax.kernels.operands import extents
from qdqbridge.tvm.relax.kernels.products.float_products import is_real, real_bias
from qdqbridge.tvm.relax.kernels.tiles.packing import padded, per_lane
from qdqbridge.tvm.relax.kernels.tiles.register_tile import (
    Tile,
    blocks_of,
    channel_pieces,
    elements_of,
    most_pixels,
    parts,
)
from qdqbridge.tvm.relax.tensors import lasting

Shape = tuple["int | None", ...]


@dataclass(frozen=True, slots=True)
class WeightOnly:
    """A product of rows of float32 with a matrix of codes.

    Attributes:
        cpu: The CPU.
        operand: Shape of the activations; None for an open first extent.
        outcome: Shape of the result.
        batch: How often there are ``rows`` rows; None where that is open.
        rows: Rows of known number.
        inner: Products of a sum.
        units: Columns of the result.
        bits: Bits of a code, 4 or 8.
        size: Products that share a scale.
        tasks: How many threads the columns are shared out to.
    """

    cpu: Cpu
    operand: Shape
    outcome: Shape
    batch: int | None
    rows: int
    inner: int
    units: int
    bits: int
    size: int
    tasks: int

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.units // self.cpu.lanes)

    @property
    def each(self) -> int:
        """Codes in a byte."""
        return 8 // self.bits


def build_weight_only(description: WeightOnly) -> Any:
    """Returns the PrimFunc ``(x, weights, scales, zero_points, bias, y)``."""
    d = description

    def body() -> None:
        batch = tirx.Var("n", "int64") if d.batch is None else d.batch
        given, taken = (
            [batch if extent is None else extent for extent in shape]
            for shape in (d.operand, d.outcome)
        )
        lanes = d.cpu.lanes
        shared = (d.blocks, d.inner // d.size, lanes)
        x = T.arg("x", T.buffer(given, "float32"))
        packed = T.buffer((d.blocks, d.inner // d.each, lanes), "uint8")
        tensors = [x, T.arg("weights", packed)]
        tensors += [T.arg(name, T.buffer(shared, "float32")) for name in ("scales", "zeros")]
        bias = T.arg("bias", T.buffer((d.blocks * lanes,), "float32"))
        y = T.arg("y", T.buffer(taken, "float32"))
        with root():
            views = [flat(tensor) for tensor in tensors]
            _WeightOnly(d, views, bias, flat(y)).write(batch)

    return prim_func(body)


class _WeightOnly:
    def __init__(self, d: WeightOnly, views: list[Buffer], bias: Buffer, result: Buffer) -> None:
        self.d, self.bias = d, bias
        self.x, self.weights, self.scales, self.zeros = views
        self.writer = PlainWriter(d.cpu, Plain(), None, None, result)
        self.rows = parts(d.rows, most_pixels(d.cpu, d.blocks))
        self.wide = blocks_of(d.cpu, self.rows.size, d.blocks)

    def write(self, batch: Prim) -> None:
        """Writes the loops: shares of the columns, tiles of them, tiles of rows."""
        d = self.d
        units = -(-d.blocks // self.wide)
        tasks = min(d.tasks, units)
        with turns(batch * tasks, parallel=tasks > 1) as task:
            image = task // tasks * d.rows
            first, count = share(task % tasks, tasks, units)
            for low, length, width, tail in channel_pieces(d.units, d.cpu.lanes, self.wide):
                start, extent = within(first, count, low, length)
                with turns(extent, start) as unit:
                    for row, many, height in self.rows.pieces():
                        with turns(many) as i:
                            at = image + (row + i * height)
                            self._tile(unit * self.wide, width, tail, at, height)

    def _tile(self, block: Prim, width: int, tail: int, row: Prim, height: int) -> None:
        d, lanes = self.d, self.d.cpu.lanes
        tile = Tile(d.cpu, height, width, elements_of(d.cpu, floats=True))
        tile.begin(self.bias, block * lanes)
        groups = d.inner // d.size
        with turns(groups) as group, turns(d.size // d.each) as k:
            shared = [((block + b) * groups + group) * lanes for b in range(width)]
            step = group * (d.size // d.each) + k
            packed = [((block + b) * (d.inner // d.each) + step) * lanes for b in range(width)]
            codes = [bound(wide(load(self.weights, at, lanes), lanes)) for at in packed]
            for i in range(d.each):
                vectors = [
                    bound(self._real(self._code(code, i), at))
                    for code, at in zip(codes, shared, strict=True)
                ]
                column = step * d.each + i
                starts = [(row + p) * d.inner + column for p in range(height)]
                tile.step(self.x, starts, [vectors])
        starts = [(row + p) * d.units + block * lanes for p in range(height)]
        self.writer.write(tile, starts, block * lanes, tail)

    def _code(self, codes: Prim, index: int) -> Prim:
        """Returns the codes of a register's bytes that stand at ``index`` in them."""
        lanes = self.d.cpu.lanes
        if self.d.bits == 8:
            return codes
        if index:
            return tirx.shift_right(codes, number(4, "int32", lanes))
        return tirx.bitwise_and(codes, number(15, "int32", lanes))

    def _real(self, codes: Prim, shared: Prim) -> Prim:
        lanes = self.d.cpu.lanes
        centred = floats(codes, lanes) - load(self.zeros, shared, lanes)
        return centred * load(self.scales, shared, lanes)


# ---- nodes ----------------------------------------------------------------------------------


def match_weight_only_dense(node: Node, place: KernelPlace) -> Kernel | None:
    """Returns the kernel of a Dense of float32 with a quantized weight of 4 or 8 bits."""
    weight = blocked_codes(node.operand(1))
    shape, result = extents(node.operand(0).type.shape), extents(node.output.type.shape)
    if weight is None or shape is None or result is None or node.op is not DENSE:
        return None
    if not is_real(node.operand(0)) or not is_real(node.output):
        return None
    units, inner = weight.shape
    bias = real_bias(node, units)
    if bias is None or (shape[0] is None and len(shape) == 1):
        return None
    description = WeightOnly(
        place.cpu, shape, result, None if shape[0] is None else 1,
        math.prod(extent for extent in shape[:-1] if extent is not None), inner, units,
        weight.bits, weight.size, place.threads,
    )  # fmt: skip
    cpu = place.cpu
    constants = (
        _packed(cpu, weight), along_lanes(cpu, weight.scales), along_lanes(cpu, weight.zeros),
        per_lane(cpu, bias, 1),
    )  # fmt: skip
    return Kernel(
        f"dense_w{weight.bits}_{description.rows}x{inner}x{units}", description, build_weight_only,
        (node.operand(0),), constants, (node.output,),
        2 * description.rows * (description.batch or 1) * inner * units,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class BlockedCodes:
    """A weight of (units, inner) as unsigned codes, and its parameters for every block.

    Attributes:
        source: The stored integers.
        half: What makes a code of a stored integer when it is added.
        scales: float32, (units, blocks).
        zeros: float32, (units, blocks).
        bits: Bits of a code.
        size: Products in a block.
    """

    source: Constant
    half: int
    scales: Array
    zeros: Array
    bits: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Units, and products of a sum."""
        units, inner = self.source.shape
        return units, inner

    def in_bytes(self) -> Iterator[Array]:
        """Yields codes of some rows after others, two of 4 bits in a byte, the first one low."""
        units, inner = self.shape
        each = 8 // self.bits
        held = self.source.packed() if self.bits == _NIBBLE else None
        flip = np.uint8(0x88 if self.half else 0)
        for start in range(0, units, _ROWS):
            rows = slice(start, min(start + _ROWS, units))
            if held is not None:
                yield held.reshape(units, inner // each)[rows] ^ flip
                continue
            codes = (self.source.numpy()[rows].astype(np.int16) + self.half).astype(np.uint8)
            yield codes if each == 1 else codes[:, 0::2] | (codes[:, 1::2] << _NIBBLE)
        self.source.release()


_NIBBLE = 4
_ROWS = 256
"""Rows of a weight that are packed at a time: whole blocks of lanes, and what caches hold."""


def blocked_codes(value: Value, block: int = 0) -> BlockedCodes | None:
    """Returns a constant weight of 4 or 8 bits as codes; None for other weights.

    Args:
        value: The weight.
        block: Products that share a scale where the weight has no blocks itself; 0: all of a row.
    """
    quant, constant = value.quant, value.constant
    if quant is None or constant is None or value.rank != 2:
        return None
    params = quant.params
    dtype = params.storage_dtype
    if not dtype.is_integer or dtype.bits not in (4, 8):
        return None
    units, inner = constant.shape
    size = block if block and not params.blocked else _size(params, inner)
    if not units or not size or inner % size or size % (8 // dtype.bits):
        return None
    half = 1 << (dtype.bits - 1) if dtype.is_signed else 0
    blocks = (units, inner // size)
    grid = (-1, 1) if params.axis == 0 and not params.blocked else params.scale.shape
    scales = params.scale.astype(np.float32, copy=False).reshape(grid)
    zeros = (params.zero_point + half).astype(np.float32).reshape(grid)
    return BlockedCodes(
        constant, half, np.broadcast_to(scales, blocks), np.broadcast_to(zeros, blocks),
        dtype.bits, size,
    )  # fmt: skip


def _size(params: QuantParams, inner: int) -> int | None:
    """Returns how many products share a scale; None where scales do not follow the channels."""
    if params.blocked:
        return params.block_size if params.axis == 1 else None
    return inner if params.axis in (None, 0) else None


def _packed(cpu: Cpu, weight: BlockedCodes) -> Array:
    """Returns codes as (blocks, bytes of a sum, lanes), the first code in the low bits."""
    units, inner = weight.shape
    return by_lanes(cpu, units, inner * weight.bits // 8, weight.in_bytes())


def along_lanes(cpu: Cpu, array: Array) -> Array:
    """Returns (units, n) as (blocks, n, lanes)."""
    return by_lanes(cpu, len(array), array.shape[1], [array])


def by_lanes(cpu: Cpu, units: int, width: int, parts: Iterable[Array]) -> Array:
    """Returns rows, whole blocks of lanes at a time, as (blocks, width, lanes), zeros behind."""
    found: Array | None = None
    done = 0
    for part in parts:
        if found is None:
            found = lasting((-(-units // cpu.lanes), width, cpu.lanes), part.dtype)
            found[units // cpu.lanes :] = 0
        rows = padded(part, 0, cpu.lanes).reshape(-1, cpu.lanes, width)
        found[done : done + len(rows)] = rows.transpose(0, 2, 1)
        done += len(rows)
    assert found is not None
    return found
