"""Four registers of int32 as one register of bytes, by the instructions of x86 that saturate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.cpu import AVX2, AVX512_VNNI, AVX_VNNI, Cpu
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim, intrinsic, splat, typed


@dataclass(frozen=True, slots=True)
class Packing:
    """The instructions.

    They work within 128 bits, so group i of the result has the i-th quarters of all four
    registers; ``turn`` puts the quarters in order.

    Attributes:
        lanes: 32-bit lanes of a register.
        words: int32 to int16.
        codes: int16 to 8 bits, by the type of the result.
        turn: Moves 32-bit lanes.
    """

    lanes: int
    words: str
    codes: Mapping[str, str]
    turn: str

    def packed(self, four: Sequence[Prim], zero_point: Prim | None, dtype: str) -> Prim:
        """Returns four registers, one after the other, as saturated codes.

        Args:
            four: int32. What leaves 16 bits ends at the bound that it would end at anyway.
            zero_point: int32, added to all with saturation; None for 0.
            dtype: ``uint8`` or ``int8``.
        """
        lanes, kind = self.lanes, typed("int16", 2 * self.lanes)
        words = [intrinsic(self.words, kind, *four[i : i + 2]) for i in (0, 2)]
        if zero_point is not None:
            shift = splat(zero_point.astype("int16"), 2 * lanes)
            words = [intrinsic("llvm.sadd.sat", kind, word, shift) for word in words]
        codes = intrinsic(self.codes[dtype], typed("int8", 4 * lanes), *words)
        quads = tirx.reinterpret(typed("int32", lanes), codes)
        turned = intrinsic(self.turn, typed("int32", lanes), quads, self._order())
        return tirx.reinterpret(typed(dtype, 4 * lanes), turned)

    def _order(self) -> Prim:
        """Returns where each quarter comes from."""
        groups = self.lanes // 4
        places = [lane % groups * 4 + lane // groups for lane in range(self.lanes)]
        numbers = [tirx.const(place, "int32") for place in places]
        return tirx.Shuffle(numbers, list(range(self.lanes)))


_AVX512 = Packing(
    16, "llvm.x86.avx512.packssdw.512",
    {"uint8": "llvm.x86.avx512.packuswb.512", "int8": "llvm.x86.avx512.packsswb.512"},
    "llvm.x86.avx512.permvar.si.512",
)  # fmt: skip
_AVX2 = Packing(
    8, "llvm.x86.avx2.packssdw",
    {"uint8": "llvm.x86.avx2.packuswb", "int8": "llvm.x86.avx2.packsswb"}, "llvm.x86.avx2.permd",
)  # fmt: skip


def packing_of(cpu: Cpu) -> Packing | None:
    """Returns the instructions of a CPU; None for one that has only LLVM's plain vectors."""
    return {AVX512_VNNI: _AVX512, AVX_VNNI: _AVX2, AVX2: _AVX2}.get(cpu)
