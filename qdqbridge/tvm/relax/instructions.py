"""Which instructions compiled code may hold, and whether this CPU has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relax.kernels.codegen.cpu import (
    WRITTEN,
    architecture_of,
    cpu_features,
    host_architecture,
    host_target,
)

_ARCHITECTURES = frozenset({"aarch64", "x86_64"})
_HABITS = frozenset({"branchfusion", "ermsb", "fsrm", "macrofusion", "nopl", "vzeroupper"})
"""How LLVM likes to write code for a CPU; every CPU runs it."""
_NEVER_WRITTEN = frozenset(
    {
        "cldemote",
        "clflushopt",
        "clwb",
        "clzero",
        "el2vmsa",
        "el3",
        "enqcmd",
        "ete",
        "fsgsbase",
        "hreset",
        "invpcid",
        "kl",
        "movdir64b",
        "movdiri",
        "mwaitx",
        "pconfig",
        "perfmon",
        "pku",
        "prefetchi",
        "ptwrite",
        "rdpid",
        "rdpru",
        "rtm",
        "serialize",
        "sgx",
        "shstk",
        "trbe",
        "tsxldtrk",
        "uintr",
        "usermsr",
        "waitpkg",
        "wbnoinvd",
        "widekl",
        "xsave",
        "xsavec",
        "xsaveopt",
        "xsaves",
    }
)
"""Instructions of operating systems and of programs that ask for them by name."""


def features_of(target: Any) -> list[str]:
    """Returns LLVM's names of the architecture and instruction sets of code for a target.

    Names with hyphens are LLVM's habits, but for those of AMX. What else LLVM knows of a model of
    Arm are instructions of operating systems, and versions of the architecture.

    Args:
        target: A TVM target of kind ``llvm``.
    """
    names, architecture = cpu_features(target), architecture_of(target)
    if architecture == "aarch64":
        return sorted({architecture, *(names & WRITTEN)})
    written = {name for name in names if "-" not in name or name.startswith("amx-")}
    return sorted({architecture, *written} - _HABITS - _NEVER_WRITTEN)


def missing_features(features: Iterable[str]) -> list[str]:
    """Returns which names of :func:`features_of` this CPU has not."""
    return sorted(set(features) - set(features_of(host_target())))


def need_features(features: Iterable[str], where: str = "") -> None:
    """Requires that this CPU has instruction sets: without them the process would end.

    Args:
        features: Names of :func:`features_of`.
        where: The file that holds the code, if any.

    Raises:
        UnsupportedTargetError: It has not all of them.
    """
    missing = missing_features(features)
    machines = sorted(_ARCHITECTURES & set(missing))
    if missing:
        raise UnsupportedTargetError(
            "this CPU cannot run the library" if where else "this CPU cannot run the executable",
            where=where,
            why=f"it is {host_architecture()}, and the code is for {machines[0]}"
            if machines
            else f"it has no {', '.join(missing[:6])}",
            fix="compile the model for the target 'host', or run it where it was compiled for",
        )
