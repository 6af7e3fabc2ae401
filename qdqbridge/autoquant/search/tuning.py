"""Choosers compared where it counts: in the outputs, tensor by tensor, on simulated roundings.

No chooser is the best for every network: clipping one tensor averages out behind it, and clipping
another changes a class. So several choosers are tried for each tensor, and the one with the
smallest error of the network's outputs is taken.

The samples are shared out to folds. A chooser is judged on the samples of one fold by the
parameters that it makes of the statistics of the others, so that what clips samples not seen
before is found out. What is taken in the end is made of the statistics of all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.few_samples import distinct
from qdqbridge.autoquant.choosers import Chooser, Context, RangeChooser
from qdqbridge.autoquant.hardware.scales import suited
from qdqbridge.autoquant.planning.constants import of_constant
from qdqbridge.autoquant.planning.decide import Decision, activations, context_of, joined_stats
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.plan import Observed, Weight
from qdqbridge.autoquant.planning.unstored import RECURRENT
from qdqbridge.autoquant.profiling.collect import Data
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import Samples, batch_samples
from qdqbridge.autoquant.profiling.stats import TensorStats, comparable
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.teams import TrialTeam
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow, geometry_of
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.errors import QdqBridgeError

SAMPLES = 64
"""How many samples choosers are tried on, at most."""
ELEMENTS = 1 << 21
"""Elements of inputs that they are tried on, at most: large pictures tell more each."""
LEAST = 8
"""Samples that are needed; fewer say little about others."""
Progress: TypeAlias = "Callable[[int, int], None]"
_LEAST = 0.001
"""The least gain, as share of the error."""
_SURE = 0.5
"""The least gain in standard errors of its mean. Many choosers are tried one after the other, and a
false gain of this size does little harm, while a true one that is missed costs as much."""
_BOTH = 0.5
"""What a chooser for all tensors has to gain, in dB: :func:`is_closer_on_the_whole`."""
_SAME = 0.01
"""Scales that differ by less are one candidate."""
Place: TypeAlias = "Value | Weight"
Errors: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True, slots=True)
class ChooserChange:
    """A tensor that another chooser than most others' decides about.

    Attributes:
        name: The tensor's name.
        chooser: Whose parameters it has.
        gain: By which factor the error of the outputs fell.
    """

    name: str
    chooser: Chooser
    gain: float


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A share of the samples, and what was seen of the others.

    Attributes:
        simulation: Of the plan, with the samples of this fold.
        stats: Statistics of the observed values over the samples of the other folds.
    """

    simulation: Simulation
    stats: Mapping[Value, TensorStats]


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """What was found.

    Attributes:
        decision: The best parameters found.
        start: The SQNR of the outputs with the target's choosers, in dB, across folds.
        end: The same with the choosers found.
        chooser: The best single chooser of activations.
        changes: The tensors that have another one.
        trials: How often the samples were run.
    """

    decision: Decision
    start: float
    end: float
    chooser: Chooser
    changes: Sequence[ChooserChange]
    trials: int


def tuned(
    decision: Decision,
    stats: Mapping[Value, TensorStats],
    folds: Sequence[Fold],
    chooser: Chooser,
    *,
    candidates: Sequence[Chooser],
    weight_candidates: Sequence[Chooser] = (),
    workers: int | str | None = None,
    progress: Progress | None = None,
    each: bool = True,
    budget: TimeBudget | None = None,
) -> Tuned:
    """Returns parameters with a smaller error of the outputs than ``decision``, or itself.

    Args:
        decision: What the target's choosers decided.
        stats: Statistics of the observed values over all samples.
        folds: At least two.
        chooser: The target's, for activations.
        candidates: Choosers to try for activations.
        weight_candidates: Choosers to try for weights that are just rounded.
        workers: A number of processes, or ``ray``, that try the choosers of a tensor side by side.
        progress: Called with the number of tensors done, and of all.
        each: Try them for single tensors too, and not only for all while weights are not rounded.
        budget: What is best so far is returned where it is spent; None for no bound.
    """
    budget = budget or TimeBudget(math.inf)
    report: Progress = progress or (lambda done, total: None)
    if workers is None or not each:  # choosers for all are few, and tried one after the other
        tuner = _Tuner(decision, stats, folds, chooser, budget, each=each)
        return tuner.run(candidates, weight_candidates, report, each=each)
    with TrialTeam([fold.simulation for fold in folds], workers) as team:
        tuner = _Tuner(decision, stats, folds, chooser, budget, team, each=each)
        return tuner.run(candidates, weight_candidates, report, each=each)


class _RangesOnce:
    """A chooser of ranges, which says the same of the same statistics however often it is asked.

    It is asked about all tensors of a fold at once, and again about each of them.
    """

    def __init__(self, chooser: RangeChooser) -> None:
        self._chooser = chooser
        self._found: dict[tuple[int, Format], tuple[TensorStats, QuantParams]] = {}

    def __call__(self, stats: TensorStats, format: Format, context: Context) -> QuantParams:
        known = self._found.get((id(stats), format))
        if known is None:  # statistics are held too: no others come to have their id
            known = stats, self._chooser(stats, format, context)
            self._found[id(stats), format] = known
        return known[1]


def _asked_once(chooser: Chooser) -> Chooser:
    """Returns what answers as ``chooser`` does; one that heeds its context is asked each time."""
    if isinstance(chooser, RangeChooser) and type(chooser).__call__ is RangeChooser.__call__:
        return _RangesOnce(chooser)
    return chooser


class _Tuner:
    def __init__(
        self,
        decision: Decision,
        stats: Mapping[Value, TensorStats],
        folds: Sequence[Fold],
        chooser: Chooser,
        budget: TimeBudget,
        team: TrialTeam | None = None,
        *,
        each: bool,
    ) -> None:
        self._team, self._budget = team, budget
        self.plan, self.folds, self.whole = decision.plan, folds, chooser
        self.given = decision
        if not each:  # weights make up for much of what they lose, once they are learned
            decision = replace(decision, weights={}, integers={})
        self.trials = 0
        self._once: dict[int, tuple[Chooser, Chooser]] = {}
        self.sources = [*(fold.stats for fold in folds), stats]
        of_folds = [self._decided(decision, fold.stats, chooser) for fold in folds]
        self.best = [*of_folds, decision]
        self.errors = self._errors(self.best)
        self.start = _decibels(self.errors)
        self.changes: list[ChooserChange] = []

    def run(
        self,
        choosers: Sequence[Chooser],
        weight_choosers: Sequence[Chooser],
        progress: Progress,
        *,
        each: bool,
    ) -> Tuned:
        before = self.whole
        for chooser in choosers:
            if chooser == self.whole or not self._budget.left:
                continue
            pairs = zip(self.best, self.sources, strict=True)
            tried = (self._decided(*pair, chooser) for pair in pairs)
            if self._taken(tried, better=is_closer_on_the_whole):
                self.whole = chooser
        places = self._places() if each else []
        if places:
            self._hold()
        for done, place in enumerate(places):
            if not self._budget.left:
                break
            own = weight_choosers if isinstance(place, Weight) else choosers
            self._choose(place, own)
            progress(done + 1, len(places))
        for fold in self.folds:
            fold.simulation.release()
        end, found = _decibels(self.errors), self.best[-1]
        if not each:
            same = self.whole == before
            found = self.given if same else self._with_values(self.given, found.values)
        return Tuned(found, self.start, end, self.whole, self.changes, self.trials)

    def _decided(
        self, decision: Decision, stats: Mapping[Value, TensorStats], chooser: Chooser
    ) -> Decision:
        return self._with_values(decision, activations(self.plan, stats, self._asked(chooser)))

    def _asked(self, chooser: Chooser) -> Chooser:
        """Returns the same answers by a chooser's identity: it need not be hashable."""
        return self._once.setdefault(id(chooser), (chooser, _asked_once(chooser)))[1]

    def _places(self) -> list[Place]:
        """Returns what can be chosen, in topological order."""
        order = {node: index for index, node in enumerate(self.plan.graph.nodes)}
        found: list[tuple[int, Place]] = [
            (-1 if value.producer is None else order[value.producer], value)
            for value, spec in self.plan.specs.items()
            if isinstance(spec, Observed)
        ]
        found += [
            (order[weight.node], weight)
            for weight in self.plan.weights
            if isinstance(weight.spec, Observed) and weight not in self.best[-1].integers
        ]
        return [place for _, place in sorted(found, key=lambda each: each[0])]

    def _choose(self, place: Place, choosers: Sequence[Chooser]) -> None:
        """Tries every chooser whose parameters are not there already."""
        tried = [[_decided_qparams(decision, place) for decision in self.best]]
        others: list[tuple[Chooser, list[Decision]]] = []
        for chooser in choosers:
            options = self._options(place, chooser)
            # Choosers often agree, and a trial runs all samples.
            if any(all(map(_close_quant_params, options, other)) for other in tried):
                continue
            tried.append(options)
            pairs = zip(self.best, options, strict=True)
            others.append((chooser, [self._with(d, place, p) for d, p in pairs]))
        known = self._side_by_side([changed for _, changed in others])
        for (chooser, changed), errors in zip(others, known, strict=True):
            before = self.errors
            if self._taken(changed, errors):
                gain = float(before.sum() / max(self.errors.sum(), np.finfo(float).tiny))
                self.changes.append(ChooserChange(_tuned_tensor_name(place), chooser, gain))
                self._hold()

    def _options(self, place: Place, chooser: Chooser) -> list[QuantParams]:
        """Returns the parameters of ``place`` by the statistics of each fold, and of all."""
        spec = place.spec if isinstance(place, Weight) else self.plan.specs[place]
        assert isinstance(spec, Observed)
        if isinstance(place, Weight):
            context = self._context(place.value, self.best[-1])
            # A constant has no samples, so every fold has the same.
            return [of_constant(place.value, spec.format, chooser, context)] * len(self.best)
        asked = self._asked(chooser)
        return [
            asked(
                joined_stats(self.plan.joined, stats, place),
                spec.format,
                self._context(place, decision),
            )
            for decision, stats in zip(self.best, self.sources, strict=True)
        ]

    def _context(self, value: Value, decision: Decision) -> Context:
        return context_of(value, {v.name: p for v, p in decision.values.items()})

    def _side_by_side(self, tried: Sequence[list[Decision]]) -> list[Sequence[Errors] | None]:
        """Returns the errors of decisions about one tensor, fold by fold, where there is a team.

        Which of them was taken before does not matter: each replaces the same parameters.
        """
        if self._team is None or not tried:
            return [None for _ in tried]
        folds = [fold.simulation for fold in self.folds]
        trials = [pair for each in tried for pair in zip(folds, each, strict=False)]
        outputs = iter(self._team.outputs(trials))
        return [[errors_between(f.reference, next(outputs)) for f in folds] for _ in tried]

    def _taken(
        self,
        tried: Iterable[Decision],
        known: Sequence[Errors] | None = None,
        better: Callable[[Errors, Errors], bool] | None = None,
    ) -> bool:
        """Takes decisions that are better; after a fold that says they are worse, none is run.

        Args:
            tried: One for each fold, and one for all samples, asked for in this order.
            known: The errors of each fold.
            better: Decides; by default :func:`is_better`.
        """
        self.trials += 1
        errors, decisions, decided = np.empty(0), iter(tried), list[Decision]()
        for index, fold in enumerate(self.folds):
            decided.append(next(decisions))
            found = errors_of(fold.simulation, decided[-1]) if known is None else known[index]
            errors = np.concatenate([errors, found])
            if is_worse(errors, self.errors[: len(errors)]):
                return False
        if not (better or is_better)(errors, self.errors):
            return False
        self.best, self.errors = [*decided, *decisions], errors
        return True

    def _hold(self) -> None:
        if self._team is not None:
            return
        for fold, decision in zip(self.folds, self.best, strict=False):
            fold.simulation.hold(decision)

    def _with_values(self, decision: Decision, values: dict[Value, QuantParams]) -> Decision:
        weights = suited(self.plan, values, decision.weights)
        return replace(decision, values=values, weights=weights)

    def _with(self, decision: Decision, place: Place, params: QuantParams) -> Decision:
        if isinstance(place, Weight):
            weights = {**decision.weights, place: params}
            weights = suited(self.plan, decision.values, weights)
            return replace(decision, weights=weights)
        root = self.plan.root
        values = {v: params if root(v) is place else p for v, p in decision.values.items()}
        return self._with_values(decision, values)

    def _errors(self, decisions: Sequence[Decision]) -> NDArray[np.float64]:
        """Returns the error of every sample, each fold judged by what the others say."""
        parts = [
            errors_of(fold.simulation, decision)
            for fold, decision in zip(self.folds, decisions, strict=False)
        ]
        return np.concatenate(parts)


def errors_of(simulation: Simulation, decision: Decision) -> NDArray[np.float64]:
    """Returns the error of every sample as share of the mean power, outputs averaged."""
    return errors_between(simulation.reference, simulation.run(decision))


def errors_between(
    reference: Iterable[Sequence[NDArray[Any]]], outputs: Iterable[Sequence[NDArray[Any]]]
) -> Errors:
    """Returns the error of every sample as share of the mean power, outputs averaged.

    What counts other things than examples along axis 0 is judged as a whole.

    Args:
        reference: The float model's outputs, batch by batch.
        outputs: Those to judge.
    """
    errors: list[NDArray[np.float64]] = []
    powers: list[NDArray[np.float64]] = []
    for wanted, found in zip(reference, outputs, strict=True):
        pairs = [comparable(y, z) for y, z in zip(wanted, found, strict=True)]
        errors.append(_squares([y - z for y, z in pairs]))
        powers.append(_squares([y for y, _ in pairs]))
    each, power = np.concatenate(errors, axis=1), np.concatenate(powers, axis=1)
    # Over all samples: one of nearly nothing would count without end by its own power.
    mean = power.mean(axis=1, keepdims=True)
    return (each / np.where(mean > 0, mean, 1.0)).mean(axis=0)


def _squares(outputs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Returns the sums of squares of each output, for every example along axis 0 of all of them."""
    arrays = [np.atleast_1d(output) for output in outputs]
    counts = {len(array) for array in arrays}
    examples = counts.pop() if len(counts) == 1 else 1
    return np.array([np.sum(array.reshape(examples, -1) ** 2, axis=1) for array in arrays])


def is_better(errors: NDArray[np.float64], best: NDArray[np.float64]) -> bool:
    """True where errors of the same samples fell, by more than a trifle and likely no chance."""
    mean, deviation = _gain(errors, best)
    return mean > max(_SURE * deviation, _LEAST * float(best.mean()))


def is_closer_on_the_whole(errors: Errors, best: Errors) -> bool:
    """True where errors of the same samples fell in the sum, and enough so with their logarithms.

    What others get is the mean of errors. But these have long tails, so that a sample or two decide
    their sum: the mean of logarithms says what became of all the others. Decibels of both, added
    up, have to be :data:`_BOTH`.
    """
    least = np.finfo(float).tiny
    each = 10 * float(np.mean(np.log10(np.maximum(best, least) / np.maximum(errors, least))))
    whole = _decibels(errors) - _decibels(best)
    return whole > 0 and each + whole >= _BOTH


def is_worse(errors: NDArray[np.float64], best: NDArray[np.float64]) -> bool:
    """True where errors rose by more than one standard error: others will not make up for it."""
    mean, deviation = _gain(errors, best)
    return mean < -deviation


def _gain(errors: NDArray[np.float64], best: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the mean gain over the samples, and its standard error."""
    gain = best - errors
    if len(gain) < 2:
        return float(gain.mean()), 0.0
    return float(gain.mean()), float(gain.std(ddof=1)) / float(np.sqrt(len(gain)))


def _decibels(errors: NDArray[np.float64]) -> float:
    mean = float(errors.mean())
    return float("inf") if mean == 0 else -10 * float(np.log10(mean))


def _decided_qparams(decision: Decision, place: Place) -> QuantParams:
    return decision.weights[place] if isinstance(place, Weight) else decision.values[place]


def _tuned_tensor_name(place: Place) -> str:
    return place.value.name if isinstance(place, Weight) else place.name


def _close_quant_params(a: QuantParams, b: QuantParams) -> bool:
    return bool(np.allclose(a.scale, b.scale, rtol=_SAME, atol=0)) and bool(
        np.array_equal(a.zero_point, b.zero_point)
    )


def spread(data: Data, count: int) -> Samples:
    """Returns ``count`` samples, evenly spread over all of ``data``."""
    picked = np.linspace(0, len(data) - 1, min(count, len(data))).astype(int).tolist()
    if isinstance(data, Samples):
        return data if len(picked) == len(data) else taken(data, picked)
    wanted = set(picked)
    return batch_samples([sample for index, sample in enumerate(data) if index in wanted])


def spread_unlike(data: Data, count: int) -> Samples:
    """Returns ``count`` samples at most, evenly spread over ``data``, each of them once.

    A copy of a sample says nothing more, and what is left out to judge must not be among those that
    are judged.
    """
    few = spread(data, count)
    kept = distinct(few, len(few))
    return few if len(kept) == len(few) else taken(few, kept)


def taken(samples: Samples, indices: range | list[int]) -> Samples:
    """Returns some of the samples, by their numbers."""
    return samples.picked(indices)


# ---- time budget ---------------------------------------------------------------------------------


class BudgetSpentError(QdqBridgeError):
    """The time for trying is over; what was found before is good."""

    def __init__(self) -> None:
        super().__init__("the budget was spent", fix="--budget gives more")


@dataclass(slots=True)
class TimeBudget:
    """How long may be tried.

    Attributes:
        seconds: From the start on.
        started: By :func:`time.monotonic`.
        kept: Seconds of these for what comes behind: to make what was chosen, and measure it.
    """

    seconds: float
    started: float = 0.0
    kept: float = 0.0

    @property
    def left(self) -> bool:
        """True while another step may be begun."""
        return time.monotonic() - self.started + self.kept < self.seconds

    def check(self, done: int = 0, total: int = 0) -> None:
        """Ends a step that takes longer; it is called as progress is.

        Raises:
            BudgetSpentError: The time is over.
        """
        del done, total
        if not self.left:
            raise BudgetSpentError


def shares_of_operations(graph: Graph, profile: Profile) -> dict[str, float]:
    """Returns which part of a graph's operations each of its nodes has, by name."""
    each = _of_nodes(graph, profile)
    total = max(sum(each.values()), 1)
    return {node.name: count / total for node, count in each.items()}


def _of_nodes(graph: Graph, profile: Profile) -> dict[Node, int]:
    seen = {name: stats.count for name, stats in profile.by_name().items()}
    return {node: _of_node(node, seen) for node in graph.nodes}


def _of_node(node: Node, seen: Mapping[str, int]) -> int:
    elements = sum(seen.get(value.name, 0) for value in node.outputs)
    shapes = [
        None if v is None or v.constant is None else v.constant.shape for v in node.inputs[:3]
    ]
    weight, states = (*shapes, None, None)[1:3]
    if node.op.name in RECURRENT and weight is not None and states is not None:
        steps = seen.get(node.operand(0).name, 0) // max(weight[-1], 1)
        return elements + steps * (math.prod(weight) + math.prod(states))
    geometry = geometry_of(node) if node.op.flow is Flow.ACCUMULATE else None
    if geometry is None or weight is None:
        return elements
    return elements * max(geometry.terms(weight), 1)
