"""Whether a step helped: quantized graphs against the float graph, on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.samples import Sample, Samples
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.interpreter import evaluate

Array = NDArray[Any]
Run = Callable[[Sample], Sequence[Array]]
SAMPLES = 64
"""How many samples decide."""


class FloatReference:
    """Holds what the float graph computes on a few samples, and compares other graphs with it.

    Attributes:
        samples: The samples, spread evenly over all there are.
    """

    def __init__(self, graph: Graph, samples: Samples, limit: int = SAMPLES) -> None:
        """Runs the float graph.

        Args:
            graph: The float graph.
            samples: Calibration data.
            limit: How many samples to compare on.
        """
        picked = np.linspace(0, len(samples) - 1, min(limit, len(samples))).astype(int)
        self.samples = [samples[int(i)] for i in picked]
        run = runner(graph)
        self._wanted = [[a.astype(np.float64) for a in run(sample)] for sample in self.samples]

    def sqnr(self, graph: Graph) -> float:
        """Returns the output SQNR of ``graph`` in dB; of several outputs the mean noise counts."""
        run = runner(graph)
        noise = np.zeros(len(self._wanted[0]))
        signal = np.zeros_like(noise)
        for sample, wanted in zip(self.samples, self._wanted, strict=True):
            for i, (got, want) in enumerate(zip(run(sample), wanted, strict=True)):
                usable = np.isfinite(want)
                noise[i] += float(np.sum((got[usable] - want[usable]) ** 2))
                signal[i] += float(np.sum(want[usable] ** 2))
        ratio = noise / np.where(signal > 0, signal, 1.0)
        return decibels(float(ratio.mean()))


def decibels(ratio: float) -> float:
    """Returns a ratio of noise to signal as dB; infinity where there is no noise."""
    if math.isnan(ratio):
        return -math.inf
    return math.inf if ratio == 0 else -10 * math.log10(ratio)


def runner(graph: Graph) -> Run:
    """Returns what runs a graph: onnxruntime, or the interpreter where ONNX cannot express it."""
    from qdqbridge.onnx_io.running import Runner

    try:
        return Runner(graph, optimized=False).run
    except UnsupportedTargetError:
        return lambda sample: list(evaluate(graph, sample)[0].values())
