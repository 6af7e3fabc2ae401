"""Graphs emitted for Relay, built with half-even rounding, next to the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tvm import ir, relay

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.tvm.relay.build import build
from qdqbridge.tvm.relay.emit import emit
from tests.tvm.relax.single_ops import Model
from tests.tvm.relay.relay_cases import FAST

Array = np.ndarray[Any, Any]
QUICK = "llvm -opt-level=0"
"""Builds in half the time. Where there is no fused multiply-add, LLVM's passes change no bit."""
FUSED = f"llvm -mcpu={FAST}"
"""All of LLVM's passes, on a processor with fused multiply-add."""


class Reached(Exception):
    """A test of Relax emission has made its model and is about to compile it."""


def model_of(module: str, test: str, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Returns the model that a test of Relax emission compiles."""
    found: list[Model] = []

    def stop(m: Model, *_: Any, **__: Any) -> Any:
        found.append(m)
        raise Reached

    tests = import_module(f"tests.tvm.relax.{module}")
    monkeypatch.setattr(Model, "check", stop)
    if hasattr(tests, "outputs"):
        monkeypatch.setattr(tests, "outputs", stop)
    with pytest.raises(Reached):
        getattr(tests, test)()
    return found[0]


def extents_of(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Returns the symbolic extents of a graph as the inputs have them."""
    return {
        dim: size
        for value in graph.inputs
        for dim, size in zip(value.type.shape or (), inputs[value.name].shape, strict=True)
        if isinstance(dim, str)
    }


def results(
    graph: Graph,
    inputs: Mapping[str, Array],
    variant: str,
    layout: str | None = None,
    target: str = QUICK,
) -> dict[str, tuple[Array, Array]]:
    """Returns what Relay and what the interpreter computes, by output."""
    wanted = qb.evaluate(graph, inputs)
    module, params = emit(graph, variant, layout, extents=extents_of(graph, inputs))
    assert params == {}
    found = build(module, target=target).run(inputs)
    assert list(found) == list(wanted)
    return {name: (_narrow(found[name], wanted[name]), wanted[name]) for name in wanted}


def _narrow(found: Array, wanted: Array) -> Array:
    """Sub-byte types are held one per byte."""
    same = found.dtype == wanted.dtype or wanted.dtype.kind == "V"
    return found if same else found.astype(wanted.dtype)


def distances(m: Model, variant: str, layout: str | None = None) -> dict[str, float]:
    """Returns the largest difference in LSB of every branch, by its label."""
    found: dict[str, float] = {}
    pairs = results(m.load(), m.inputs, variant, layout)
    for branch in m.branches:
        for name in branch.outputs:
            ours, wanted = pairs[name]
            assert ours.shape == wanted.shape, branch.label
            apart = np.abs(ours.astype(np.float64) - wanted.astype(np.float64))
            equal = ours.tobytes() == np.ascontiguousarray(wanted).tobytes()
            found[branch.label] = 0.0 if equal else max(float(np.nanmax(apart)), 1e-30)
    return found


def operators(module: ir.IRModule) -> list[str]:
    """Returns the operators of ``main`` in the order of their calls."""
    return [call.op.name for call in calls(module)]


def calls(module: ir.IRModule) -> list[Any]:
    """Returns the calls of ``main``, operands first."""
    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relay.Call):
            found.append(expr)

    relay.analysis.post_order_visit(module["main"], visit)
    return found


def composites(module: ir.IRModule) -> Counter[str]:
    """Returns how often each composite occurs in a module."""
    found: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relay.Function) and expr.attrs and "Composite" in expr.attrs.keys():  # noqa: SIM118
            found[str(expr.attrs["Composite"])] += 1

    for function in module.functions.values():
        relay.analysis.post_order_visit(function, visit)
    return found
