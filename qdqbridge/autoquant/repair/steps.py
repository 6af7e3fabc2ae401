"""Repair step by step: each is tried on calibration data, and kept only where it helped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qdqbridge.autoquant.advice.few_samples import HALVED, worth_trying
from qdqbridge.autoquant.planning.decide import Decision, apply
from qdqbridge.autoquant.planning.plan import Fixed
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.collect import collect, onnxruntime_observer
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.equalize import equalized, smoothed
from qdqbridge.autoquant.repair.gptq import with_rounding
from qdqbridge.autoquant.repair.learn import corrected, learned
from qdqbridge.autoquant.repair.sweep import (
    MIXED,
    Array,
    DecisionJudge,
    OtherScales,
    decibels,
)
from qdqbridge.autoquant.search.tuning import (
    ELEMENTS,
    LEAST,
    SAMPLES,
    BudgetSpentError,
    Fold,
    Progress,
    TimeBudget,
    Tuned,
    is_worse,
    spread,
    taken,
    tuned,
)
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError, QdqBridgeError

if TYPE_CHECKING:
    from qdqbridge.autoquant.calibration import Calibration

GAIN = 0.02
"""What a step has to gain at least, in dB; less is chance."""
SCALED = 1.0
"""What scaled channels have to gain, in dB, on the samples that gave the ranges: others gain less,
and to know how much takes eight more rounds."""
CLOSE = 30.0
"""Outputs this close to the float model's, in dB, gain little by scaled channels, which take the
longest to try."""
ORDER = ("equalize", "smooth", "round", "learn", "bias")
"""All steps in the order in which they are done."""
PARTS = 4
"""In so many parts samples are left out, to judge what others' ranges do to them."""
ALL_BY_HALF = 2 / 3
"""How much of the gap between what all samples gain that were learned from, and others by what half
of them taught, is left where all taught. What is learned from n of them is off by 1/n: too close to
these by that much, too far from others by that much, and from others by 2/n where half taught."""
GRAPH_STEPS = ("equalize", "smooth")
"""Those that scale channels of the float graph, so that it has to be looked at again."""
DEFAULT = ORDER
_Way = tuple[str, Mapping[str, Any]]
"""How a step is tried: what is reported of it, and options."""
_PLAINLY: _Way = "", {}
_CHANGES: Mapping[str, Callable[..., tuple[Decision, str]]] = {
    "round": with_rounding, "learn": learned, "bias": corrected,
}  # fmt: skip
_HELD: tuple[_Way, ...] = tuple(
    (f", held {hold:g} times as hard", {"hold": hold}) for hold in (10.0, 100.0)
)
_OTHERWISE: Mapping[str, tuple[_Way, ...]] = {
    "round": _HELD,
    "learn": ((", from samples of other scales too", {"alike": True, "limit": MIXED}), *_HELD),
}
"""By step: what else is tried where it loses too much on data of other scales: to learn from such
data too, or to hold weights where they are."""
_NO_CLOSER = "the outputs come no closer"
_FEW_CLOSER = "those of a few samples come closer, the others no closer on the whole"
LATE = "the budget was spent before; --budget gives more"
"""What is said of a step that was not tried, or not to its end."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What became of a step.

    Attributes:
        step: Its name, one of :data:`ORDER`.
        applied: Whether it was kept.
        outcome: What it did, or why it did nothing.
        before: Output SQNR on calibration data without it, in dB (where it did not help on samples
            that were left out, on these); None where nothing was tried.
        after: With it.
        optimism: How much more it gains on samples that it has learned from than on others, in dB,
            as what it learned from half of them shows.
    """

    step: str
    applied: bool
    outcome: str
    before: float | None = None
    after: float | None = None
    optimism: float = 0.0


@dataclass(frozen=True, eq=False)
class QuantizedState:
    """What was decided about a float graph.

    Attributes:
        decision: The parameters.
        profile: What was seen of the float graph that was decided about.
    """

    decision: Decision
    profile: Profile

    @cached_property
    def graph(self) -> Graph:
        """The quantized graph; it takes longer to make than most decisions."""
        return apply(self.decision)


Again = Callable[[Graph, "Samples | None"], QuantizedState]
"""Profiles another float graph on the same data, or on a part of it, and quantizes it."""


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
    work: TimeBudget | None = None,
    scales: OtherScales | None = None,
    trying: Callable[[str, Sequence[str]], None] | None = None,
    judge: DecisionJudge | None = None,
    enough: float = math.inf,
) -> tuple[QuantizedState, tuple[StepRecord, ...]]:
    """Returns a quantized graph after all steps that helped, and what became of each.

    Args:
        start: The graph quantized without repair.
        samples: Calibration data: where there are enough, what helped is decided on half of them,
            which ``round`` and ``bias`` have not looked at; ``equalize`` and ``smooth``, whose
            ranges are those of all, must gain where a part gives no range and judges.
        again: Quantizes another float graph.
        steps: Names out of :data:`ORDER`, which they are done in.
        work: No step is begun once it is spent, and one that takes longer is given up; None for no
            bound.
        scales: A step that loses too much on data of these is undone; None where data of other
            scales leave the ranges that are stored anyway.
        trying: Called with each step that is begun, and those behind it.
        judge: Of decisions on ``samples``; None to make one.
        enough: Channels are not scaled where outputs come this close without, in dB.

    Raises:
        InputDataError: A step does not exist.
    """
    check_steps(steps)
    wanted = [name for name in ORDER if name in steps]
    if not wanted:
        return start, ()
    judge = judge or DecisionJudge(start.decision.plan.graph, samples)
    work = work or TimeBudget(math.inf)
    trials = _Trials(start, samples, again, scales, judge, enough, work)
    records = list[StepRecord]()
    for number, name in enumerate(wanted):
        if not work.left:
            records.append(StepRecord(name, False, LATE))
            continue
        # Both move biases by what samples show, and the second would only follow these samples
        # further.
        if name == "bias" and any(r.step == "learn" and r.applied for r in records):
            records.append(StepRecord(name, False, "weights were learned with their biases"))
            continue
        if trying is not None:
            trying(name, wanted[number + 1 :])
        records.append(trials.attempt(name))
    return trials.state, tuple(records)


class _StepAttempt(NamedTuple):
    """What a step makes where it helps, what it did, dB without and with it where it was tried."""

    found: QuantizedState | None
    outcome: str
    before: float | None = None
    after: float | None = None
    optimism: float = 0.0


def _better(before: float, after: float) -> bool:
    return before < after >= before + GAIN


def _after(attempt: _StepAttempt) -> float:
    return -math.inf if attempt.after is None else attempt.after


def left_out_sqnr(before: Array, after: Array) -> tuple[float, float]:
    """Returns dB that decide whether a change helped on samples left out: the second is larger.

    One sample that leaves a range outweighs all others in the sum of errors; that it does so less
    is no reason to make the others worse. So where the sum fell, so must the logarithms of most
    samples' errors: theirs is the mean SQNR without the change, and with it, less a standard error.

    Args:
        before: Errors of the samples without it.
        after: With it, of the same samples.
    """
    if after.mean() > before.mean():
        return decibels(float(before.mean())), decibels(float(after.mean()))
    least = float(np.finfo(np.float64).tiny)
    each, changed = (-10 * np.log10(np.maximum(errors, least)) for errors in (before, after))
    gain = changed - each
    sure = float(gain.mean() - gain.std(ddof=1) / math.sqrt(len(gain)))
    return float(each.mean()), float(each.mean()) + sure


class _Trials:
    def __init__(
        self,
        start: QuantizedState,
        samples: Samples,
        again: Again,
        scales: OtherScales | None,
        judge: DecisionJudge,
        enough: float,
        work: TimeBudget,
    ) -> None:
        self._work = work
        self.state, self._samples, self._again = start, samples, again
        self._enough = enough
        self._scales = scales
        self._seen = samples
        if len(samples) >= HALVED:
            self._seen = taken(samples, range(0, len(samples), 2))
        self._judge = judge
        self._errors: Array | None = None
        # By part that is left out: what judges it, and errors without what is tried.
        self._plain: dict[int, tuple[DecisionJudge, Array]] = {}

    def attempt(self, name: str) -> StepRecord:
        try:
            made = self._scaled(name) if name in GRAPH_STEPS else self._changed(name)
        except BudgetSpentError:
            return StepRecord(name, False, LATE)
        except QdqBridgeError as error:  # what was quantized without it is still good
            return StepRecord(name, applied=False, outcome=f"it could not be tried: {error.what}")
        if made.found is not None:
            self.state, self._plain, self._errors = made.found, {}, None
        return StepRecord(name, made.found is not None, *made[1:])

    def _changed(self, name: str) -> _StepAttempt:
        """Tries a step that changes parameters, on samples that it has not looked at.

        Where it loses too much on data of other scales it is tried otherwise: of what loses less,
        that is kept which gains most.
        """
        made = self._gained(name, *_PLAINLY)
        if made.found is None or not (lost := self._lost_elsewhere(made.found)):
            return made
        refused = made._replace(found=None, outcome=f"{made.outcome}; {lost}", optimism=0.0)
        others = [self._gained(name, *way) for way in _OTHERWISE.get(name, ())]
        for other in sorted(others, key=_after, reverse=True):
            if other.found is None:
                continue
            if not (lost := self._lost_elsewhere(other.found)):
                return other
            refused = other._replace(found=None, outcome=f"{other.outcome}; {lost}", optimism=0.0)
        return refused

    def _gained(self, name: str, how: str, options: Mapping[str, Any]) -> _StepAttempt:
        """Tries a step in one way; nothing is found where the outputs come no closer."""
        found, outcome = self._tried(name, self._seen, options)
        outcome += how
        if found is None:
            return _StepAttempt(None, outcome)
        errors, before = self._before()
        changed = self._judge.errors(found.decision)
        after = self._of_unseen(changed)
        if not _better(before, after):
            return _StepAttempt(None, f"{outcome}; {_NO_CLOSER}", before, after)
        # The sum of errors is that of a few samples: the others may have lost by it.
        if self._most_lose(errors, changed):
            return _StepAttempt(None, f"{outcome}; {_FEW_CLOSER}", before, after)
        gain = after - before
        if self._seen is not self._samples:  # it helps: now with all data
            found = self._tried(name, self._samples, options)[0] or found
            changed = self._judge.errors(found.decision)
        else:
            gain = self._gain_on_others(name, options)
        more = decibels(float(changed.mean())) - decibels(float(errors.mean())) - gain
        optimism = ALL_BY_HALF * more if 0 < more < math.inf else 0.0
        return _StepAttempt(found, outcome, before, after, optimism)

    def _gain_on_others(self, name: str, options: Mapping[str, Any]) -> float:
        """Returns the dB that half of the samples gain by what a step learned from the others."""
        seen, unseen = (taken(self._samples, range(i, len(self._samples), 2)) for i in (0, 1))
        found = self._tried(name, seen, options)[0] if len(unseen) else None
        if found is None:
            return 0.0
        judge = DecisionJudge(self.state.decision.plan.graph, unseen)
        return judge.sqnr(found.decision) - judge.sqnr(self.state.decision)

    def _lost_elsewhere(self, found: QuantizedState) -> str:
        """Returns what a change loses on data of other scales, nothing where that may be."""
        return "" if self._scales is None else self._scales.refusal(self.state.graph, found.graph)

    def _scaled(self, name: str) -> _StepAttempt:
        """Tries a step that scales channels; it must gain on samples that gave no range.

        A channel of a scaled tensor ends at what was seen of it alone, so that other samples leave
        it more easily than the range of the loudest channel.
        """
        before = self._before()[1] if self._enough < math.inf else -math.inf
        if before >= self._enough:
            outcome = f"outputs closer than {self._enough:g} dB gain little; --preset full tries it"
            return _StepAttempt(None, outcome)
        new, outcome = self._rewritten(name, self._seen)
        if new is None:
            return _StepAttempt(None, outcome)
        before = self._before()[1]
        found = self._again(new, None)
        after = self._of_unseen(self._judge.errors(found.decision))
        if not _better(before, after):
            return _StepAttempt(None, f"{outcome}; {_NO_CLOSER}", before, after)
        if after < before + SCALED:
            outcome += f"; less than {SCALED:g} dB on the samples that gave the ranges"
            return _StepAttempt(None, outcome, before, after)
        if len(self._samples) < 2:
            kept = worth_trying(name, before, after)
            why = "" if kept else "; one sample cannot tell what it does to others"
            return _StepAttempt(found if kept else None, outcome + why, before, after)
        plain, scaled = left_out_sqnr(*self._left_out(name))
        if not scaled > plain:  # no number is no gain
            outcome = f"{outcome}; held-out samples come no closer on the whole"
            return _StepAttempt(None, outcome, plain, scaled)
        lost = self._lost_elsewhere(found)
        outcome += f"; {lost}" if lost else ""
        return _StepAttempt(None if lost else found, outcome, before, after)

    def _left_out(self, name: str) -> tuple[Array, Array]:
        """Returns errors of samples that are left out one part after the other, without and with.

        Those of a part are shares of the power of its samples. If half of the parts say that it is
        worse, no other is asked.
        """
        graph, count = self.state.decision.plan.graph, len(self._samples)
        parts, plain, scaled = min(PARTS, count), np.empty(0), np.empty(0)
        for k in range(parts):
            self._work.check()
            kept = taken(self._samples, [i for i in range(count) if i % parts != k])
            if k not in self._plain:
                judge = DecisionJudge(graph, taken(self._samples, range(k, count, parts)))
                self._plain[k] = judge, judge.errors(self._again(graph, kept).decision)
            judge, errors = self._plain[k]
            new = self._rewritten(name, kept)[0]
            plain = np.concatenate([plain, errors])
            changed = errors if new is None else judge.errors(self._again(new, kept).decision)
            scaled = np.concatenate([scaled, changed])
            if 2 * (k + 1) >= parts and is_worse(scaled, plain):
                break
        return plain, scaled

    def _before(self) -> tuple[Array, float]:
        """Returns the errors without what is tried, and the SQNR of those that judge."""
        if self._errors is None:
            self._errors = self._judge.errors(self.state.decision)
        return self._errors, self._of_unseen(self._errors)

    def _most_lose(self, before: Array, after: Array) -> bool:
        """True where logarithms of errors rose, on samples that no step has looked at."""
        least, unseen = float(np.finfo(np.float64).tiny), self._unseen()
        pairs = (np.log(np.maximum(errors[unseen], least)) for errors in (before, after))
        return float(np.subtract(*pairs).mean()) < 0

    def _of_unseen(self, errors: Array) -> float:
        """Returns the SQNR of samples that no step has looked at, where there are enough."""
        return decibels(float(errors[self._unseen()].mean()))

    def _unseen(self) -> Any:
        return self._judge.odd if self._seen is not self._samples else slice(None)

    def _tried(
        self, name: str, samples: Samples, options: Mapping[str, Any]
    ) -> tuple[QuantizedState | None, str]:
        decision = self.state.decision
        if options.get("alike") and self._scales is not None:
            samples = self._scales.among(samples)
        result, outcome = _CHANGES[name](decision, samples, progress=self._work.check, **options)
        if result is decision:
            return None, outcome
        return QuantizedState(result, self.state.profile), outcome

    def _rewritten(self, name: str, samples: Samples) -> tuple[Graph | None, str]:
        """Returns the float graph with channels scaled by what samples show."""
        decision, seen = self.state.decision, self.state.profile.by_name()
        if self._has_overrides():
            return None, "parameters that the user fixed would not fit scaled channels"
        graph = decision.plan.graph
        new, outcome = (
            equalized(graph, seen) if name == "equalize" else smoothed(decision, samples, seen)
        )
        return None if new is graph else new, outcome

    def _has_overrides(self) -> bool:
        specs = self.state.decision.plan.specs.values()
        return any(isinstance(spec, Fixed) and spec.reason == "the user" for spec in specs)


# ---- The target's further choosers, tried on a quantized graph: what the step ``choosers`` is ----


TRYING_CHOOSERS = "choosers"
"""What trying other choosers is called in records."""
CLEARLY = 1.0
"""How much closer, in dB, choosers have to come without scaled channels to leave them unscaled."""


def with_choosers_tried(
    state: QuantizedState,
    data: Samples,
    target: Target,
    progress: Progress | None = None,
    workers: int | str | None = None,
    ready: Calibration | None = None,
    *,
    each: bool = True,
    work: TimeBudget | None = None,
) -> tuple[QuantizedState, StepRecord]:
    """Returns ``state`` with parameters by those of the target's choosers that prove best.

    Args:
        state: A quantized graph with the target's own chooser's parameters.
        data: Samples; some of them are used.
        target: Its candidates are tried.
        progress: Called with the number of tensors done, and of all.
        workers: A number of processes, or ``ray``.
        ready: What was seen of the graph.
        each: Try them for single tensors too, not only for all.
        work: The best so far is returned once it is spent.
    """
    if work is not None and not work.left:
        return state, StepRecord(TRYING_CHOOSERS, False, LATE)
    if ready is not None and ready.graph is not state.decision.plan.graph:
        ready = None  # its channels are scaled: other values are seen of it
    samples = spread(data, _calibration_sample_count(data)) if ready is None else ready.tried
    if len(samples) < LEAST:
        outcome = f"{len(samples)} samples are too few to try choosers on"
        return state, StepRecord(TRYING_CHOOSERS, applied=False, outcome=outcome)
    plan, seen = state.decision.plan, state.profile.by_name()
    found = tuned(
        state.decision,
        {value: seen[value.name] for value in plan.observed()},
        folds_of(state, samples, ready, parts=0 if each else 1),
        target.chooser,
        candidates=target.candidates,
        weight_candidates=() if target.weight_chooser else target.weight_candidates,
        workers=workers,
        progress=progress,
        each=each,
        budget=work,
    )
    if found.decision is state.decision or found.end <= found.start:
        outcome = f"of {_listed(target)}, {target.chooser!r} is the best everywhere"
        return state, StepRecord(TRYING_CHOOSERS, False, outcome, found.start, found.end)
    record = StepRecord(TRYING_CHOOSERS, True, _tried_in_words(found), found.start, found.end)
    return QuantizedState(found.decision, state.profile), record


def is_closer(tried: StepRecord, other: StepRecord) -> bool:
    """True where choosers came clearly closer to the outputs of samples left out than elsewhere."""
    if tried.after is None or other.after is None:
        return False
    return tried.after >= other.after + CLEARLY


def outdone(steps: Sequence[StepRecord]) -> tuple[StepRecord, ...]:
    """Returns what became of steps that helped until choosers were tried without them."""
    outcome = "other choosers do better without it"
    return tuple(
        replace(step, applied=False, outcome=f"{step.outcome}; {outcome}") if step.applied else step
        for step in steps
    )


def folds_of(
    state: QuantizedState,
    samples: Samples,
    ready: Calibration | None = None,
    parts: int = 0,
) -> list[Fold]:
    """Returns two folds: the samples with even numbers, and those with odd ones.

    Args:
        state: What is to be tried.
        samples: All of them.
        ready: The graph, where both were seen before.
        parts: In how many parts the model is compiled, 0 for the engine's own number.
    """
    plan = state.decision.plan
    halves = [taken(samples, range(first, len(samples), 2)) for first in (0, 1)]
    if ready is None:
        observer = onnxruntime_observer(plan.graph)
        profiles = [collect(plan.graph, half, observer) for half in halves]
    else:
        profiles = [half.profile() for half in ready.halves]
    first = Simulation(plan, halves[0], parts=parts)
    return [
        Fold(simulation, {value: other[value.name] for value in plan.observed()})
        for simulation, other in zip(
            (first, first.on(halves[1])),
            (profile.by_name() for profile in reversed(profiles)),
            strict=True,
        )
    ]


def _calibration_sample_count(data: Samples) -> int:
    return max(LEAST, min(SAMPLES, ELEMENTS // max(data.elements, 1)))


def _listed(target: Target) -> str:
    return ", ".join(map(repr, target.candidates))


def _tried_in_words(found: Tuned) -> str:
    others = len(found.changes)
    tensors = f", of {others} tensor{'s' if others > 1 else ''} by others" if others else ""
    return f"ranges of activations chosen by {found.chooser!r}{tensors}"


# ---- Progress over several passes through the data, some of which may not be needed --------------


@dataclass(slots=True)
class Rounds:
    """Tells one callback about passes one after the other.

    Attributes:
        number: How many passes there will be at most.
        progress: The callback; None for silence.
        begun: How many passes began.
        total: The last total reported.
    """

    number: int
    progress: Progress | None
    begun: int = 0
    total: int = 0

    @staticmethod
    def of(steps: Sequence[str], progress: Progress | None) -> Rounds:
        """Returns the passes that steps of repair may need: one, and one for each scaled graph."""
        return Rounds(1 + sum(name in GRAPH_STEPS for name in set(steps)), progress)

    def trying(self, what: str, left: Sequence[str]) -> None:
        """Tells what is tried now, and what then, where the callback has a method for it."""
        tell = getattr(self.progress, "trying", None)
        if tell is not None:
            tell(what, left)

    def next(self) -> Progress | None:
        """Returns the callback for the next pass."""
        before, self.begun = self.begun, self.begun + 1
        progress = self.progress
        if progress is None:
            return None

        def tell(done: int, count: int) -> None:
            self.total = count * self.number
            progress(before * count + done, self.total)

        return tell

    def finish(self) -> None:
        """Tells that all is done, where passes were not needed."""
        if self.progress is not None and self.total and self.begun < self.number:
            self.progress(self.total, self.total)
