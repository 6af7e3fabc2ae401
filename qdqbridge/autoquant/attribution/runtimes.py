"""Two runtimes of one model: which node an engine computes otherwise than the contract, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.attribution.attribute import Attribution, SuspectTensor
from qdqbridge.autoquant.attribution.causes import KERNEL, KernelShare, kernel_share
from qdqbridge.autoquant.attribution.simulation import GraphRuns, decibels, ratio
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.targets.comparison.compare import Engine

Array = NDArray[Any]


def attribute_to_kernels(graph: Graph, engine: Engine, data: Mapping[str, Array]) -> Attribution:
    """Returns which nodes of a model an engine computes otherwise than the interpreter.

    Every node is compared on the operands that the engine itself had; what it is off by there is
    put into a run of the interpreter alone, to see what it does to the outputs.

    Args:
        graph: The model.
        engine: What runs it.
        data: One array per input.

    Raises:
        InputDataError: The data does not fit.
        UnsupportedTargetError: The engine cannot run the model.
    """
    found = kernel_share(graph, engine, data)
    runs = GraphRuns(graph, data)
    moved = {value: _moved(runs, value, steps) for value, steps in found.steps.items()}
    rows = [
        (runs.noise(runs.outputs({}, {value: parts})), value)
        for value, parts in moved.items()
        if parts is not None
    ]
    rows.sort(key=lambda row: -row[0])
    together = runs.noise(runs.outputs({}, {v: p for v, p in moved.items() if p is not None}))
    theirs = [
        found.outputs.get(name, runs.stored(value)).reshape(runs.stored(value).shape)
        for name, value in zip(graph.output_names, graph.outputs, strict=True)
    ]
    results = [value for node in graph.nodes for value in node.outputs]
    hidden = set(found.unseen)
    shown = sum(value.name not in hidden for value in results)
    return Attribution(
        tensors=tuple(_suspect_kernel(found, runs, value, alone) for alone, value in rows),
        quantized_db=decibels(runs.noise(theirs)),
        simulated_db=decibels(together),
        repaired_db=decibels(0.0),
        aligned=shown / len(results) if results else 1.0,
        unknown=(),
        engine=found.engine,
        unseen=found.unseen,
    )


def _moved(runs: GraphRuns, value: Value, steps: Array) -> list[Array] | None:
    """Returns what a value holds where its kernel alone is the engine's, as it is stored."""
    parts = runs.parted(steps)
    clean = [values[value] for values in runs.clean]
    if parts is None or any(p.shape != c.shape for p, c in zip(parts, clean, strict=True)):
        return None
    sums = [c.astype(np.result_type(c, p)) + p for c, p in zip(clean, parts, strict=True)]
    if value.quant is None:
        return [s.astype(c.dtype) for s, c in zip(sums, clean, strict=True)]
    low, high = value.quant.params.qmin, value.quant.params.qmax
    return [np.clip(s, low, high).astype(c.dtype) for s, c in zip(sums, clean, strict=True)]


def _suspect_kernel(
    found: KernelShare, runs: GraphRuns, value: Value, alone: float
) -> SuspectTensor:
    difference = found.differences[value]
    whole = sum(difference.causes.values())
    shares = {f"{KERNEL}: {name}": count / whole for name, count in difference.causes.items()}
    return SuspectTensor(
        name=difference.name,
        quantized_name=difference.name,
        kind=KERNEL,
        node=difference.node,
        alone_db=decibels(alone),
        added_db=decibels(ratio(runs.real(value).reshape(-1), found.gaps[value].reshape(-1))),
        gain_db=0.0,
        cause=max(shares, key=shares.__getitem__, default=KERNEL),
        causes=shares,
        place=value.producer,
    )
