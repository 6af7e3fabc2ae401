"""Samples that say little of others: very few of them, or one that is far larger than all others.

The extremes of one sample are those of a class or a scene, not of the tensor. How much further
others reach falls with the number of samples; a range that is half as wide again costs less than
one bit, and clipping what was not seen costs far more. A few values that are negative, but for one
just above zero, do not say that others will not be positive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdqbridge.autoquant.choosers import Context, RangeChooser
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.planning.unstored import RECURRENT
from qdqbridge.autoquant.profiling.collect import Data, NanError
from qdqbridge.autoquant.profiling.samples import (
    FileSamples,
    Sample,
    Samples,
    batch_samples,
    cut_along_examples,
)
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.simulation.metrics import float_values
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import QuantParams

ENOUGH = 8
"""Different samples from which ranges are chosen by what was seen alone."""
HALVED = 14
"""So many samples are cut in halves, one to choose or learn by and one to judge."""
_FEW = 16
"""So many values do not say which sign reaches further."""


@dataclass(frozen=True, slots=True)
class WithRoom(RangeChooser):
    """The extremes, and further: others will be larger, and of the sign that hardly was seen.

    Attributes:
        margin: How much further the range reaches.
        repeats: How many times each sample comes: values that come again say nothing more.
    """

    margin: float
    repeats: float = 1.0

    def range(self, stats: TensorStats, format: Format) -> tuple[float, float]:
        """Returns the extremes moved outwards; of few values with both signs the nearer one more.

        Of up to 16 of them both ends are as far from zero, of many more each is where it was seen.
        """
        del format
        low, high = stats.minimum, stats.maximum
        if low < 0 < high:
            nearest = min(1.0, _FEW * self.repeats / max(stats.count, 1)) * stats.magnitude
            low, high = min(low, -nearest), max(high, nearest)
        return low * self.margin, high * self.margin

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        """Returns parameters; results of a tanh end at 1 where none was larger.

        So do the cells of an LSTM, which may be larger: a context does not tell them apart.
        """
        if context.producer in RECURRENT and stats.minimum <= stats.maximum:
            ends = min(-1.0, stats.minimum), max(1.0, stats.maximum)
            context = replace(context, interval=ends)
        return RangeChooser.__call__(self, stats, format, context)


def distinct(samples: Iterable[Sample], most: int = ENOUGH) -> list[int]:
    """Returns the numbers of the first ``most`` samples that are unlike all before them."""
    seen, found = set[bytes](), list[int]()
    for index, sample in enumerate(samples):
        digest = _digest(sample)
        if digest in seen:
            continue
        seen.add(digest)
        found.append(index)
        if len(found) >= most:
            break
    return found


def copies(samples: Iterable[Sample]) -> list[list[int]]:
    """Returns the numbers of equal samples together, in the order of the first of each."""
    found: dict[bytes, list[int]] = {}
    for index, sample in enumerate(samples):
        found.setdefault(_digest(sample), []).append(index)
    return list(found.values())


def _digest(sample: Sample) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(sample):
        digest.update(np.ascontiguousarray(sample[name]).tobytes())
    return digest.digest()


def different(samples: Iterable[Sample], most: int = ENOUGH) -> int:
    """Returns how many different samples there are; looks no further than at ``most``."""
    return len(distinct(samples, most))


def with_room(target: Target, count: int, repeats: float = 1.0) -> Target:
    """Returns a target whose ranges reach further than so few samples: twice as far as one does.

    Args:
        target: Its choosers are replaced where it lets others be tried.
        count: How many different samples there are.
        repeats: How many times each of them comes.
    """
    if count >= ENOUGH or not target.candidates or count < 1:
        return target
    return replace(target, chooser=WithRoom(1 + count**-0.5, repeats), candidates=())


def untried(repair: Sequence[str], target: Target, count: int) -> dict[str, str]:
    """Returns the repair steps that so few samples say nothing of, and why.

    What a step learns from samples is kept by others; of one sample there are none, and of a few
    they are too like it: sums of 8-bit weights end further off than they began. Weights of fewer
    bits are so far off that a few samples bring them closer.

    Args:
        repair: Steps that are asked for.
        target: Its weights.
        count: How many different samples there are.
    """
    needs = {"bias": ENOUGH, "learn": 2 if target.weights.storage.bits < 8 else ENOUGH, "round": 2}
    message = (
        f"{count} different {'sample is' if count == 1 else 'samples are'} too few to judge by"
    )
    return {step: message for step in repair if count < needs.get(step, 0)}


BAD_ALONE, GAIN_ALONE = 25.0, 3.0
"""What scaled channels have to gain on the one sample that there is, in dB, and how bad its outputs
have to be for channels to be scaled by what that sample shows of activations: no other sample says
what they do elsewhere, where they cost up to 30 dB."""


def worth_trying(step: str, before: float, after: float) -> bool:
    """Returns whether scaled channels are kept that only the sample they are made from can judge.

    Equalized channels are those of the weights, whatever the sample is.

    Args:
        step: ``equalize`` or ``smooth``.
        before: Output SQNR of the sample without it, in dB.
        after: With it.
    """
    return (step == "equalize" or before < BAD_ALONE) and after >= before + GAIN_ALONE


FAR = 100.0
"""How many times as large as most others a sample is that is left out."""
_SHARE = 0.02
"""More samples than this share are no accident."""


def outlying(samples: Iterable[Sample]) -> list[int]:
    """Returns the numbers of samples far larger than most others; none where they are several.

    A range that such a sample decides resolves nothing of the others, and in the error of the
    outputs no other counts beside it.

    Args:
        samples: What was given to calibrate with.
    """
    peaks: dict[str, list[float]] = {}
    for sample in samples:
        for name, array in sample.items():
            if array.dtype.kind == "f":
                peaks.setdefault(name, []).append(float(np.abs(array).max(initial=0.0)))
    count = max((len(each) for each in peaks.values()), default=0)
    found: set[int] = set()
    for each in peaks.values() if count >= ENOUGH else ():
        wide, usual = np.array(each), float(np.median(each))
        far = np.isfinite(wide) & (wide > FAR * usual) & (usual > 0)
        found |= set(np.flatnonzero(far).tolist())
    return [] if len(found) > max(1, _SHARE * count) else sorted(found)


# ---- unseen --------------------------------------------------------------------------------------
# Samples that are left out: nothing is chosen by them, so that they tell how close others come.
#
# What is measured on samples that ranges and weights were chosen by is better than what others get,
# by some dB where there are many of them and by a dozen where there are few.


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
