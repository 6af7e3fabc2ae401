"""How far outputs are from those of the float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.errors import UnsupportedTargetError

Array = NDArray[Any]
Metric = Callable[[Mapping[str, Array]], float]
"""A user's score of all outputs, by name, examples along axis 0; more is better."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a set of parameters does to the outputs.

    Attributes:
        nmse: ``sum (y - y')**2 / sum y**2``, the mean over the outputs.
        top1: Share of examples whose largest class is the same; None where there are no classes.
        score: The user's metric of these outputs.
        reference: The user's metric of the float model.
        unseen: The same of those samples alone that nothing was chosen by; None where there are
            none.
    """

    nmse: float
    top1: float | None = None
    score: float | None = None
    reference: float | None = None
    unseen: Metrics | None = None

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise in dB; infinite for equal outputs."""
        if self.nmse == 0:
            return math.inf
        return -10 * math.log10(self.nmse) if math.isfinite(self.nmse) else -math.inf

    @property
    def drop(self) -> float:
        """How much of the user's metric is lost, else of the agreement; 0 without either."""
        if self.score is not None and self.reference is not None:
            return self.reference - self.score
        return 0.0 if self.top1 is None else 1.0 - self.top1


def measured(
    names: Sequence[str],
    reference: Iterable[Sequence[Array]],
    outputs: Iterable[Sequence[Array]],
    metric: Metric | None = None,
    reference_score: float | None = None,
    unseen: int = 0,
) -> Metrics:
    """Returns the metrics of ``outputs``.

    Args:
        names: Names of the outputs.
        reference: The float model's outputs, batch by batch.
        outputs: The same of what is looked at.
        metric: The user's; it is asked about all samples alone, whose labels it may know.
        reference_score: What ``metric`` gives for the float model.
        unseen: So many of the first batches are samples that nothing was chosen by.
    """
    tallies = [_BatchTally(names, metric), _BatchTally(names, None)]
    for index, (wanted, found) in enumerate(zip(reference, outputs, strict=True)):
        for tally in tallies if index < unseen else tallies[:1]:
            tally.add(wanted, found)
    whole = replace(tallies[0].metrics(), reference=reference_score)
    return replace(whole, unseen=tallies[1].metrics()) if unseen else whole


class _BatchTally:
    """Sums over batches."""

    def __init__(self, names: Sequence[str], metric: Metric | None) -> None:
        self._names, self._metric = names, metric
        self._errors, self._powers = np.zeros(len(names)), np.zeros(len(names))
        self._agree = self._count = 0
        self._kept: list[Sequence[Array]] = []

    def add(self, wanted: Sequence[Array], found: Sequence[Array]) -> None:
        for i, (y, z) in enumerate(zip(wanted, found, strict=True)):
            real, other = comparable(y, z)
            self._errors[i] += float(np.sum((real - other) ** 2))
            self._powers[i] += float(np.sum(real**2))
        same = _same_class(wanted, found)
        self._agree, self._count = self._agree + int(same.sum()), self._count + same.size
        if self._metric is not None:
            self._kept.append(found)

    def metrics(self) -> Metrics:
        top1 = self._agree / self._count if self._count else None
        score = None
        if self._metric is not None:
            score = float(self._metric(concat_outputs(self._names, self._kept)))
        return Metrics(_nmse(self._errors, self._powers), top1, score)


def _nmse(errors: Array, powers: Array) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / powers)
    mean = float(shares.mean()) if len(shares) else 0.0
    return math.inf if math.isnan(mean) else mean


def _same_class(wanted: Sequence[Array], found: Sequence[Array]) -> Array:
    """Returns where the first output with classes has its largest value at the same class."""
    for y, z in zip(wanted, found, strict=True):
        axis = class_axis(y)
        if axis is not None:
            return np.asarray(np.argmax(y, axis=axis) == np.argmax(z, axis=axis))
    return np.zeros(0, bool)


def class_axis(output: Array) -> int | None:
    """Returns the axis along which an output has a score for each class; None where it has none."""
    axis = 1 if output.ndim in (2, 4, 5) else output.ndim - 1
    classes = output.ndim >= 2 and output.shape[axis] > 1 and output.dtype.kind == "f"
    return axis if classes else None


def concat_outputs(names: Sequence[str], batches: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Returns each output of all batches as one array."""
    columns = zip(*batches, strict=True)
    return {
        name: np.concatenate([np.atleast_1d(part) for part in parts])
        for name, parts in zip(names, columns, strict=True)
    }


def float_values(
    graph: Graph, values: Sequence[Value], pieces: Sequence[Mapping[str, Array]]
) -> Iterator[dict[Value, Array]]:
    """Yields what a float graph computes, by onnxruntime, or the interpreter where it cannot.

    Args:
        values: What is wanted of it.
        pieces: Inputs by name.
    """
    from qdqbridge.targets.running import Runner

    values = list(dict.fromkeys(values))
    try:
        runner = Runner(graph, values, optimized=False, spinning=False)
    except UnsupportedTargetError:
        runner = None
    for piece in pieces:
        if runner is not None:
            yield dict(zip(values, runner.run(piece), strict=True))
        else:
            yield evaluate(graph, piece, wanted=values)[1]


def outputs_of(graph: Graph, batches: Sequence[Mapping[str, Array]]) -> Iterator[list[Array]]:
    """Yields the outputs of ``graph`` for each batch.

    Args:
        graph: A canonical graph; onnxruntime runs it as it is written, the interpreter what
            onnxruntime cannot.
        batches: Inputs by name.
    """
    from qdqbridge.targets.running import Runner

    try:
        runner = Runner(graph, optimized=False, spinning=False)
    except UnsupportedTargetError:
        runner = None
    for batch in batches:
        found = runner.run(batch) if runner else list(evaluate(graph, batch)[0].values())
        yield [
            array if value.quant is None else dequantize(array, value.quant.params)
            for value, array in zip(graph.outputs, found, strict=True)
        ]
