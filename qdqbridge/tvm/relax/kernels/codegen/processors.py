"""The processors that kernels are made for: a class each, by their instructions."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
from tvm.runtime import num_threads
from tvm.target import codegen

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.dialect.arithmetic import tirx
from qdqbridge.tvm.relax.kernels.codegen.lanes import (
    Buffer,
    Packing,
    Prim,
    bound,
    intrinsic,
    less_128,
    load,
    number,
    typed,
)

# ---- What kernels need to know of a processor: registers, dot product, saturation, lookups -------


@dataclass(frozen=True, slots=True)
class Dot:
    """The instruction that multiplies integers and sums some of their products in every lane.

    Attributes:
        source: Element type of activations as it takes them, or as they are copied for it.
        weight: Element type of weights.
        depth: Products that one lane sums.
        added: Returns int32 sums plus the products of activations and weights, one register each;
            activations of a lane are one int32 where they are as long.
        centre: What activations have less than codes of uint8: 128 where it takes int8. Sums begin
            with as much more: ``centre * sum(w)``.
        pairs: Where it takes int16: returns the products of codes of uint8 and int8, two neighbours
            summed as int16; None where no instruction does that.
        codes_added: As ``added``, of four codes in a lane, where that takes fewer.
    """

    source: str
    weight: str
    depth: int
    added: Callable[[Prim, Prim, Prim], Prim]
    centre: int = 0
    pairs: Callable[[Prim, Prim], Prim] | None = None
    codes_added: Callable[[Prim, Prim, Prim], Prim] | None = None

    @property
    def bytes_in(self) -> bool:
        """True where activations are taken as they are stored, one byte each."""
        return np.dtype(self.source).itemsize == 1

    @property
    def code_bits(self) -> int:
        """Bits of unsigned codes that are multiplied with int8, as blocks of weights are stored."""
        if self.bytes_in:
            return 4 if self.centre else 8  # what takes int8 has no room for codes beyond 127
        return 0 if self.pairs is None else 8

    def in_lanes(self, activations: Prim, lanes: int) -> Prim:
        """Returns a register of activations as ``added`` takes it."""
        words = self.depth * np.dtype(self.source).itemsize == 4
        return tirx.reinterpret(typed("int32", lanes), activations) if words else activations

    def zero_point(self, code: Prim) -> Prim:
        """Returns the zero point as it takes it, which is a code of uint8."""
        return (code - self.centre if self.centre else code).astype(self.source)

    def taken(self, codes: Prim, lanes: int) -> Prim:
        """Returns codes of uint8 as it takes bytes."""
        return less_128(codes, lanes) if self.centre else codes


class ByteLookup(Protocol):
    """Lookups in a table of 256 bytes that is held in registers.

    Attributes:
        lanes: Codes that are looked up at once.
    """

    lanes: int

    def looked_up(self, table: Buffer, codes: Prim, dtype: str) -> Prim:
        """Returns the entries of codes.

        Args:
            table: Entries by the bit pattern of a code.
            codes: One byte each, ``lanes`` of them.
            dtype: The element type of the entries.
        """
        ...


@dataclass(frozen=True, slots=True)
class Cpu:
    """A class of processors that runs the same kernels; to be compared by ``==``, not by identity.

    Attributes:
        name: What it is called, by its dot product.
        about: Which processors are of it, and what its dot product is.
        architecture: LLVM's name of its architecture; empty for any.
        features: LLVM's names of what a processor of it has.
        lanes: 32-bit lanes of a vector register, which is also the number of output channels that
            are packed side by side.
        registers: Vector registers.
        dot: Its dot product.
        fuses: True where products and sums of floats fuse.
        steps_held: Steps whose activations one register holds, since the dot product, and the
            product of floats, takes one lane of it for all others; 1 where each step is spread.
        steps_in_turn: Steps of a turn of the inner loop, so that few instructions are the loop's.
        masks: True where some lanes of a register are stored by one instruction.
        barrier: The LLVM intrinsic, and its int32 arguments, behind which memory is seen to be
            written by other threads before anything else is read; none where nobody has tried.
        packing: How four registers of int32 become one of bytes; None for plain clipping.
        lookup: How bytes are looked up in a table; None where every entry is loaded.
        permutes: True where one instruction looks 64 bytes up in 128 entries (AVX-512 VBMI). A
            kernel that cares says so in its description.
        amx: True where tiles of bytes are multiplied by one instruction (AMX-INT8).
        reads_ahead: True where a page of memory comes as fast as it can by itself once it is begun,
            so that asking for every line costs (Zen 4, as measured; Zen 3, whose registers are half
            as long, gets half as much again by being asked). As ``permutes``, where one cares: a
            module, whose equal descriptions share code, is made for one CPU.
        room: Bytes of copied rows that are used before others are copied: what stays in the
            second-level cache next to the weights, or what memory there is.
        refined: What some processors of the class have besides, by features and LLVM's name.
    """

    name: str
    about: str = field(compare=False)
    architecture: str = field(compare=False)
    features: tuple[str, ...] = field(compare=False)
    lanes: int
    registers: int
    dot: Dot
    fuses: bool
    steps_held: int = 1
    steps_in_turn: int = 1
    masks: bool = field(default=False, compare=False)
    barrier: tuple[str, tuple[int, ...]] | None = field(default=None, compare=False)
    packing: Packing | None = field(default=None, compare=False)
    lookup: ByteLookup | None = field(default=None, compare=False)
    permutes: bool = field(default=False, compare=False)
    amx: bool = field(default=False, compare=False)
    reads_ahead: bool = field(default=False, compare=False)
    room: int = field(default=1 << 18, compare=False)
    refined: Callable[[Cpu, frozenset[str], str], Cpu] | None = field(default=None, compare=False)

    @property
    def depth(self) -> int:
        """Products that one lane of a dot product sums: 4 of bytes, 1 or 2 of 16-bit integers."""
        return self.dot.depth

    @property
    def bytes_in(self) -> bool:
        """True where dot products take activations as they are stored, one byte each."""
        return self.dot.bytes_in


_LANES = 4


def _pair_products(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """Products of every second element; LLVM knows both halves together as a dot product."""
    pairs = tirx.reinterpret(typed("int16", 2 * _LANES), activations)
    for first in (0, 1):
        chosen = list(range(first, 2 * _LANES, 2))
        left, right = (tirx.Shuffle([vector], chosen) for vector in (pairs, weights))
        wide = typed("int32", _LANES)
        sums = sums + left.astype(wide) * right.astype(wide)
    return sums


GENERIC = Cpu(
    "generic", "any other processor: plain vectors of LLVM", "", (), _LANES, 16,
    Dot("int16", "int16", 2, _pair_products), fuses=False,
)  # fmt: skip


# ---- 64-bit x86: AVX-512 VNNI, AVX-VNNI, and AVX2 without either ---------------------------------


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

    return Dot("uint8", "int8", 4, added)


def _vpmaddwd(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    pairs = tirx.reinterpret("int16x16", activations)
    return sums + intrinsic("llvm.x86.avx2.pmadd.wd", "int32x8", pairs, weights)


def _vpmaddubsw(codes: Prim, digits: Prim) -> Prim:
    return intrinsic("llvm.x86.avx2.pmadd.ub.sw", "int16x16", codes, digits)


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
    # The instruction looks up 7 bits; the eighth, the sign, chooses between both halves.
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
    _X86, ("avx2", "fma"), 8, 16, Dot("int16", "int16", 2, _vpmaddwd, pairs=_vpmaddubsw),
    fuses=True, barrier=_FENCE, packing=_PACKED_256,
)  # fmt: skip


# ---- 64-bit Arm: NEON, with the dot products of bytes, and with those of mixed signs -------------


_ARM_LANES, _ARM_REGISTERS, _BYTES = 4, 32, 16
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
        name, about, "aarch64", features, _ARM_LANES, _ARM_REGISTERS, dot, fuses=True, steps_held=4,
        steps_in_turn=8, barrier=("llvm.aarch64.dmb", (11,)), packing=_PACKED, lookup=_TBL,
        reads_ahead=True,
    )  # fmt: skip


_PACKED = Packing(
    _ARM_LANES, _narrowed_by("sqxtn", "int16x4"),
    {"uint8": _narrowed_by("sqxtun", "int8x8"), "int8": _narrowed_by("sqxtn", "int8x8")},
)  # fmt: skip

NEON_I8MM = _neon(
    "neon_i8mm", "64-bit Arm with I8MM (Neoverse V1, Cortex-A510, Apple M2): usdot on 128 bits",
    ("neon", "dotprod", "i8mm"), Dot("uint8", "int8", 4, _usdot),
)  # fmt: skip
NEON_DOT = _neon(
    "neon_dot",
    "64-bit Arm with dot products (Neoverse N1, Cortex-A55, A76, Apple M1): sdot on 128 bits, "
    "activations less 128",
    ("neon", "dotprod"), Dot("int8", "int8", 4, _sdot, centre=128),
)  # fmt: skip
NEON = _neon(
    "neon", "other 64-bit Arm (Cortex-A53, A57, A72): smlal on 128 bits, of int16", ("neon",),
    Dot("int16", "int16", 1, _smlal),
)  # fmt: skip


# ---- c -------------------------------------------------------------------------------------------
# What is written as C: any processor that has a compiler, and Cortex-M with DSP instructions.


C = "c"
"""The architecture of what is written as C."""
_C_REGISTERS = 8
"""Of 13, what is left beside the places of activations and weights: two pixels by two channels."""
_ROOM = 1 << 12
"""Bytes of rows with their padding that are copied at once: memory is scarce."""


def _product(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """One product of bytes is added to a sum of 32 bits."""
    return sums + activations.astype("int32") * weights.astype("int32")


def _smlad(sums: Prim, activations: Prim, weights: Prim) -> Prim:
    """Four products of bytes are added, after both words are two pairs of 16 bits each."""
    word = tirx.reinterpret("int32", weights)
    return tirx.call_pure_extern("int32", "qdq_dot4", sums, activations, word)


CORTEX_M = Cpu(
    "cortex_m_dsp",
    "C for Cortex-M with DSP instructions (M4, M7, M33, M55): smlad on two pairs of 16 bits",
    C, ("dsp",), 1, _C_REGISTERS, Dot("uint8", "int8", 4, _smlad), fuses=True,
    room=_ROOM,
)  # fmt: skip
GENERIC_C = Cpu(
    "generic_c", "C for any other processor: one product after the other", C, (), 1, _C_REGISTERS,
    Dot("uint8", "int8", 1, _product, codes_added=_smlad), fuses=False, room=_ROOM,
)  # fmt: skip


# ---- Classes of processors: one description each, which all kernels are made from ----------------
# To add one, describe it with :class:`Cpu`, and add it to :data:`PROCESSORS` before those it is
# better than. What kernels do follows from that.


PROCESSORS: tuple[Cpu, ...] = (
    AVX512_VNNI, AVX_VNNI, AVX2, NEON_I8MM, NEON_DOT, NEON, CORTEX_M, GENERIC_C, GENERIC,
)  # fmt: skip
"""The best ones first: a target gets the first one of which it has all features."""


# ---- The permission to use AMX, which Linux gives to a process that asks for it ------------------


_FEATURES = {"amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16"}
"""Names of Linux, and of LLVM."""
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18
"""``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``, as
https://docs.kernel.org/arch/x86/xstate.html has it."""


@cache
def amx_of_this_machine() -> tuple[str, ...]:
    """Returns LLVM's names of what this process may use of AMX, and asks for it first.

    Nothing where the CPU has none or the operating system refuses. All threads of the process, and
    processes that are forked, have the permission from then on; nobody else's code changes.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return ()
    flags = _flags()
    found = tuple(name for flag, name in _FEATURES.items() if flag in flags)
    if "amx-tile" not in found:
        return ()
    asked = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILES)
    return found if asked == 0 else ()


def _flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


# ---- What of 64-bit Arm the operating system lets this process use, as it tells every process

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_CAPABILITIES = {
    _AT_HWCAP: {
        "neon": 1, "lse": 8, "fullfp16": 10, "rdm": 12, "complxnum": 14, "sha3": 17,
        "dotprod": 20, "sve": 22, "fp16fml": 23,
    },
    _AT_HWCAP2: {"sve2": 1, "i8mm": 13, "bf16": 14},
}  # fmt: skip
"""Bits by LLVM's names, as Linux has them (``arch/arm64/include/uapi/asm/hwcap.h``)."""
WRITTEN = frozenset(name for names in _CAPABILITIES.values() for name in names)
"""Extensions that LLVM may write instructions of without being asked for one by name."""


@cache
def arm_capabilities() -> frozenset[str] | None:
    """Returns LLVM's names of extensions that this process may use; None elsewhere than on Arm."""
    if not sys.platform.startswith("linux") or platform.machine() != "aarch64":
        return None
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return frozenset(
        name
        for kind, names in _CAPABILITIES.items()
        for name, bit in names.items()
        if ask(kind) >> bit & 1
    )


# ---- CPUs as targets, and which of the described processors they are -----------------------------


HOST = "host"


def host_target() -> Any:
    """Returns TVM's target of the machine that this runs on.

    What it has of AMX is part of it where the operating system lets this process use that; LLVM
    knows CPUs by their model, and takes virtual ones for older ones.
    """
    name = codegen.llvm_get_system_cpu()
    if not name:
        return tvm.target.Target("llvm")
    able = arm_capabilities()
    if able is not None:
        return _arm_target(name, able)
    more = [f"+{feature}" for feature in amx_of_this_machine()]
    return tvm.target.Target({"kind": "llvm", "mcpu": name, **({"mattr": more} if more else {})})


def _arm_target(name: str, able: frozenset[str]) -> Any:
    """Returns the target of an Arm CPU; of a model that says more than there is, what there is."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": name})
    if cpu_features(target) & WRITTEN == able:
        return target
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": "generic", "mattr": [f"+{feature}" for feature in sorted(able)]}
    )


_TRIPLE = re.compile(r"\w+(-\w+){1,3}(/[\w.-]+)?")


def _is_triple(target: Any) -> bool:
    return isinstance(target, str) and _TRIPLE.fullmatch(target) is not None


def _need_known_machine(target: Any) -> None:
    """Refuses a triple that LLVM does not know: it would end the process."""
    triple = str(target.attrs.get("mtriple") or "")
    known = sorted(map(str, codegen.llvm_get_targets()))
    if triple and not any(triple.startswith((name, *_ALSO.get(name, ()))) for name in known):
        raise UnsupportedTargetError(
            f"there is no target '{triple}'",
            why="LLVM knows no machine of that name",
            fix="use a name such as aarch64-linux-gnu or x86_64-linux-gnu",
        )


_ALSO = {"i386": ("i486", "i586", "i686"), "x86_64": ("amd64",)}
"""What architectures are called in triples beside their names."""


def _of_triple(target: str) -> dict[str, str]:
    """Returns the dictionary of ``TRIPLE`` or ``TRIPLE/CPU``."""
    triple, _, name = target.partition("/")
    return {"kind": "llvm", "mtriple": triple, "mcpu": name or "generic"}


def target_of(target: Any) -> Any:
    """Returns a CPU target of TVM's.

    Args:
        target: A TVM target, its string or dictionary form, ``host`` (this machine's CPU), or
            LLVM's names of another machine and its CPU, ``aarch64-linux-gnu/neoverse-n1``.

    Raises:
        UnsupportedTargetError: There is none, or it is no CPU.
    """
    if isinstance(target, str) and target == HOST:
        return host_target()
    try:
        resolved = tvm.target.Target(_of_triple(target) if _is_triple(target) else target)
    except Exception as error:  # TVM raises ValueError, KeyError or its own
        raise UnsupportedTargetError(
            f"TVM has no target {target!r}",
            why=str(error).strip().splitlines()[-1],
            fix="use 'llvm', or a target dictionary such as {'kind': 'llvm', 'mcpu': 'znver5'}",
        ) from error
    if resolved.kind.name != "llvm":
        raise UnsupportedTargetError(
            f"the target {target!r} is not supported",
            why="only CPU (llvm) targets are",
            fix="write its sources: save(graph, 'folder', target='c')"
            if resolved.kind.name == "c"
            else "use 'llvm', or a target dictionary such as {'kind': 'llvm', 'mcpu': 'znver5'}",
        )
    _need_known_cpu(resolved)
    return resolved


def _need_known_cpu(target: Any) -> None:
    """Refuses a CPU that LLVM does not know: it would compile for any CPU instead."""
    _need_known_machine(target)
    name = target.attrs.get("mcpu")
    known = sorted(map(str, codegen.llvm_get_cpu_archlist(target)))
    if name is not None and str(name) not in known:
        like = get_close_matches(str(name), known, 3)
        raise UnsupportedTargetError(
            f"LLVM knows no CPU '{name}'",
            why=f"for {target.attrs.get('mtriple', 'this machine')} it knows {len(known)} others",
            fix=f"use {', '.join(like)}" if like else "use 'host', this machine's CPU",
        )


def host_threads() -> int:
    """Returns how many threads TVM uses on this machine.

    TVM keeps the thread that asks on some of the cores for good, and with it every thread that it
    starts afterwards, whoever's they are: so a thread that ends is the one to ask.
    """
    with ThreadPoolExecutor(1) as asking:
        return int(asking.submit(num_threads).result())


def cpu_features(target: Any) -> frozenset[str]:
    """Returns LLVM's names of the features that a target's CPU has."""
    return _features(str(target))


@cache  # asked several times for each model that is compiled
def _features(target: str) -> frozenset[str]:
    return frozenset(map(str, codegen.llvm_get_cpu_features(tvm.target.Target(target))))


def architecture_of(target: Any) -> str:
    """Returns LLVM's name of a target's architecture: ``x86_64`` or ``aarch64``, say."""
    triple = str(target.attrs.get("mtriple") or platform.machine())
    name = triple.partition("-")[0].lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def host_architecture() -> str:
    """Returns the architecture of this machine."""
    return architecture_of(tvm.target.Target("llvm"))


def cpu_of(target: Any) -> Cpu:
    """Returns the best class of CPUs whose every feature a target has.

    Args:
        target: A TVM target of kind ``llvm``.
    """
    features, architecture = cpu_features(target), architecture_of(target)
    cpu = next(
        cpu
        for cpu in PROCESSORS
        if features.issuperset(cpu.features) and cpu.architecture in ("", architecture)
    )
    if cpu.refined is None:
        return cpu
    return cpu.refined(cpu, features, str(target.attrs.get("mcpu")))
