"""64-bit x86: AVX-512 VNNI, AVX-VNNI, and AVX2 without either."""

from __future__ import annotations

from dataclasses import replace

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

REGISTER = 64
"""Bytes of a register of AVX-512."""
_X86 = "x86_64"
_FENCE = "llvm.x86.sse2.mfence", ()


def _vpdpbusd(lanes: int) -> Dot:
    """Four products of uint8 and int8 are added to a sum of 32 bits."""

    def added(sums: Prim, activations: Prim, weights: Prim) -> Prim:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        codes = tirx.reinterpret(typed("int8", 4 * lanes), activations)
        return intrinsic(name, typed("int32", lanes), sums, codes, weights)

    return Dot("uint8", "int8", 4, added, code_bits=8)


def _vpmaddwd(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    pairs = tirx.reinterpret("int16x16", activations)
    return sums + intrinsic("llvm.x86.avx2.pmadd.wd", "int32x8", pairs, weights)


def _in_quarters(words: Prim, lanes: int) -> Prim:
    """Returns packed bytes in order.

    The instructions work within 128 bits, so group i of what they give has the i-th quarters of
    all four registers.
    """
    groups = lanes // 4
    places = [lane % groups * 4 + lane // groups for lane in range(lanes)]
    numbers = [tirx.const(place, "int32") for place in places]
    turn = {16: "llvm.x86.avx512.permvar.si.512", 8: "llvm.x86.avx2.permd"}[lanes]
    quads = tirx.reinterpret(typed("int32", lanes), words)
    order = tirx.Shuffle(numbers, list(range(lanes)))
    return intrinsic(turn, typed("int32", lanes), quads, order)


class VbmiLookup:
    """Lookups of 64 codes in 256 bytes (AVX-512 VBMI)."""

    lanes = REGISTER

    def looked_up(self, table: Buffer, codes: Prim, dtype: str) -> Prim:
        """Returns the entries of codes."""
        return permuted(table, codes, dtype)


_VBMI = VbmiLookup()


def permuted(table: Buffer, code: Prim, dtype: str) -> Prim:
    """Returns the entries of 64 codes of 8 bits, looked up in registers (AVX-512 VBMI).

    Args:
        table: Entries by the bit pattern of a code.
        code: 64 codes.
        dtype: The element type of the entries.
    """
    kind = typed("int8", REGISTER)
    index = bound(tirx.reinterpret(kind, code))
    quarters = [tirx.reinterpret(kind, load(table, i * REGISTER, REGISTER)) for i in range(4)]
    low, high = (
        intrinsic("llvm.x86.avx512.vpermi2var.qi.512", kind, first, index, second)
        for first, second in (quarters[:2], quarters[2:])
    )
    chosen = tirx.Select(index < number(0, "int8", REGISTER), high, low)
    return tirx.reinterpret(typed(dtype, REGISTER), chosen)


def _with_extensions(cpu: Cpu, features: frozenset[str], name: str) -> Cpu:
    permutes = "avx512vbmi" in features
    return replace(
        cpu, permutes=permutes, lookup=_VBMI if permutes else None,
        amx="amx-int8" in features, reads_ahead=name.startswith("znver"),
    )  # fmt: skip


_PACKED_512 = Packing(
    16, "llvm.x86.avx512.packssdw.512",
    {"uint8": "llvm.x86.avx512.packuswb.512", "int8": "llvm.x86.avx512.packsswb.512"},
    _in_quarters,
)  # fmt: skip
_PACKED_256 = Packing(
    8, "llvm.x86.avx2.packssdw",
    {"uint8": "llvm.x86.avx2.packuswb", "int8": "llvm.x86.avx2.packsswb"}, _in_quarters,
)  # fmt: skip

AVX512_VNNI = Cpu(
    "avx512_vnni", "x86 with AVX-512 VNNI (Ice Lake, Zen 4): vpdpbusd on 512 bits",
    _X86, ("avx512vnni", "avx512bw", "avx512vl", "fma"), 16, 32, _vpdpbusd(16), fuses=True,
    masks=True, barrier=_FENCE, packing=_PACKED_512, refined=_with_extensions,
)  # fmt: skip
AVX_VNNI = Cpu(
    "avx_vnni", "x86 with AVX-VNNI (Alder Lake): vpdpbusd on 256 bits", _X86,
    ("avxvnni", "avx2", "fma"), 8, 16, _vpdpbusd(8), fuses=True, barrier=_FENCE,
    packing=_PACKED_256,
)  # fmt: skip
AVX2 = Cpu(
    "avx2",
    "x86 with AVX2 (Haswell, Zen 1 to 3): vpmaddwd on 256 bits; vpmaddubsw only where codes are "
    "too small for it to saturate",
    _X86, ("avx2", "fma"), 8, 16, Dot("int16", "int16", 2, _vpmaddwd, code_bits=8), fuses=True,
    barrier=_FENCE, packing=_PACKED_256,
)  # fmt: skip
