"""How far outputs are from those of the float model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.convolution import CONV, CONV_TRANSPOSE
from qdqbridge.core.ops.data_movement import TRANSPOSE
from qdqbridge.core.ops.matmul import OPERATORS as PRODUCTS
from qdqbridge.core.ops.normalization import LOG_SOFTMAX, SOFTMAX
from qdqbridge.core.ops.pooling import OPERATORS as POOLS
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.errors import UnsupportedTargetError

Array = NDArray[Any]
_ROWS = 2
Metric = Callable[[Mapping[str, Array]], float]
"""A user's score of all outputs, by name, examples along axis 0; more is better."""


@runtime_checkable
class DivisibleMetric(Protocol):
    """A metric that tells of some of the examples as well, as one of labels can."""

    def __call__(self, outputs: Mapping[str, Array], /) -> float:
        """Returns the score of all examples."""
        ...

    def picked(self, rows: Sequence[int]) -> Metric:
        """Returns the metric of some examples."""
        ...


@dataclass(frozen=True, slots=True)
class ReferenceScore:
    """A user's metric, and what it gives for the float model."""

    metric: Metric
    reference: float


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
    scores: Sequence[ReferenceScore] = (),
    unseen: int = 0,
    axes: Sequence[int | None] = (),
) -> Metrics:
    """Returns the metrics of ``outputs``.

    Args:
        names: Names of the outputs.
        reference: The float model's outputs, batch by batch.
        outputs: The same of what is looked at.
        scores: The user's metric of all samples; behind it that of the unseen ones, if it tells
            of them alone.
        unseen: So many of the first batches are samples that nothing was chosen by.
        axes: Where each output has its classes: :func:`class_axes`.
    """
    whole, first = (*scores, None, None)[:2]
    tallies = [_BatchTally(names, whole, axes), _BatchTally(names, first, axes)]
    for index, (wanted, found) in enumerate(zip(reference, outputs, strict=True)):
        for tally in tallies if index < unseen else tallies[:1]:
            tally.add(wanted, found)
    found = tallies[0].metrics()
    return replace(found, unseen=tallies[1].metrics()) if unseen else found


class _BatchTally:
    """Sums over batches."""

    def __init__(
        self, names: Sequence[str], score: ReferenceScore | None, axes: Sequence[int | None]
    ) -> None:
        self._names, self._score, self._axes = names, score, axes
        self._errors, self._powers = np.zeros(len(names)), np.zeros(len(names))
        self._agree = self._count = 0
        self._kept: list[Sequence[Array]] = []

    def add(self, wanted: Sequence[Array], found: Sequence[Array]) -> None:
        for i, (y, z) in enumerate(zip(wanted, found, strict=True)):
            real, other = comparable(y, z)
            self._errors[i] += float(np.sum((real - other) ** 2))
            self._powers[i] += float(np.sum(real**2))
        same = _same_class(wanted, found, self._axes)
        self._agree, self._count = self._agree + int(same.sum()), self._count + same.size
        if self._score is not None:
            self._kept.append(found)

    def metrics(self) -> Metrics:
        top1 = self._agree / self._count if self._count else None
        nmse = _nmse(self._errors, self._powers)
        if self._score is None:
            return Metrics(nmse, top1)
        score = float(self._score.metric(concat_outputs(self._names, self._kept)))
        return Metrics(nmse, top1, score, self._score.reference)


def _nmse(errors: Array, powers: Array) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(errors == 0, 0.0, errors / powers)
    mean = float(shares.mean()) if len(shares) else 0.0
    return math.inf if math.isnan(mean) else mean


def _same_class(
    wanted: Sequence[Array], found: Sequence[Array], axes: Sequence[int | None]
) -> Array:
    """Returns where the first output with classes has its largest value at the same class."""
    for y, z, axis in zip(wanted, found, axes, strict=False):
        if axis is not None and y.shape[axis] > 1:
            return np.asarray(np.argmax(y, axis=axis) == np.argmax(z, axis=axis))
    return np.zeros(0, bool)


def class_axes(outputs: Sequence[Value]) -> tuple[int | None, ...]:
    """Returns the axis along which each output has a score for each class; None where it has none.

    A row is one example's. Where there are more axes, what computes the output says it: a
    convolution or a pool has its channels along axis 1, a product of matrices its columns along the
    last one, wherever these are moved to; a Softmax names its axis.
    """
    return tuple(map(_class_axis, outputs))


def _class_axis(output: Value) -> int | None:
    dtype = output.type.dtype if isinstance(output.type, TensorType) else None
    rank, moves, node = output.rank, list[Sequence[int]](), output.producer
    if rank is None or rank < _ROWS or (dtype is not None and not dtype.is_float):
        return None
    while rank > _ROWS and node is not None:
        if (transpose := TRANSPOSE.of(node)) is not None:
            moves.append(transpose.perm)
        elif node.op.flow not in (Flow.ELEMENTWISE, Flow.CONVERT) and node.op is not RESIZE:
            break
        same = (v for v in node.inputs if v is not None and not v.is_constant and v.rank == rank)
        node = next((v.producer for v in same), None)
    axis = 1 if rank == _ROWS else None if node is None else _axis_of_scores(node, rank)
    for perm in reversed(moves):
        axis = None if axis is None else perm.index(axis)
    return axis


def _axis_of_scores(node: Node, rank: int) -> int | None:
    if node.op in (CONV, CONV_TRANSPOSE, *POOLS):
        return 1
    if node.op in PRODUCTS:
        return rank - 1
    softmax = SOFTMAX.of(node) or LOG_SOFTMAX.of(node)
    return softmax.axes[0] % rank if softmax is not None and len(softmax.axes) == 1 else None


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
