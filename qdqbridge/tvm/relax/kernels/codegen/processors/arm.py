"""64-bit Arm: NEON, with the dot products of bytes, and with those of mixed signs."""

from __future__ import annotations

from collections.abc import Callable

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Prim,
    bound,
    intrinsic,
    load,
    number,
    typed,
)
from qdqbridge.tvm.relax.kernels.codegen.processors.description import Cpu, Dot
from qdqbridge.tvm.relax.kernels.codegen.saturation import Packing

_LANES, _REGISTERS, _BYTES = 4, 32, 16
_TABLE, _REGISTER_GROUP = 256, 64


def _sdot(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """Four products of int8 are added to a sum of 32 bits."""
    return intrinsic("llvm.aarch64.neon.sdot", "int32x4", sums, weights, _codes(activations))


def _usdot(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """Four products of uint8 and int8 are added to a sum of 32 bits."""
    return intrinsic("llvm.aarch64.neon.usdot", "int32x4", sums, _codes(activations), weights)


def _codes(activations: Prim) -> Prim:
    return tirx.reinterpret(typed("int8", _BYTES), activations)


def _smlal(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """A product of int16 is added to a sum of 32 bits."""
    return sums + activations.astype("int32x4") * weights.astype("int32x4")


def _narrowed_by(name: str, kind: str) -> Callable[[Prim, Prim], Prim]:
    """Returns what makes one register of two whose halves are narrowed, the first one first."""

    def narrowed(low: Prim, high: Prim) -> Prim:
        halves = [intrinsic(f"llvm.aarch64.neon.{name}", kind, half) for half in (low, high)]
        return tirx.Shuffle(halves, list(range(2 * int(kind.partition("x")[2]))))

    return narrowed


class TblLookup:
    """Lookups of 16 codes in 256 bytes: four instructions of 64 entries each."""

    lanes = _BYTES

    def looked_up(self, table: Buffer, codes: Prim, dtype: str) -> Prim:
        """Returns the entries of codes."""
        kind, size = typed("int8", _BYTES), _BYTES
        index: Prim = bound(tirx.reinterpret(kind, codes))
        found: Prim = None
        for first in range(0, _TABLE, _REGISTER_GROUP):
            four = [
                tirx.reinterpret(kind, load(table, first + i * size, size))
                for i in range(_REGISTER_GROUP // size)
            ]
            if found is None:
                found = intrinsic("llvm.aarch64.neon.tbl4", kind, *four, index)
            else:  # what lies beyond these 64 entries stays
                index = bound(index - number(_REGISTER_GROUP, "int8", size))
                found = intrinsic("llvm.aarch64.neon.tbx4", kind, found, *four, index)
        return tirx.reinterpret(typed(dtype, size), found)


_TBL = TblLookup()


def _neon(name: str, about: str, features: tuple[str, ...], dot: Dot) -> Cpu:
    return Cpu(
        name, about, "aarch64", features, _LANES, _REGISTERS, dot, fuses=True, steps_held=4,
        barrier=("llvm.aarch64.dmb", (11,)), packing=_PACKED, lookup=_TBL, reads_ahead=True,
    )  # fmt: skip


_PACKED = Packing(
    _LANES, _narrowed_by("sqxtn", "int16x4"),
    {"uint8": _narrowed_by("sqxtun", "int8x8"), "int8": _narrowed_by("sqxtn", "int8x8")},
)  # fmt: skip

NEON_I8MM = _neon(
    "neon_i8mm", "64-bit Arm with I8MM (Neoverse V1, Cortex-A510, Apple M2): usdot on 128 bits",
    ("neon", "dotprod", "i8mm"), Dot("uint8", "int8", 4, _usdot, code_bits=8),
)  # fmt: skip
NEON_DOT = _neon(
    "neon_dot",
    "64-bit Arm with dot products (Neoverse N1, Cortex-A55, A76, Apple M1): sdot on 128 bits, "
    "activations less 128",
    ("neon", "dotprod"), Dot("int8", "int8", 4, _sdot, centre=128, code_bits=4),
)  # fmt: skip
NEON = _neon(
    "neon", "other 64-bit Arm (Cortex-A53, A57, A72): smlal on 128 bits, of int16", ("neon",),
    Dot("int16", "int16", 1, _smlal),
)  # fmt: skip
