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
