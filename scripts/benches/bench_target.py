"""The CPU that a measurement compiles for."""

from __future__ import annotations

from typing import Any


def target_of(cpu: str) -> Any:
    """Returns what ``qdqbridge.compile`` takes: ``host``, or LLVM's name of a CPU (``haswell``)."""
    return cpu if cpu == "host" else {"kind": "llvm", "mcpu": cpu}
