"""A user's own measure of the outputs: a function of his, or top-1 accuracy by labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdqbridge.autoquant.profiling.samples import RunSamples, Samples
from qdqbridge.autoquant.simulation import batches_of
from qdqbridge.autoquant.simulation.metrics import (
    Array,
    Metric,
    concat_outputs,
    float_values,
    outputs_of,
)
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError

TOP1 = "top-1 accuracy"


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTop1:
    """The share of predictions that are the label, as a :data:`Metric`.

    Attributes:
        labels: The right class of every example, in the order of the data; for segmentation, of
            every place in it.
    """

    labels: Array

    def __post_init__(self) -> None:
        if self.labels.dtype.kind not in "iu" or not self.labels.size:
            raise InputDataError(
                f"labels are {self.labels.dtype}{list(self.labels.shape)}, not numbers of classes",
                fix="give one integer per example: labels.argmax(axis=1) where they are one-hot",
            )

    def __call__(self, outputs: Mapping[str, Array]) -> float:
        """Returns the share, of the first output that has classes or is a class itself.

        Raises:
            InputDataError: No output has a prediction for each label.
        """
        for array in outputs.values():
            if array.dtype.kind in "iu" and self._fits(array.shape):
                predicted = array
            elif (axis := self._class_axis(array)) is not None:
                predicted = np.argmax(array, axis=axis)
            else:
                continue
            right: Array = predicted.reshape(self.labels.shape) == self.labels
            return float(np.mean(right))
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
        raise InputDataError(
            "the labels do not fit the outputs",
            why=f"labels are {list(self.labels.shape)}, the outputs {shapes}",
            fix="give one label per example, in the order of the data; for other outputs, a metric "
            "of your own in Python: quantize(..., metric=function)",
        )

    def _class_axis(self, array: Array) -> int | None:
        """Returns the axis without which a float output has the shape of the labels.

        Where several are as long, images have classes along axis 1, sequences along the last one.
        """
        usual = 1 if array.ndim in (2, 4, 5) else array.ndim - 1
        axes = [usual, *range(1, array.ndim)] if array.dtype.kind == "f" and array.ndim > 1 else []
        fitting = (a for a in axes if self._fits(array.shape[:a] + array.shape[a + 1 :]))
        return next((a for a in fitting if array.shape[a] > 1), None)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return tuple(n for n in shape if n != 1) == tuple(n for n in self.labels.shape if n != 1)

    def picked(self, rows: Sequence[int]) -> LabelledTop1:
        """Returns the same of some examples."""
        return LabelledTop1(self.labels[list(rows)])


@dataclass(frozen=True, slots=True)
class MetricScore:
    """What a user's measure says of the float model and of the quantized one.

    Attributes:
        name: What is measured.
        reference: The float model's.
        score: The quantized one's.
        samples: Of how many samples.
    """

    name: str
    reference: float
    score: float
    samples: int


@dataclass(frozen=True, slots=True, eq=False)
class UserMetric:
    """A metric with all samples as they were given, which is the order that it knows.

    Attributes:
        metric: The user's score of all outputs.
        samples: All samples in their order.
        left_out: Numbers of those that nothing is chosen by.
        original: The float model.
        references: What ``metric`` gives for it on all samples, and on those that were left out
            where it can tell (labels can, other functions cannot).
    """

    metric: Metric
    samples: Samples
    left_out: Sequence[int]
    original: Graph
    references: tuple[float, float | None]

    @staticmethod
    def of(
        metric: Metric, original: Graph, samples: Samples, left_out: Sequence[int]
    ) -> UserMetric:
        """Returns it with the float model measured: what does not fit is refused before any work.

        Raises:
            InputDataError: The metric gives no number, or does not fit the outputs.
        """
        made = UserMetric(metric, samples, left_out, original, (0.0, None))
        whole = _score(metric, _float_outputs(original, samples))
        few = made.of_left_out()
        part = None if few is None else _score(few[0], _float_outputs(original, few[1]))
        return UserMetric(metric, samples, left_out, original, (whole, part))

    def of_left_out(self) -> tuple[LabelledTop1, Samples] | None:
        """Returns the measure and the samples of those left out alone; None where it cannot."""
        if not isinstance(self.metric, LabelledTop1) or not self.left_out:
            return None
        if isinstance(self.samples, RunSamples):
            return None
        step = self.samples.step
        rows = [number * step + offset for number in self.left_out for offset in range(step)]
        if len(self.metric.labels) != len(self.samples) * step:
            return None
        return self.metric.picked(rows), self.samples.picked(list(self.left_out))

    def apart(self) -> tuple[Samples, Samples | None, Metric]:
        """Returns the samples that choices are made by, those left out, and the metric of both.

        It takes those left out first. Where it cannot tell of some alone, all are together.
        """
        found = self.of_left_out()
        if found is None or not isinstance(self.metric, LabelledTop1):
            return self.samples, None, self.metric
        labels, (first, unseen), step = self.metric.labels, found, self.samples.step
        rest = sorted(set(range(len(self.samples))) - set(self.left_out))
        behind = [number * step + offset for number in rest for offset in range(step)]
        joined = LabelledTop1(np.concatenate([first.labels, labels[behind]]))
        return self.samples.picked(rest), unseen, joined

    def scores(self, graph: Graph) -> tuple[MetricScore, MetricScore | None]:
        """Returns what the measure says of a quantized graph: of all samples, and of the left-out.

        Args:
            graph: What was made of the float model.
        """
        name = TOP1 if isinstance(self.metric, LabelledTop1) else _name_of(self.metric)
        whole, part = self.references
        step = self.samples.step
        score = _score(self.metric, _outputs(graph, self.samples))
        every = MetricScore(name, whole, score, len(self.samples) * step)
        few = self.of_left_out()
        if few is None or part is None:
            return every, None
        metric, unseen = few
        score = _score(metric, _outputs(graph, unseen))
        return every, MetricScore(name, part, score, len(unseen) * step)


def _float_outputs(graph: Graph, samples: Samples) -> dict[str, Array]:
    found = float_values(graph, graph.outputs, batches_of(samples, graph))
    rows = [[values[value] for value in graph.outputs] for values in found]
    return concat_outputs(graph.output_names, rows)


def _outputs(graph: Graph, samples: Samples) -> dict[str, Array]:
    found = list(outputs_of(graph, batches_of(samples, graph)))
    return concat_outputs(graph.output_names, found)


def _name_of(metric: Metric) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__)).replace("<lambda>", "metric")


def _score(metric: Metric, outputs: Mapping[str, Array]) -> float:
    found = float(metric(outputs))
    if not math.isfinite(found):
        raise InputDataError(
            f"the metric gives {found}", fix="let it return a finite number, the larger the better"
        )
    return found
