"""Repair step by step: each is tried on calibration data, and kept only where it helped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qdqbridge.autoquant.apply import apply
from qdqbridge.autoquant.decide import Decision
from qdqbridge.autoquant.plan import Fixed
from qdqbridge.autoquant.profile import Profile
from qdqbridge.autoquant.repair.correct import corrected
from qdqbridge.autoquant.repair.equalize import equalized
from qdqbridge.autoquant.repair.gptq import with_rounding
from qdqbridge.autoquant.repair.proof import FloatReference
from qdqbridge.autoquant.repair.smooth import smoothed
from qdqbridge.autoquant.samples import Samples
from qdqbridge.errors import InputDataError, QdqBridgeError
from qdqbridge.graph.graph import Graph

GAIN = 0.02
"""What a step has to gain at least, in dB; less is chance."""
ORDER = ("equalize", "smooth", "round", "bias")
"""All steps in the order in which they are done."""
GRAPH_STEPS = ("equalize", "smooth")
"""Those that scale channels of the float graph, so that it has to be looked at again."""
DEFAULT = ("equalize", "round", "bias")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What became of a step.

    Attributes:
        step: Its name, one of :data:`ORDER`.
        applied: Whether it was kept.
        told: What it did, or why it did nothing.
        before: Output SQNR on calibration data without it, in dB; None where nothing was tried.
        after: With it.
    """

    step: str
    applied: bool
    told: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedState:
    """A quantized graph, and how it came about.

    Attributes:
        graph: The quantized graph.
        decision: What was decided.
        profile: What was seen of the float graph that was decided about.
    """

    graph: Graph
    decision: Decision
    profile: Profile


Again = Callable[[Graph], QuantizedState]
"""Profiles another float graph on the same data, and quantizes it."""


def check_steps(steps: Sequence[str]) -> None:
    """Refuses steps that do not exist.

    Raises:
        InputDataError: A name is unknown.
    """
    unknown = sorted(set(steps) - set(ORDER))
    if unknown:
        raise InputDataError(
            f"there is no repair step {unknown[0]!r}",
            why=f"steps: {', '.join(ORDER)}",
            fix="name some of these, or none",
        )


def repaired(
    start: QuantizedState,
    samples: Samples,
    again: Again,
    steps: Sequence[str] = DEFAULT,
) -> tuple[QuantizedState, tuple[StepRecord, ...]]:
    """Returns a quantized graph after all steps that helped, and what became of each.

    Args:
        start: The graph quantized without repair.
        samples: Calibration data: what helped is decided on some of them.
        again: Quantizes another float graph.
        steps: Names out of :data:`ORDER`, which they are done in.

    Raises:
        InputDataError: A step does not exist.
    """
    check_steps(steps)
    wanted = [name for name in ORDER if name in steps]
    if not wanted:
        return start, ()
    trials = _Trials(start, samples, again)
    records = tuple(trials.attempt(name) for name in wanted)
    return trials.state, records


class _Trials:
    def __init__(self, start: QuantizedState, samples: Samples, again: Again) -> None:
        self.state, self._samples, self._again = start, samples, again
        self._judge: FloatReference | None = None
        self._sqnr = 0.0

    def attempt(self, name: str) -> StepRecord:
        try:
            found, told = self._tried(name)
            if found is None:
                return StepRecord(name, applied=False, told=told)
            judge, before = self._before()
            after = judge.sqnr(found.graph)
        except QdqBridgeError as error:  # what was quantized without it is still good
            return StepRecord(name, applied=False, told=f"it could not be tried: {error.what}")
        if not before < after >= before + GAIN:
            return StepRecord(name, False, f"{told}; that does not help", before, after)
        self.state, self._sqnr = found, after
        return StepRecord(name, True, told, before, after)

    def _before(self) -> tuple[FloatReference, float]:
        """Returns what compares with the float graph; made when first needed."""
        if self._judge is None:
            self._judge = FloatReference(self.state.decision.plan.graph, self._samples)
            self._sqnr = self._judge.sqnr(self.state.graph)
        return self._judge, self._sqnr

    def _tried(self, name: str) -> tuple[QuantizedState | None, str]:
        decision, graph = self.state.decision, self.state.decision.plan.graph
        if name in GRAPH_STEPS:
            if self._has_wishes():
                return None, "parameters that the user fixed would not fit scaled channels"
            seen = self.state.profile.by_name()
            new, told = (
                equalized(graph, seen)
                if name == "equalize"
                else smoothed(decision, self._samples, seen)
            )
            if new is graph:
                return None, told
            self._before()
            return self._again(new), told
        change = with_rounding if name == "round" else corrected
        result, told = change(decision, self._samples)
        if result is decision:
            return None, told
        return QuantizedState(apply(result), result, self.state.profile), told

    def _has_wishes(self) -> bool:
        specs = self.state.decision.plan.specs.values()
        return any(isinstance(spec, Fixed) and spec.reason == "the user" for spec in specs)
