"""CPUs as targets, and what kernels need to know of one: its vector registers and dot product."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import tvm
from tvm.runtime import num_threads
from tvm.target import codegen

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relax.amx_permission import amx_of_this_machine

HOST = "host"


@dataclass(frozen=True, slots=True)
class Cpu:
    """A class of CPUs that runs the same kernels; to be compared by ``==``, not by identity.

    Attributes:
        name: What it is called, by its dot product.
        lanes: 32-bit lanes of a vector register, which is also the number of output channels that
            are packed side by side.
        registers: Vector registers.
        depth: Products that one lane of a dot product sums: 4 of bytes, or 2 of 16-bit integers.
        fuses: True where products and sums of floats fuse.
        permutes: True where one instruction looks 64 bytes up in 128 entries (AVX-512 VBMI). A
            kernel that cares says so in its description.
        amx: True where tiles of bytes are multiplied by one instruction (AMX-INT8).
        reads_ahead: True where a page of memory comes as fast as it can by itself once it is begun,
            so that asking for every line costs (Zen 4, as measured; Zen 3, whose registers are half
            as long, gets half as much again by being asked). As ``permutes``, where one cares: a
            module, whose equal descriptions share code, is made for one CPU.
    """

    name: str
    lanes: int
    registers: int
    depth: int
    fuses: bool
    permutes: bool = field(default=False, compare=False)
    amx: bool = field(default=False, compare=False)
    reads_ahead: bool = field(default=False, compare=False)

    @property
    def bytes_in(self) -> bool:
        """True where dot products take activations as they are carried, one byte each."""
        return self.depth == 4

    @property
    def multiplies_bytes(self) -> bool:
        """True where an instruction multiplies bytes, and adds two or four of their products."""
        return self.bytes_in or self == AVX2


AVX512_VNNI = Cpu("avx512_vnni", 16, 32, 4, fuses=True)
"""``vpdpbusd`` on 512 bits."""
AVX_VNNI = Cpu("avx_vnni", 8, 16, 4, fuses=True)
"""``vpdpbusd`` on 256 bits."""
AVX2 = Cpu("avx2", 8, 16, 2, fuses=True)
"""``vpmaddwd`` on 256 bits; ``vpmaddubsw`` only where codes are too small for it to saturate."""
GENERIC = Cpu("generic", 4, 16, 2, fuses=False)
"""Plain vectors of LLVM, on any architecture."""

_WANTED: tuple[tuple[Cpu, tuple[str, ...]], ...] = (
    (AVX512_VNNI, ("avx512vnni", "avx512bw", "avx512vl", "fma")),
    (AVX_VNNI, ("avxvnni", "avx2", "fma")),
    (AVX2, ("avx2", "fma")),
)


def host_target() -> Any:
    """Returns TVM's target of the machine that this runs on.

    What it has of AMX is part of it where the operating system lets this process use that; LLVM
    knows CPUs by their model, and takes virtual ones for older ones.
    """
    name = codegen.llvm_get_system_cpu()
    if not name:
        return tvm.target.Target("llvm")
    more = [f"+{feature}" for feature in amx_of_this_machine()]
    return tvm.target.Target({"kind": "llvm", "mcpu": name, **({"mattr": more} if more else {})})


def target_of(target: Any) -> Any:
    """Returns a CPU target of TVM's.

    Args:
        target: A TVM target, its string or dictionary form, or ``host``: this machine's CPU.

    Raises:
        UnsupportedTargetError: There is none, or it is no CPU.
    """
    if isinstance(target, str) and target == HOST:
        return host_target()
    try:
        resolved = tvm.target.Target(target)
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
            fix="use 'llvm', or a target dictionary such as {'kind': 'llvm', 'mcpu': 'znver5'}",
        )
    _need_known_cpu(resolved)
    return resolved


def _need_known_cpu(target: Any) -> None:
    """Refuses a CPU that LLVM does not know: it would compile for any CPU instead."""
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
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


def cpu_of(target: Any) -> Cpu:
    """Returns the best class of CPUs whose every feature a target has.

    Args:
        target: A TVM target of kind ``llvm``.
    """
    features = cpu_features(target)
    cpu = next((cpu for cpu, wanted in _WANTED if features.issuperset(wanted)), GENERIC)
    if cpu != AVX512_VNNI:
        return cpu
    zen = str(target.attrs.get("mcpu")).startswith("znver")
    return replace(
        cpu, permutes="avx512vbmi" in features, amx="amx-int8" in features, reads_ahead=zen
    )
