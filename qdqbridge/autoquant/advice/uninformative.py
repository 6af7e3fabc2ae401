"""Samples that say nothing of others.

They are constants, one sample many times, or so small that the model answers them all alike. Ranges
that such samples choose are nobody's. That the model answers alike is measured against what 8 bits
resolve: where its answers differ by less than a thousandth of their size, a quantized model that
answers the same whatever it is given is as close as any. Gates and shares that end a network
saturate, so that what goes into them is compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.few_samples import different
from qdqbridge.autoquant.profiling.collect import Data
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import filled_by_masks
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.targets.running import Runner

_SAMPLES = 16
_BOUNDED = frozenset(row.name for row in OPERATORS if row.interval is not None)
ALIKE = 1e-3
"""Answers to different samples that differ by less, as a share of their size, are reported."""


def uninformative(graph: Graph, data: Data) -> str:
    """Returns a warning where the data cannot stand for others, else nothing.

    Args:
        graph: A canonical float graph.
        data: What was given to calibrate with.
    """
    evidence = _constants(data) or _one_sample(data) or _warn_indifferent_outputs(graph, data)
    if not evidence:
        return ""
    return (
        f"the data do not represent what the model gets in use: {evidence}. Ranges chosen from "
        "them fit no other data: give different samples as the model gets them, with the scale and "
        "mean of its preprocessing"
    )


def _constants(data: Data) -> str:
    """Tells of inputs all of which are one number each, whatever their types."""
    held: dict[str, np.generic] = {}
    elements = 0
    for sample in data:
        for name, array in sample.items():
            if not array.size:
                continue
            first = array.reshape(-1)[0]
            if held.setdefault(name, first) != first or (array != first).any():
                return ""
            elements = max(elements, array.size)
    if not held or elements * len(data) < 2:
        return ""
    each = " and ".join(f"input {name!r} is {value}" for name, value in held.items())
    return f"{each} everywhere"


def _one_sample(data: Data) -> str:
    count = len(data)
    if count == 1:
        return "there is one sample alone"
    return f"all of its {count} samples are the same" if different(data, 2) < 2 else ""


def _warn_indifferent_outputs(graph: Graph, data: Data) -> str:
    """Tells of different samples which the float model answers alike."""
    if len(data) < 2:
        return ""
    samples = spread(data, _SAMPLES)
    values = [before_bounds(output) for output in graph.outputs]
    try:
        differing = _difference(Runner(graph, values), samples)
    except UnsupportedTargetError:
        return ""  # whoever profiles the model tells why it does not run
    if differing >= ALIKE:
        return ""
    return (
        f"the float model's outputs for {len(samples)} different samples differ by {differing:.1g} "
        "of their size, which 8 bits do not tell apart"
    )


def before_bounds(value: Value) -> Value:
    """Returns what an operator of bounded results at the end of a network is given, else itself."""
    node = value.producer
    while node is not None and node.inputs:
        passed = node.op.name in _BOUNDED or node.op.flow is Flow.MOVE
        operand = node.optional(0)
        if operand is None or operand.is_constant or not passed:
            break
        value, node = operand, operand.producer
    return value


def _difference(runner: Runner, samples: Samples) -> float:
    """Returns how far answers differ from their mean, as a share of their size.

    That is said of the output that differs most. Answers of several shapes, and integers that
    change, differ for sure.
    """
    answers: list[list[NDArray[np.generic]]] = [list(runner.run(sample)) for sample in samples]
    most = 0.0
    for column in zip(*answers, strict=True):
        if len({array.shape for array in column}) > 1:
            return np.inf
        stacked = np.stack(column)
        if stacked.dtype.kind != "f":
            most = max(most, float((stacked != stacked[0]).any()))
            continue
        wide = stacked.astype(np.float64)
        filled = filled_by_masks(stacked)
        if filled is not None:
            wide[filled] = 0
        if not np.isfinite(wide).all():
            return np.inf  # whoever profiles the model tells of it
        size = float(np.sqrt(np.mean(wide**2)))
        most = max(most, float(np.sqrt(wide.var(axis=0).mean())) / size if size else 0.0)
    return most
