"""How far outputs are from those of the float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.interpreter import evaluate
from qdqbridge.graph.numerics import dequantize

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
    """

    nmse: float
    top1: float | None = None
    score: float | None = None
    reference: float | None = None

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
) -> Metrics:
    """Returns the metrics of ``outputs``.

    Args:
        names: Names of the outputs.
        reference: The float model's outputs, batch by batch.
        outputs: The same of what is looked at.
        metric: The user's.
        reference_score: What ``metric`` gives for the float model.
    """
    errors, powers = np.zeros(len(names)), np.zeros(len(names))
    agree, count = 0, 0
    kept: list[Sequence[Array]] = []
    for wanted, found in zip(reference, outputs, strict=True):
        for i, (y, z) in enumerate(zip(wanted, found, strict=True)):
            real = y.astype(np.float64)
            errors[i] += float(np.sum((real - z) ** 2))
            powers[i] += float(np.sum(real**2))
        same = _same_class(wanted, found)
        agree, count = agree + int(same.sum()), count + same.size
        if metric is not None:
            kept.append(found)
    return Metrics(
        _nmse(errors, powers),
        agree / count if count else None,
        None if metric is None else float(metric(joined(names, kept))),
        reference_score,
    )


def _nmse(errors: Array, powers: Array) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / powers)
    mean = float(shares.mean()) if len(shares) else 0.0
    return math.inf if math.isnan(mean) else mean


def _same_class(wanted: Sequence[Array], found: Sequence[Array]) -> Array:
    """Returns where the first output with classes has its largest value at the same class."""
    for y, z in zip(wanted, found, strict=True):
        axis = 1 if y.ndim in (2, 4, 5) else y.ndim - 1
        if y.ndim >= 2 and y.shape[axis] > 1 and y.dtype.kind == "f":
            return np.asarray(np.argmax(y, axis=axis) == np.argmax(z, axis=axis))
    return np.zeros(0, bool)


def joined(names: Sequence[str], batches: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Returns each output of all batches as one array."""
    columns = zip(*batches, strict=True)
    return {
        name: np.concatenate([np.atleast_1d(part) for part in parts])
        for name, parts in zip(names, columns, strict=True)
    }


def outputs_of(graph: Graph, batches: Sequence[Mapping[str, Array]]) -> Iterator[list[Array]]:
    """Yields the outputs of ``graph`` for each batch.

    Args:
        graph: A canonical graph; onnxruntime runs it as it is written, the interpreter what
            onnxruntime cannot.
        batches: Inputs by name.
    """
    from qdqbridge.onnx_io.runtime.running import Runner

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
