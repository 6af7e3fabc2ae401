"""One search: options, what each gives, and what a result has to be like.

Goals, sizes, times, bodies and choices of operators offer other options. How these are tried is
the same: each once; in order until one is good enough; by halving where they are ranked; with what
was not needed taken back; and proven on the real graph, from which the simulation differs a little.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from qdqbridge.autoquant.planning.decide import Decision, apply
from qdqbridge.autoquant.planning.plan import Overrides
from qdqbridge.autoquant.profiling.collect import observable
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.record import ParetoRow
from qdqbridge.autoquant.search.sensitivity import Layer, LayerChange, Ranking, Variants, tried
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.metrics import Metric, Metrics, outputs_of
from qdqbridge.core.graph.atomic_write import write_text
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.errors import InputDataError
from qdqbridge.targets.engines.kinds import NodeTime

# ---- trials --------------------------------------------------------------------------------------
# Trials of a search for bits per layer, in a file with which a search that was killed goes on.


_PARTS = ("trials", "times")


@dataclass(slots=True, eq=False)
class Trials:
    """What changes of layers gave, by :func:`name_of` them.

    Attributes:
        path: The file; None to keep nothing.
        key: What the trials are of; a file of something else is refused.
    """

    path: Path | None
    key: str
    _found: dict[str, dict[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._found = {part: {} for part in _PARTS}
        if self.path is None or not self.path.exists():
            return
        try:
            saved = json.loads(self.path.read_text("utf-8"))
            of, found = saved["of"], {part: dict(saved.get(part, {})) for part in _PARTS}
        except OSError as error:
            raise InputDataError(
                "cannot read the file of trials", where=str(self.path), why=str(error.strerror),
                fix="name a file that may be written; it need not exist",
            ) from error  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # another file
            raise InputDataError(
                f"'{self.path}' holds no trials", why=str(error), fix="remove it, or give another"
            ) from error
        if of != self.key:
            raise InputDataError(
                f"'{self.path}' holds trials of another model, data or target",
                fix="remove it, or give another file",
            )
        self._found = found

    def get(self, name: str) -> Metrics | None:
        """Returns how close the outputs were before."""
        known = self._found["trials"].get(name)
        if known is None:
            return None
        found, unseen = Metrics(**known), known.get("unseen")
        return found if unseen is None else replace(found, unseen=Metrics(**unseen))

    def add(self, name: str, metrics: Metrics) -> Metrics:
        """Keeps how close the outputs are."""
        self._found["trials"][name] = asdict(metrics)
        # After every trial: a search that is killed loses one at most.
        self._write()
        return metrics

    def times(self, name: str) -> list[NodeTime] | None:
        """Returns what an engine's nodes took before, by the graph's digest."""
        rows = self._found["times"].get(name)
        return rows and [NodeTime(node, op, t, tuple(names)) for node, op, t, names in rows]

    def add_times(self, name: str, times: Sequence[NodeTime]) -> Sequence[NodeTime]:
        """Keeps what an engine's nodes take."""
        self._found["times"][name] = [[t.node, t.operator, t.seconds, t.names] for t in times]
        self._write()
        return times

    def _write(self) -> None:
        if self.path is None:
            return
        write_text(self.path, json.dumps({"of": self.key, **self._found}, indent=1))


def name_of(changes: Mapping[Layer, LayerChange]) -> str:
    """Returns a name of a set of changes that is the same in another process."""
    each = sorted(f"{layer.kind} {layer.name}: {change}" for layer, change in changes.items())
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def key_of(made: Quantized, samples: Samples, engine: str = "") -> str:
    """Returns what trials are of: the model, how it was quantized, the samples, who timed it."""
    digest = hashlib.sha256(made.graph.digest.encode())
    digest.update(repr(made.target.weights).encode() + engine.encode())
    # Trials of other data say other things, though the model is the same.
    for sample in (*samples, *(() if made.unseen is None else made.unseen)):
        for name in sorted(sample):
            digest.update(name.encode() + np.ascontiguousarray(sample[name]).tobytes())
    return digest.hexdigest()


# ---- One search: options, what each gives, and what a result has to be like ----------------------


Option = TypeVar("Option")
Progress = Callable[[int, int], None]
"""Takes the trials done, and how many there will be, as far as is known by then."""
Changes = dict[Layer, LayerChange]
_LAST_BITS = 1e-9
"""One less 0.995 is a little more than 0.005 in float64."""


# ---- what is wanted, and what was found


@dataclass(frozen=True, slots=True)
class Goal:
    """What the outputs have to be like.

    Attributes:
        min_sqnr: Smallest signal to noise in dB; None for any.
        max_drop: Largest loss: of the user's metric where the simulation has one, else of top-1
            agreement (0.01 for 1 %); None for any.
        optimism: How much closer samples come that parameters were chosen by than others, in dB.
    """

    min_sqnr: float | None = None
    max_drop: float | None = None
    optimism: float = 0.0

    def __post_init__(self) -> None:
        if self.min_sqnr is None and self.max_drop is None:
            raise InputDataError(
                "nothing says how good the quantized model has to be",
                fix="give a smallest SQNR, a largest drop, or both",
            )
        if self.min_sqnr is not None and not math.isfinite(self.min_sqnr):
            raise InputDataError(
                f"a smallest SQNR of {self.min_sqnr} says nothing", fix="give a number in dB"
            )
        if self.max_drop is not None and not 0 <= self.max_drop < math.inf:
            raise InputDataError(
                f"a largest drop of {self.max_drop} says nothing",
                fix="give a share, 0.01 for 1 %; 0 for no drop at all",
            )

    def met(self, metrics: Metrics) -> bool:
        """True where ``metrics`` are good enough, those of unseen samples alone too."""
        if metrics.unseen is not None and not replace(self, optimism=0.0).met(metrics.unseen):
            return False
        if self.min_sqnr is not None and metrics.sqnr - self.optimism < self.min_sqnr:
            return False
        return self.max_drop is None or metrics.drop <= self.max_drop + _LAST_BITS

    def __str__(self) -> str:
        parts: list[str] = []
        if self.min_sqnr is not None:
            parts.append(f"at least {self.min_sqnr:g} dB")
        if self.max_drop is not None:
            parts.append(f"a drop of at most {self.max_drop:g}")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True, eq=False)
class Reverted:
    """One layer that was changed, and why.

    Attributes:
        to: ``int16`` (or another storage type) or ``float``.
        rank: Its place among all layers, 1 for the most costly.
        alone: The outputs where only this layer is quantized.
        reason: One sentence.
    """

    layer: Layer
    to: str
    rank: int
    alone: Metrics
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Fallback:
    """What was found.

    Attributes:
        graph: The quantized graph.
        decision: Its parameters.
        overrides: What to wish of the plan to get it again.
        before: The outputs where every layer is quantized, simulated.
        simulated: The outputs of the decision, simulated.
        metrics: The outputs of :attr:`graph` itself.
        reverted: Which layers were changed, in the order of their nodes.
        evaluations: How many sets of layers were tried, without the ranking.
        ranking: What each layer costs; None where nothing had to be changed.
        pareto: Size against quality, where a size or a time was asked for.
    """

    graph: Graph
    decision: Decision
    overrides: Overrides
    before: Metrics
    simulated: Metrics
    metrics: Metrics
    reverted: Sequence[Reverted]
    evaluations: int
    ranking: Ranking | None = None
    pareto: Sequence[ParetoRow] = ()


# ---- how options are tried


class Search(Generic[Option]):
    """Tries options, each once, and finds those that are good enough.

    Attributes:
        ahead: How many more trials the present step takes at most.
        done: Trials done.
        tried: What was found, by the keys of options.
    """

    def __init__(
        self,
        objective: Callable[[Option], Metrics],
        constraint: Callable[[Metrics], bool] | None,
        key: Callable[[Option], Hashable],
        progress: Progress | None = None,
        expected: int = 0,
    ) -> None:
        """Makes a search.

        Args:
            objective: What the outputs are like with an option.
            constraint: What they have to be like; None for any.
            key: What an option is remembered by.
            progress: Called after each trial.
            expected: Trials there will be, about.
        """
        self._objective, self._constraint, self._key = objective, constraint, key
        self._progress, self.expected = progress, expected
        self.ahead = self.done = 0
        self.tried: dict[Hashable, Metrics] = {}

    def metrics(self, option: Option) -> Metrics:
        """Returns what the outputs are like with an option."""
        key = self._key(option)
        if key not in self.tried:
            self.tried[key] = self._objective(option)
            self.count()
        return self.tried[key]

    def count(self) -> None:
        """Notes that something was tried."""
        self.done += 1
        self.tell()

    def tell(self) -> None:
        """Says how far the search is."""
        if self._progress is not None:
            self._progress(self.done, max(self.done + self.ahead, self.expected))

    def accepts(self, metrics: Metrics) -> bool:
        """True where outputs are good enough."""
        return self._constraint is None or self._constraint(metrics)

    def met(self, option: Option) -> bool:
        """True where an option is good enough."""
        return self.accepts(self.metrics(option))

    def in_turn(self, options: Iterable[Option]) -> Option | None:
        """Returns the first option that is good enough, all before it tried."""
        return next((option for option in options if self.met(option)), None)

    def first(self, count: int, holds: Callable[[int], bool]) -> int | None:
        """Returns the first of ``count`` numbers for which something holds, by halving.

        Where it holds for one it holds for those behind it; None where it does for none.
        """
        self.ahead = 1 + (count - 1).bit_length()
        # The last one first: where even it fails, halving would be for nothing.
        if not holds(count - 1):
            return None
        low, high = 0, count - 1
        while low < high:
            self.ahead = (high - low).bit_length()
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        self.ahead = 0
        return high

    def refined(
        self,
        option: Option,
        moves: Iterable[Callable[[Option], Iterable[Option]]],
        allowed: Callable[[Option], bool] | None = None,
    ) -> Option:
        """Returns an option after moves that are taken where the result is still allowed.

        Args:
            option: The option to begin with.
            moves: Each says what it may be turned into, the best first.
            allowed: By default, what is good enough.
        """
        allowed = allowed or self.met
        for move in moves:
            option = next((other for other in move(option) if allowed(other)), option)
        return option


@dataclass(slots=True, eq=False)
class Climb(Generic[Option]):
    """Options in turn, each of them taken where it gains enough over what was taken before.

    Attributes:
        objective: How close the outputs come with an option, in dB.
        best: What was reached: before the first option, without any.
        taken: The option that reached it; None for none.
        closest: What came closest and was not worth it, until one is taken; then that.
        nearest: How close that is.
    """

    objective: Callable[[Option], float]
    best: float
    taken: Option | None = None
    closest: Option | None = None
    nearest: float = field(init=False)

    def __post_init__(self) -> None:
        self.nearest = self.best

    def step(self, option: Option, gain: float) -> bool:
        """Tries an option, and takes it where it gains ``gain`` dB."""
        reached = self.objective(option)
        better = reached >= self.best + gain
        if better:
            self.best, self.taken = reached, option
        if better or (self.taken is None and reached > self.nearest):
            self.closest, self.nearest = option, reached
        return better


# ---- what layers get


@dataclass(frozen=True, slots=True, eq=False)
class Proven:
    """Changes that were applied, and what the real graph with them gives."""

    changes: Changes
    decision: Decision
    graph: Graph
    metrics: Metrics


class LayerSearch(Search[Changes]):
    """A search for what layers get instead of what the target wants.

    Attributes:
        variants: The decision to begin with.
        simulation: A simulation of its graph.
        goal: What the outputs have to be like; None for any.
        trials: What a search that was killed had found, and what this one finds.
    """

    def __init__(
        self,
        variants: Variants,
        simulation: Simulation,
        goal: Goal | None,
        progress: Progress | None = None,
        *,
        trials: Trials | None = None,
        expected: int = 0,
    ) -> None:
        """Makes a search.

        Args:
            variants: The decision to begin with.
            simulation: A simulation of its graph.
            goal: What the outputs have to be like; None for any.
            progress: Called with the trials done, and how many there will be, about.
            trials: A file of trials; None to keep none.
            expected: Trials there will be, about.
        """
        constraint = None if goal is None else goal.met
        super().__init__(self._simulated, constraint, _changes_key, progress, expected)
        self.variants, self.simulation, self.goal = variants, simulation, goal
        self.trials = trials or Trials(None, "")

    def _simulated(self, changes: Changes) -> Metrics:
        known = self._kept(changes)
        if known is not None:
            return known
        found = self.simulation.metrics(self.variants.decision(changes))
        return self.trials.add(name_of(changes), found)

    def _kept(self, changes: Changes) -> Metrics | None:
        # Layers without names have one name in the file: it is asked only for what others found.
        return None if self.trials.path is None else self.trials.get(name_of(changes))

    def try_each(
        self, layers: Iterable[Layer], change: LayerChange, workers: int | str | None
    ) -> None:
        """Tries every layer alone with a change, side by side where there are workers."""
        each = [{layer: change} for layer in layers]
        left = [c for c in each if self._key(c) not in self.tried and self._kept(c) is None]
        decisions = [self.variants.decision(changes) for changes in left]
        self.simulation.cover([decision.plan for decision in decisions])
        found = tried(self.simulation, decisions, self.variants.base, workers, lambda m: m)
        for changes, metrics in zip(left, found, strict=True):
            self.tried[self._key(changes)] = self.trials.add(name_of(changes), metrics)
            self.count()
        self.simulation.release()

    def proven(
        self, candidates: Iterable[Changes], unmet: Callable[[Metrics | None], InputDataError]
    ) -> Proven:
        """Returns the first of some changes with which the real graph is good enough.

        Trials are of the simulation, from which the real graph differs a little.

        Args:
            candidates: What is applied, the best first.
            unmet: Of what the last of them gave, the error where none is good enough.

        Raises:
            InputDataError: None is.
        """
        simulation, real = self.simulation, None
        for changes in candidates:
            decision = self.variants.decision(changes)
            graph = apply(decision)
            real = simulation.compared(outputs_of(graph, simulation.batches), simulation.reference)
            if self.accepts(real):
                return Proven(changes, decision, graph, real)
        raise unmet(real)

    def fallback(
        self,
        proven: Proven,
        reverted: Sequence[Reverted],
        evaluations: int,
        *,
        ranking: Ranking | None = None,
        pareto: Sequence[ParetoRow] = (),
    ) -> Fallback:
        """Returns what was found, with the outputs before and after.

        Args:
            proven: The changes, applied.
            reverted: What is reported of them.
            evaluations: How many sets of layers were tried.
            ranking: What each layer costs, where that was asked.
            pareto: The curve, where one was asked for.
        """
        changes = proven.changes
        return Fallback(
            proven.graph, proven.decision, self.variants.overrides_for(changes),
            self.metrics({}), self.metrics(changes), proven.metrics,
            reverted, evaluations, ranking, pareto,
        )  # fmt: skip


def _changes_key(changes: Changes) -> Hashable:
    return frozenset(changes.items())


def stats_of(made: Quantized) -> dict[Value, TensorStats]:
    """Returns the statistics of the tensors of a plan's graph that its profile knows."""
    seen = made.profile.by_name()
    return {v: seen[v.name] for v in observable(made.decision.plan.graph) if v.name in seen}


def variants_of(made: Quantized, decision: Decision | None = None) -> Variants:
    """Returns variants of a decision in which what its plan leaves float stays float.

    Args:
        made: What was quantized.
        decision: By default, its own.
    """
    decision = decision or made.decision
    overrides = made.options.overrides(made.decision.plan.graph)
    own = replace(overrides, floats={**decision.plan.floats, **overrides.floats})
    return Variants(decision, made.target, stats_of(made), own)


def simulation_of(made: Quantized, samples: Samples, metric: Metric | None = None) -> Simulation:
    """Returns a simulation of a plan on samples, and on those that nothing was chosen by."""
    plan, unseen = made.decision.plan, made.unseen
    return Simulation(plan, samples, unseen, metric=metric, original=made.original)
