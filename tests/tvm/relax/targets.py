"""Targets of tests that ask for the numbers of a module, on any machine."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.target import codegen

from qdqbridge.tvm.relax.kernels.codegen.passes import pipeline

UNOPTIMIZED: dict[str, Any] = {"kind": "llvm", "opt-level": 0}
"""Code as TVM writes it, which LLVM does not optimize: that takes twice as long.

What LLVM makes of the same calls is tested where users meet it, in ``qb.compile``: every operator
by ``test_emit_*.py``, every kernel by ``kernels/``, all bit for bit; and with the target below.
"""
HOST: dict[str, Any] = {"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()}
"""Optimized, and with fused multiply-add on every machine that can run TVM fast."""
TARGETS = (UNOPTIMIZED, HOST)


def compiled(module: Any, target: Any = UNOPTIMIZED) -> Any:
    """Returns what TVM makes of a module, without what every function asks of its arguments.

    To ask takes LLVM up to half of its time. ``test_dialect_module.py`` and ``test_emit_module.py``
    compile as those do who have TVM alone.
    """
    return tvm.compile(module, tvm.target.Target(target), tir_pipeline=pipeline())
