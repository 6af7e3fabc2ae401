"""What of 64-bit Arm the operating system lets this process use, as it tells every process."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

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
