"""Targets of tests that ask for the numbers of a module, on any machine."""

from __future__ import annotations

from typing import Any

from tvm.target import codegen

UNOPTIMIZED: dict[str, Any] = {"kind": "llvm", "opt-level": 0}
"""Code as TVM writes it, which LLVM does not optimize: that takes twice as long.

What LLVM makes of the same calls is tested where users meet it, in ``qb.compile``: every operator
by ``test_emit_*.py``, every kernel by ``kernels/``, all bit for bit; and with the target below.
"""
HOST: dict[str, Any] = {"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()}
"""Optimized, and with fused multiply-add on every machine that can run TVM fast."""
TARGETS = (UNOPTIMIZED, HOST)
