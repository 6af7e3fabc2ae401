"""How close a quantized graph's outputs are to those of the given float model: what users are told.

It is measured on what is saved, as onnxruntime runs it without optimizations. Samples that nothing
was chosen by are few, and a third of the noise of an output lies in few samples, so that what is
likely on others is said by all: by what they have, less what weights gain on samples that they were
learned from and not on others, which is known of weights that were learned from half of them. One
figure for an output of boxes and scores hides what became of the scores, so that the parts of
outputs that a Concat joins are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import comparable
from qdqbridge.autoquant.record import Output, OutputPart
from qdqbridge.autoquant.repair.sweep import decibels
from qdqbridge.autoquant.search.tuning import errors_between
from qdqbridge.autoquant.simulation import batches_of
from qdqbridge.autoquant.simulation.metrics import (
    Metrics,
    class_axes,
    float_values,
    measured,
    outputs_of,
)
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import computed
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.dynamic import OPERATORS as RUN_TIME_SCALES
from qdqbridge.core.ops.elementwise import CONCAT

Array = NDArray[Any]
GOOD, BELOW = 30.0, 10.0
"""A part of an output is told of that is further from the float model's than this, in dB, and this
much further than the whole."""
_MANY_SAMPLES = 64
"""So many samples tell what others have, within a dB."""
_LEAST_ERROR = 1e-3
"""Samples without any error count as with this share of the mean."""
_NORMAL = 1.96
"""19 times in 20 were logarithms normal; their tails are longer, and 17 or 18 in 20 it is."""
_CERTAIN = 3.3
"""999 times in 1000."""
_CHOSEN = 42.0
"""What ranges and choosers gain on the samples that they were chosen by, and not on others, is not
known of a network: root mean square in dB, times the number of samples, to which it is inverse.
Of twelve networks: 1.3 dB with two draws of 32 samples each, less than 0.5 with two of 128."""
_LARGEST, _OTHERS = 10, 27.0
"""So many of the largest samples tell how long a tail is, or one of so many."""
_TAIL = 1.0
"""In dB: an interval that tails make longer by less is told without them."""
_PARTS = 64
"""Parts of an output, at most: more are no boxes and scores."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What was measured.

    Attributes:
        metrics: Of the samples that nothing was chosen by; where none were left out, of all.
        samples: How many examples these are.
        left_out: Whether they were left out.
        everything: The metrics of all samples that were run.
        count: How many examples these are.
        outputs: Each output on the samples of ``metrics``, with its parts.
        expected: The SQNR that other samples most likely have: what is told first.
        optimism: How much closer all samples come than that, in dB.
        likely: Between which SQNRs their mean lies, nine times in ten; None where that is not
            known, or where many were left out.
        tails: Whether that is so wide because a few samples reach much further than others.
    """

    metrics: Metrics
    samples: int
    left_out: bool
    everything: Metrics
    count: int
    outputs: tuple[Output, ...]
    expected: float
    optimism: float
    likely: tuple[float, float] | None = None
    tails: bool = False

    @property
    def on_others(self) -> str:
        """What other samples most likely have, in words."""
        ends = "" if self.likely is None else " ({:.1f} to {:.1f})".format(*self.likely)
        tails = ", of which a few reach much further than these" if self.tails else ""
        return f"{closeness(self.expected)}{ends} likely on other samples{tails}"

    @property
    def where(self) -> str:
        """The samples of :attr:`metrics`, in words."""
        if self.left_out:
            return f"{self.samples} left-out sample{'s' if self.samples > 1 else ''}"
        if self.samples == 1:
            return "the one sample that parameters were chosen by, which tells nothing of others"
        return f"the {self.samples} samples that parameters were chosen by, none left out"

    @property
    def judged(self) -> str:
        """What is likely, what was measured, and on what, in words."""
        return f"{self.on_others}; {closeness(self.metrics.sqnr)} on {self.where}"

    def mixed(self) -> str:
        """Returns a warning about parts of outputs that the whole hides, else nothing."""
        lines: list[str] = []
        for output in self.outputs:
            worst = min(output.parts, key=lambda part: part.sqnr_db, default=None)
            if worst is None or not worst.sqnr_db < min(GOOD, output.sqnr_db - BELOW):
                continue
            each = ", ".join(
                f"'{p.name}' ({p.low:.4g} to {p.high:.4g}) {p.sqnr_db:.1f} dB" for p in output.parts
            )
            lines.append(
                f"output '{output.name}' joins tensors of different ranges: its "
                f"{output.sqnr_db:.1f} dB are those of the larger ones, of {each}. Split the "
                "model's output so that each has a range of its own (end the model before the "
                "Concat), or leave the Concat float (--exclude)"
            )
        return "; ".join(lines)


def closeness(sqnr: float) -> str:
    """Returns an SQNR in words."""
    if math.isfinite(sqnr):
        return f"{sqnr:.2f} dB SQNR"
    return "the same outputs" if sqnr > 0 else "no signal"


def delivered(
    given: Graph,
    graph: Graph,
    samples: Samples,
    unseen: Samples | None = None,
    optimism: float = 0.0,
) -> Delivered:
    """Returns how close the outputs of ``graph`` are to those of ``given``.

    Args:
        given: The float model.
        graph: What was made of it.
        samples: Those that parameters were chosen by.
        unseen: Those that were left out.
        optimism: How much closer ``samples`` come by what was learned from them, in dB.
    """
    # Scales of a run are those of all that is run at once: one example is what a device is given.
    together = 1 if any(node.op in RUN_TIME_SCALES for node in graph.nodes) else None
    first = [] if unseen is None else batches_of(unseen, graph, together)
    batches = [*first, *batches_of(samples, graph, together)]
    parts = [_JoinedParts.of(value) for value in given.outputs]
    leaves = [leaf for part in parts for leaf in part.leaves]
    examples = [example for each in (unseen, samples) if each is not None
                for example in batches_of(each, graph, 1)]  # fmt: skip
    run = [*batches, *reaching_further(given, examples)]
    floats = list(float_values(given, [*given.outputs, *leaves], run))
    every_wanted = [[values[v] for v in given.outputs] for values in floats]
    every_found = list(outputs_of(graph, run))
    wanted, found = every_wanted[: len(batches)], every_found[: len(batches)]
    count = len(first) or len(batches)
    tallies = [_OutputTally(part) for part in parts]
    for values, real, other in zip(floats[:count], wanted, found, strict=False):
        for tally, y, z in zip(tallies, real, other, strict=True):
            tally.add(values, y, z)
    everything = measured(
        graph.output_names, wanted, found, unseen=len(first), axes=class_axes(given.outputs)
    )
    judged = samples if unseen is None else unseen
    total = len(samples) * samples.step + (0 if unseen is None else len(unseen) * unseen.step)
    rows = zip(graph.output_names, tallies, strict=True)
    errors = errors_between(wanted, found)
    cut = len(errors_between(wanted[: len(first)], found[: len(first)])) if first else 0
    others = errors[cut:] * 10 ** (optimism / 10)
    expected, likely = expected_sqnr(errors[:cut], others)
    tails = False
    if likely is not None:
        lowest = min(
            (
                decibels(float(errors_between([*wanted, y], [*found, z]).mean()))
                for y, z in zip(
                    every_wanted[len(batches) :], every_found[len(batches) :], strict=True
                )
            ),
            default=math.inf,
        )
        tails = lowest < likely[0] - _TAIL
        usual = decibels(float(np.sort(errors)[:-1].mean())) if tails else expected
        likely = min(likely[0], lowest), max(likely[1], usual)
    return Delivered(
        everything.unseen or everything,
        len(judged) * judged.step,
        unseen is not None,
        everything,
        total,
        tuple(tally.output(name) for name, tally in rows),
        expected,
        _above(decibels(float(errors.mean())), expected),
        likely,
        tails,
    )


def reaching_further(given: Graph, examples: Sequence[Sample]) -> Iterator[Sample]:
    """Yields, for each float input, what reaches as far as an example of as many others may.

    It is the example that reaches furthest, multiplied: of a tail whose index has Hill's estimate
    h, the largest of three times as many others is less than 27**h times that of these, nine times
    in ten (of the quotient of two exponentially distributed numbers 9 is that quantile).

    Args:
        given: The model.
        examples: One example each.
    """
    top = max(_LARGEST, len(examples) // _LARGEST)
    for value in given.inputs:
        if len(examples) < 2 * top or value.type.dtype.numpy.kind != "f":
            continue
        reach = np.array([float(np.max(np.abs(x[value.name]), initial=0)) for x in examples])
        largest: NDArray[np.float64] = np.sort(reach)[: -top - 2 : -1]
        if not 0 < largest[-1] <= largest[0] < np.inf:
            continue
        further = _OTHERS ** float(np.log(largest[:-1] / largest[-1]).mean())
        far = examples[int(reach.argmax())]
        yield {**far, value.name: (far[value.name] * further).astype(far[value.name].dtype)}


def _above(sqnr: float, expected: float) -> float:
    return max(sqnr - expected, 0.0) if math.isfinite(sqnr) else 0.0


def expected_sqnr(
    unseen: NDArray[np.float64], seen: NDArray[np.float64]
) -> tuple[float, tuple[float, float] | None]:
    """Returns the SQNR that other samples most likely have, and where their mean lies.

    The samples that were left out count alone where they are many, and where they are that much
    worse that chance is no reason: then parameters fit what they were chosen by more than is known.

    Args:
        unseen: Errors of the samples that were left out, as shares of the mean power.
        seen: Of those that parameters were chosen by, as they were had they been left out.
    """
    if len(unseen) >= _MANY_SAMPLES:
        return decibels(float(unseen.mean())), None
    others = np.concatenate([unseen, seen])
    alone = likely_sqnr(unseen, _CERTAIN)
    if alone is not None and decibels(float(others.mean())) > alone[1]:
        others = unseen
    # Samples that nothing was chosen by owe nothing to chance.
    chosen = 0.0 if others is unseen else _CHOSEN / len(others)
    return decibels(float(others.mean())), likely_sqnr(others, chosen=chosen)


def likely_sqnr(
    errors: NDArray[np.float64], sure: float = _NORMAL, chosen: float = 0.0
) -> tuple[float, float] | None:
    """Returns between which SQNRs other samples lie, by the errors of a few.

    The mean error of a few samples is mostly that of one or two. Their logarithms are spread nearly
    evenly, and say how far the mean of others may be (Cox's interval of a lognormal mean). Where
    one or two samples are further off than that, the spread of the errors themselves says it.

    Args:
        errors: Of each sample, as share of the mean power.
        sure: The quantile of a normal distribution that bounds it.
        chosen: How far errors may be off because parameters were chosen by these samples, in dB.
    """
    count, mean = len(errors), float(errors.mean()) if len(errors) else 0.0
    if count <= 2 or not np.isfinite(mean) or mean <= 0:
        return None
    # A sample without any error has no logarithm.
    logarithms = np.log(np.maximum(errors, mean * _LEAST_ERROR))
    variance, free = float(logarithms.var(ddof=1)), count - 1
    sure += (sure**3 + sure) / (4 * free)  # Student's, nearly
    far = sure * math.sqrt(variance / count + variance**2 / (2 * free)) * 10 / math.log(10)
    spread = sure * float(errors.std(ddof=1)) / (math.sqrt(count) * mean)
    far = max(far, -decibels(1 + spread))
    far, sqnr = math.hypot(far, _NORMAL * chosen), decibels(mean)
    return sqnr - far, sqnr + far


@dataclass(slots=True)
class _SignalPower:
    signal: float = 0.0
    noise: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, real: Array, other: Array) -> None:
        if real.size:
            self.signal += float(np.sum(real**2))
            self.noise += float(np.sum((real - other) ** 2))
            self.low, self.high = (
                min(self.low, float(real.min())),
                max(self.high, float(real.max())),
            )

    @property
    def decibels(self) -> float:
        """SQNR; infinite without noise."""
        if self.noise == 0 or math.isnan(self.noise):
            return math.inf if self.noise == 0 else -math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


@dataclass(slots=True)
class _OutputTally:
    parts: _JoinedParts
    whole: _SignalPower = field(default_factory=_SignalPower)
    each: dict[int, _SignalPower] = field(default_factory=dict[int, _SignalPower])

    def add(self, values: Mapping[Value, Array], wanted: Array, found: Array) -> None:
        real, other = comparable(wanted, found)
        self.whole.add(real, other)
        if len(self.parts.leaves) > 1:
            labels = self.parts.labels({v: values[v].shape for v in self.parts.leaves})
            for index in range(len(self.parts.leaves)):
                here = labels == index
                self.each.setdefault(index, _SignalPower()).add(real[here], other[here])

    def output(self, name: str) -> Output:
        rows = tuple(
            OutputPart(leaf.name, power.decibels, power.low, power.high)
            for leaf, power in zip(self.parts.leaves, self.each.values(), strict=False)
            if power.low <= power.high
        )
        return Output(name, self.whole.decibels, rows)


@dataclass(frozen=True, slots=True)
class _JoinedParts:
    """An output as data movement of what Concats join.

    Attributes:
        leaves: What they join; the output itself where there is no Concat.
    """

    output: Value
    leaves: Sequence[Value]

    @staticmethod
    def of(output: Value) -> _JoinedParts:
        found = list(dict.fromkeys(_leaves(output)))
        return _JoinedParts(output, found if 1 < len(found) <= _PARTS else [])

    def labels(self, shapes: Mapping[Value, tuple[int, ...]]) -> Array:
        """Returns for each element of the output the number of the leaf that it comes from."""
        known: dict[Value, Array] = {
            leaf: np.full(shapes[leaf], index, np.float32) for index, leaf in enumerate(self.leaves)
        }

        def label(value: Value) -> Array:
            if value not in known:
                node = value.producer
                if value.constant is not None:
                    known[value] = np.full(value.constant.shape, -1, np.float32)
                else:
                    assert node is not None
                    data = [v for _, v in node.data_operands()]
                    operands = [_operand(v, data, label) for v in node.inputs]
                    found = computed(node, operands)
                    known.update(zip(node.outputs, found, strict=False))
            return known[value]

        return label(self.output)


def _operand(value: Value | None, data: Sequence[Value], label: Any) -> Array | None:
    if value is None:
        return None
    if value in data:
        return label(value)
    assert value.constant is not None
    return value.constant.numpy()


def _leaves(value: Value) -> list[Value]:
    """Returns what is moved into a value: itself where something computes it."""
    node = value.producer
    if value.constant is not None:
        return []
    if node is None or (node.op is not CONCAT and node.op.flow is not Flow.MOVE):
        return [value]
    data = [v for _, v in node.data_operands()]
    if any(v is not None and v not in data and not v.is_constant for v in node.inputs):
        return [value]
    if node.op is not CONCAT and len(data) != 1:
        return [value]
    return [leaf for each in data for leaf in _leaves(each)]
