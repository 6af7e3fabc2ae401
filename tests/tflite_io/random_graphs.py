"""Random graphs as TFLite files: what is wrong when they are read back, or run in LiteRT."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.diff import diff
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InvalidModelError, UnsupportedTargetError
from qdqbridge.tflite_io.litert import Kernels, node_differences, recorded_tensors
from qdqbridge.tflite_io.writer import TFLiteModel, write
from tests.fuzzing import random_models
from tests.tflite_io.drawn_inputs import drawn_inputs
from tests.tvm.relax.kernels import random_graphs

_POLES = ("Composition", "Div", "Log", "Pow", "Reciprocal", "Sqrt")
"""Operators that give infinities or no number of finite operands."""


def graph_of(seed: int, folder: Path) -> Graph:
    """Returns a canonical graph: even seeds of quantized operators, odd ones of an ONNX file."""
    path = folder / "random.onnx"
    if seed % 2 == 0:  # saved, so that its numbers are such as a file can hold
        qb.save(canonicalize(random_graphs.random_graph(seed // 2, 8)[1]), path, overwrite=True)
    else:
        path.write_bytes(random_models.random_graph(Random(seed)))
    return qb.load(path)


def differences(seed: int, folder: Path, counts: Counter[str], *, run: bool = True) -> list[str]:
    """Writes one graph, reads it back and runs it in LiteRT; returns what is wrong.

    Args:
        seed: Decides the graph.
        folder: Where files go.
        counts: Takes what was written, and what refused whom.
        run: Ask LiteRT as well.
    """
    try:
        graph = graph_of(seed, folder)
    except qb.QdqBridgeError:
        counts["not read"] += 1
        return []
    path = folder / "random.tflite"
    try:
        made = write(graph, path, overwrite=True)
    except UnsupportedTargetError as error:
        counts[f"refused: {error.why[:120]}"] += 1
        return []
    counts["written"] += 1
    found: list[str] = []
    again = qb.load(path)
    if again.digest != made.digest:
        found.append("another digest: " + "; ".join(map(str, diff(made.graph, again)))[:600])
    inputs = _fitting(graph, made, seed)
    if all(note.rule == "float-region" for note in made.notes):
        found += _changed(graph, made.graph, inputs)
    return [*found, *(_run(made, inputs) if run else ())]


def _fitting(graph: Graph, made: TFLiteModel, seed: int) -> dict[str, np.ndarray]:
    """Returns inputs with two samples where the graph can be run with two, else with one."""
    inputs = drawn_inputs(made, seed, 2)
    try:
        qb.evaluate(graph, inputs)
    except InvalidModelError:
        return drawn_inputs(made, seed, 1)
    return inputs


def _changed(graph: Graph, written: Graph, inputs: dict[str, np.ndarray]) -> list[str]:
    """Returns which results the rewrites have changed, where no note says so.

    Integers may not change at all; floats of what is written out (Erf, Softplus) by a few ulp.
    """
    before, after = qb.evaluate(graph, inputs), qb.evaluate(written, inputs)
    found: list[str] = []
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        a, b = before[name], after[name]
        if a.dtype.kind == "f" and a.shape == b.shape:
            largest = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
            # Erf is written out by a polynomial, Softplus by Exp and Log.
            equal = np.allclose(a, b, rtol=1e-5, atol=1e-5 * largest, equal_nan=True)
        else:
            equal = np.array_equal(a, b)
        if not equal:
            more = f"{np.sum(a != b)} of {a.size}" if a.shape == b.shape else f"{a.shape} {b.shape}"
            found.append(f"rewritten: '{name}' ({value.type.dtype.label}) differs: {more}")
    return found


def _run(made: TFLiteModel, inputs: dict[str, np.ndarray]) -> list[str]:
    try:
        recorded = recorded_tensors(made, inputs, Kernels.BUILTIN)
        steps = node_differences(made, inputs, Kernels.BUILTIN)
    except UnsupportedTargetError as error:
        return [f"LiteRT: {error.why[:300]}"]
    if not all(np.isfinite(array).all() for array in recorded.values()):
        return []  # what rounding makes of a NaN or an infinity is nobody's promise
    return [
        f"{step.node.op.name} '{step.node.name}': {step.largest:g} LSB, "
        f"{step.different} of {step.count}"
        for step in steps
        if step.value.quant is not None and step.largest > 1 and step.node.op.name not in _POLES
    ]
