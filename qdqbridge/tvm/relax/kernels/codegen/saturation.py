"""Four registers of int32 as one register of bytes, by the instructions that saturate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import Prim, intrinsic, splat, typed


@dataclass(frozen=True, slots=True)
class Packing:
    """The instructions.

    Attributes:
        lanes: 32-bit lanes of a register.
        words: int32 to int16, of two registers: an LLVM intrinsic.
        codes: int16 to 8 bits, of two registers, by the type of the result.
        ordered: Puts bytes in order that those have packed.
    """

    lanes: int
    words: str | Callable[[Prim, Prim], Prim]
    codes: Mapping[str, str | Callable[[Prim, Prim], Prim]]
    ordered: Callable[[Prim, int], Prim] | None = None

    def packed(self, four: Sequence[Prim], zero_point: Prim | None, dtype: str) -> Prim:
        """Returns four registers, one after the other, as saturated codes.

        Args:
            four: int32. What leaves 16 bits ends at the bound that it would end at anyway.
            zero_point: int32, added to all with saturation; None for 0.
            dtype: ``uint8`` or ``int8``.
        """
        lanes, kind = self.lanes, typed("int16", 2 * self.lanes)
        words = [_packed(self.words, kind, four[i], four[i + 1]) for i in (0, 2)]
        if zero_point is not None:
            shift = splat(zero_point.astype("int16"), 2 * lanes)
            words = [intrinsic("llvm.sadd.sat", kind, word, shift) for word in words]
        codes = _packed(self.codes[dtype], typed("int8", 4 * lanes), *words)
        if self.ordered is not None:
            codes = self.ordered(codes, lanes)
        return tirx.reinterpret(typed(dtype, 4 * lanes), codes)


def _packed(how: str | Callable[[Prim, Prim], Prim], kind: str, low: Prim, high: Prim) -> Prim:
    return intrinsic(how, kind, low, high) if isinstance(how, str) else how(low, high)
