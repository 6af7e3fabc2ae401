"""CPUs as targets, and which of the described processors they are."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm.runtime import num_threads
from tvm.target import codegen

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relax.kernels.codegen.processors import PROCESSORS, Cpu

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
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


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
