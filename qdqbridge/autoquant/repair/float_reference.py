"""What the float graph computes on a few samples, and how far other graphs are from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.uninformative import before_bounds
from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.profiling.samples import (
    RunSamples,
    Sample,
    Samples,
    batch_samples,
    cut_along_examples,
)
from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.autoquant.repair.sweep import SAMPLES
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import QdqBridgeError, UnsupportedTargetError

Array = NDArray[Any]
Run = Callable[[Sample], Sequence[Array]]
JUDGING = 64
"""How many samples decide."""


class FloatReference:
    """Holds what the float graph computes on a few samples, and compares other graphs with it.

    Attributes:
        samples: The samples, spread evenly over all there are.
    """

    def __init__(
        self, graph: Graph, samples: Samples, limit: int = JUDGING, *, unbounded: bool = False
    ) -> None:
        """Runs the float graph.

        Args:
            graph: The float graph.
            samples: Calibration data.
            limit: How many samples to compare on.
            unbounded: Compare what is given to gates and shares that end the network, which
                saturate; only what stores no ranges computes that everywhere.
        """
        picked = np.linspace(0, len(samples) - 1, min(limit, len(samples))).astype(int)
        self.samples, self._unbounded = [samples[int(i)] for i in picked], unbounded
        run = self._runner(graph)
        with cut_along_examples(graph.inputs):
            self._wanted = [[a.astype(np.float64) for a in run(sample)] for sample in self.samples]

    def sqnr(self, graph: Graph) -> float:
        """Returns the output SQNR of ``graph`` in dB; of several outputs the mean noise counts."""
        return decibels(float(self.errors(graph).mean()))

    def errors(self, graph: Graph) -> Array:
        """Returns the noise of every sample as share of the mean power, outputs averaged."""
        run = self._runner(graph)
        noise = np.zeros((len(self.samples), len(self._wanted[0])))
        signal = np.zeros_like(noise)
        for k, (sample, wanted) in enumerate(zip(self.samples, self._wanted, strict=True)):
            for i, (got, want) in enumerate(zip(run(sample), wanted, strict=True)):
                real, other = comparable(want, got)
                noise[k, i], signal[k, i] = np.sum((other - real) ** 2), np.sum(real**2)
        power = signal.mean(axis=0)
        return (noise / np.where(power > 0, power, 1.0)).mean(axis=1)

    def _runner(self, graph: Graph) -> Run:
        outputs = graph.outputs
        return runner(graph, [before_bounds(v) for v in outputs] if self._unbounded else outputs)


def decibels(ratio: float) -> float:
    """Returns a ratio of noise to signal as dB; infinity where there is no noise."""
    if math.isnan(ratio):
        return -math.inf
    return math.inf if ratio == 0 else -10 * math.log10(ratio)


def runner(graph: Graph, values: Sequence[Value] | None = None) -> Run:
    """Returns what runs a graph: onnxruntime, or the interpreter where ONNX cannot express it.

    Args:
        graph: Any graph.
        values: What to return; None for its outputs.
    """
    from qdqbridge.targets.running import Runner

    wanted = graph.outputs if values is None else values
    try:
        return Runner(graph, wanted, optimized=False).run
    except UnsupportedTargetError:

        def interpreted(sample: Sample) -> list[Array]:
            found = evaluate(graph, sample, wanted=wanted)[1]
            return [found[value] for value in wanted]

        return interpreted


# ---- What repair costs data of other scales, where no range is stored that these would leave -----
# Weights alone fit data of any scale, and repair fits them to the data given. Behind inputs that
# are far too small only biases count, behind those that are far too large none does: what gains
# there may lose at the right scale.


SCALES = (1 / 256, 1 / 16, 16.0, 256.0)
"""Other scales of data: pixels as bytes or as shares, samples of sound as integers or as shares."""
MOST_LOST = 3.0
"""What all steps together may lose on data of another scale, in dB."""
MIXED = SAMPLES * 3 // 2
"""So many samples to learn from, of which every third is one of another scale."""
_ELSEWHERE, _NOISE, _EXACT = 16, 0.0, 120.0
"""So many samples tell what is lost elsewhere. Below so many dB there is nothing left to lose, and
what is closer than so many is exact."""


class OtherScales:
    """What all steps so far cost data of other scales, and whether one more may be kept.

    Args:
        graph: The float graph.
        samples: Calibration data.
    """

    def __init__(self, graph: Graph, samples: Samples) -> None:
        self._graph, self._samples = graph, spread(samples, _ELSEWHERE)
        self._references: dict[float, FloatReference] | None = None
        self._known: tuple[Graph | None, Mapping[float, float]] = (None, {})
        self._lost: Mapping[float, float] = {}

    @staticmethod
    def of(decision: Decision, samples: Samples) -> OtherScales | None:
        """Returns what judges repair of a decision; None where ranges are stored.

        Args:
            decision: That without repair.
            samples: Calibration data.
        """
        return None if decision.values else OtherScales(decision.plan.graph, samples)

    def refusal(self, before: Graph, after: Graph) -> str:
        """Returns why a step must not be kept, nothing where it may be; then its loss is noted.

        Args:
            before: The quantized graph without the step.
            after: With it.
        """
        graph, plain = self._known
        plain = plain if graph is before else self._sqnr(before)
        self._known, changed = (before, plain), self._sqnr(after)
        lost = {f: self._lost.get(f, 0.0) + plain[f] - changed[f] for f in plain}
        worst = max(lost, key=lambda f: lost[f], default=1.0)
        if lost and lost[worst] > MOST_LOST:
            scale = f"{worst:g} times as large" if worst > 1 else f"divided by {1 / worst:g}"
            return f"it would lose {lost[worst]:.1f} dB on data {scale}"
        self._known, self._lost = (after, changed), lost
        return ""

    def among(self, samples: Samples) -> Samples:
        """Returns up to ``SAMPLES`` of them, behind each two the first at another scale.

        Halves of every second one have each sample and its copy together: what is learned from
        one half is judged by the other.

        Args:
            samples: Calibration data.
        """
        names, factors = _with_a_scale(self._samples), cycle(SCALES)
        runs: list[Sample] = []
        for index, sample in enumerate(spread(samples, SAMPLES)):
            runs.append(sample)
            if index % 2:
                runs.append(_scaled(runs[-2], names, next(factors)))
        return batch_samples(runs)

    def _sqnr(self, graph: Graph) -> Mapping[float, float]:
        """Returns dB by scale, from those of noise to those of what is exact."""
        found = {f: judge.sqnr(graph) for f, judge in self._judges().items()}
        return {f: min(max(db, _NOISE), _EXACT) for f, db in found.items()}

    def _judges(self) -> dict[float, FloatReference]:
        if self._references is None:
            self._references = {}
            names = _with_a_scale(self._samples)
            for factor in SCALES if names else ():
                runs = RunSamples.of_runs([_scaled(s, names, factor) for s in self._samples])
                try:
                    judge = FloatReference(self._graph, runs, unbounded=True)
                except QdqBridgeError:  # the model computes no such data
                    continue
                self._references[factor] = judge
        return self._references


def _with_a_scale(samples: Samples) -> list[str]:
    """Returns the inputs of real numbers; one with two values at most is a mask or a constant."""
    seen: dict[str, set[float]] = {}
    for sample in samples:
        for name, array in sample.items():
            if array.dtype.kind == "f" and len(seen.setdefault(name, set())) <= 2:
                seen[name].update(np.unique(array)[:3].tolist())
    return [name for name, values in seen.items() if len(values) > 2]


def _scaled(sample: Sample, names: Sequence[str], factor: float) -> Sample:
    return {n: a * a.dtype.type(factor) if n in names else a for n, a in sample.items()}
