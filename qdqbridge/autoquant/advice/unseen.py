"""Samples that are left out: nothing is chosen by them, so that they tell how close others come.

What is measured on samples that ranges and weights were chosen by is better than what others get,
by some dB where there are many of them and by a dozen where there are few.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdqbridge.autoquant.advice.few_samples import copies
from qdqbridge.autoquant.profiling.collect import Data, NanError
from qdqbridge.autoquant.profiling.samples import Samples, batch_samples, cut_along_examples
from qdqbridge.autoquant.profiling.streams import FileSamples
from qdqbridge.autoquant.simulation.metrics import float_values
from qdqbridge.core.graph.graph import Graph

LEAST, SHARE, MOST = 16, 8, 64
"""Different samples that are needed to leave some out; one of so many is; how many at most."""


def unseen(data: Data) -> list[int]:
    """Returns the numbers of the samples that are left out, none where there are too few.

    They lie evenly among all of them, and copies of one are all left out.

    Args:
        data: What was given to calibrate with.
    """
    if len(data) < LEAST:
        return []
    groups = copies(data)
    count = min(len(groups) // SHARE, MOST) if len(groups) >= LEAST else 0
    chosen = (groups[(2 * i + 1) * len(groups) // (2 * count)] for i in range(count))
    return sorted(number for group in chosen for number in group)


def check_unseen(graph: Graph, samples: Samples) -> None:
    """Refuses samples on which the float model computes NaN: ranges do not show these.

    Raises:
        NanError: It names the output.
    """
    with cut_along_examples(graph.inputs):
        for found in float_values(graph, graph.outputs, samples.batches(graph.inputs)):
            for name, value in zip(graph.output_names, graph.outputs, strict=True):
                array = found[value]
                if array.dtype.kind == "f" and np.isnan(array).any():
                    count = int(np.isnan(array).sum())
                    raise NanError(name, count, "it is an output of the model")


def parted(data: Data, numbers: list[int]) -> tuple[Data, Samples]:
    """Returns the samples without some of them, and these.

    Args:
        data: All samples.
        numbers: Of those that are left out.
    """
    wanted = set(numbers)
    if isinstance(data, Samples):
        rest = [i for i in range(len(data)) if i not in wanted]
        return data.picked(rest), data.picked(numbers)
    picked = batch_samples([sample for i, sample in enumerate(data) if i in wanted])
    assert isinstance(data, FileSamples)
    kept = [n for n in range(len(data) + len(data.left_out)) if n not in data.left_out]
    left_out = data.left_out | {kept[number] for number in numbers}
    return replace(data, left_out=left_out), picked
