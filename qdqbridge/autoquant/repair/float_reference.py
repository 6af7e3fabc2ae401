"""What the float graph computes on a few samples, and how far other graphs are from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.uninformative import before_bounds
from qdqbridge.autoquant.profiling.masks import comparable
from qdqbridge.autoquant.profiling.samples import Sample, Samples, cut_along_examples
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import UnsupportedTargetError

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
