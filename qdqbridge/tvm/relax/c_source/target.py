"""The processors that C is written for, by the names that compilers have for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relax.kernels.codegen.processors import Cpu
from qdqbridge.tvm.relax.kernels.codegen.processors.c import CORTEX_M, GENERIC_C

_SINGLE, _DOUBLE = "-mfpu=fpv4-sp-d16 -mfloat-abi=hard", "-mfpu=fpv5-d16 -mfloat-abi=hard"
_CORTEX = {
    "cortex-m0": "", "cortex-m0plus": "", "cortex-m3": "", "cortex-m23": "",
    "cortex-m4": _SINGLE, "cortex-m7": _DOUBLE,
    "cortex-m33": "-mfpu=fpv5-sp-d16 -mfloat-abi=hard", "cortex-m55": "-mfloat-abi=hard",
}  # fmt: skip
"""GCC's flags of floats, by processor."""
_WITH_DSP = frozenset(("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"))


@dataclass(frozen=True, slots=True)
class CTarget:
    """A processor that C is written for.

    Attributes:
        cpu: Its class.
        flags: GCC's flags of it; empty for any processor.
    """

    cpu: Cpu
    flags: str = ""


def c_target(target: Any) -> CTarget:
    """Returns the processor of ``c``, ``c/PROCESSOR``, or a dictionary of TVM, or its JSON.

    Raises:
        UnsupportedTargetError: There is no such processor.
    """
    if isinstance(target, str) and target.strip().startswith("{"):
        target = json.loads(target)
    if isinstance(target, Mapping):
        name = str(target.get("mcpu") or "")
        unknown = sorted(set(target) - {"kind", "mcpu"})
        if unknown:
            raise UnsupportedTargetError(
                f"the target {dict(target)!r} is not supported",
                why=f"of {', '.join(unknown)} the sources say nothing",
                fix="give its kind and mcpu only",
            )
    else:
        name = str(target).strip().partition("/")[2]
    if name in ("", "generic"):
        return CTarget(GENERIC_C)
    if name not in _CORTEX:
        like = get_close_matches(name, _CORTEX, 3) or list(_CORTEX)
        raise UnsupportedTargetError(
            f"C is written for no processor '{name}'",
            why=f"those with a name are {', '.join(_CORTEX)}",
            fix=f"use 'c/{like[0]}', or 'c' for any other processor",
        )
    flags = f"-mcpu={name} -mthumb {_CORTEX[name]}".strip()
    return CTarget(CORTEX_M if name in _WITH_DSP else GENERIC_C, flags)
