"""The permission to use AMX, which Linux gives to a process that asks for it."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path

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
