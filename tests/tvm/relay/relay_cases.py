"""Calls of the dialect next to what the operator table says of them, built as one Relay module."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relay

from qdqbridge.core.graph.types import QuantParams
from qdqbridge.tvm.relay.build import build
from qdqbridge.tvm.relay.dialect import call
from tests.tvm.dialect.contract import Array

CPUINFO = Path("/proc/cpuinfo")
FAST = "cascadelake" if CPUINFO.exists() and "avx512_vnni" in CPUINFO.read_text() else "haswell"
"""A processor whose code runs here, with fused multiply-add."""
TARGETS = [
    "llvm -mtriple=x86_64-linux-gnu",
    f"llvm -mtriple=x86_64-linux-gnu -mcpu={FAST}",
]
"""The second has fused multiply-add."""
UNOPTIMIZED = f"{TARGETS[0]} -opt-level=0"
"""For sums of integers, which fused multiply-add leaves alone: LLVM takes half of the time."""


def const(value: Any, dtype: str) -> Any:
    return relay.const(np.asarray(value, dtype), dtype)


def constant(array: Array) -> Any:
    """Returns an array as a constant of its own type."""
    return const(array, str(array.dtype))


def scale_of(p: QuantParams) -> Any:
    return const(p.scale, "float32")


def zero_of(p: QuantParams) -> Any:
    return const(p.zero_point, "int32")


def all_args(*pairs: QuantParams | None) -> list[Any]:
    one = [const(1.0, "float32"), const(0, "int32")]
    return [c for p in pairs for c in ([scale_of(p), zero_of(p)] if p is not None else one)]


@dataclass
class Cases:
    """Calls that share one function, each with its inputs and what it must return."""

    target: str = TARGETS[1]
    inputs: dict[str, Array] = field(default_factory=dict)
    variables: list[Any] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    expected: list[tuple[Array, str]] = field(default_factory=list)

    def add(self, name: str, args: list[Any], attrs: dict[str, Any], expected: Array) -> Any:
        """Adds a call, which is returned; NumPy arrays among ``args`` are inputs."""
        expr = call(name, [self._expression(arg) for arg in args], attrs)
        return self.add_expr(expr, expected, f"{name} {attrs}")

    def add_expr(self, expr: Any, expected: Array, text: str) -> Any:
        """Adds an expression of inputs that :meth:`input` made."""
        self.calls.append(expr)
        self.expected.append((expected, text))
        return expr

    def input(self, array: Array) -> Any:
        name = f"x{len(self.variables)}"
        self.inputs[name] = array
        self.variables.append(relay.var(name, shape=array.shape, dtype=str(array.dtype)))
        return self.variables[-1]

    def _expression(self, arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(self._expression(member) for member in arg)
        return self.input(arg) if isinstance(arg, np.ndarray) else arg

    def module(self) -> tvm.IRModule:
        body = relay.Tuple(self.calls) if len(self.calls) > 1 else self.calls[0]
        module = tvm.IRModule.from_expr(relay.Function(self.variables, body))
        return relay.transform.InferType()(module)

    def run(self) -> list[Array]:
        return list(build(self.module(), target=self.target).run(self.inputs).values())

    def check(self) -> None:
        """Builds, runs, and demands equal bits."""
        assert self.expected
        for got, (expected, text) in zip(self.run(), self.expected, strict=True):
            assert got.dtype == expected.dtype, text
            assert got.shape == expected.shape, text
            wrong = np.flatnonzero((got != expected).ravel())
            where = wrong[:3]
            assert not wrong.size, (
                f"{text}: {wrong.size} of {got.size} differ, "
                f"{got.flat[where]} instead of {expected.flat[where]} at {where}"
            )
