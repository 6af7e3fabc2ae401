"""As few layers as possible with more bits, or float, until the outputs are good enough.

The layers are ranked once; how many of the most costly ones have to change is found by halving,
on the simulated graph. One pass from the least costly of them back then takes back what was not
needed. What is found is proven on the real quantized graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from qdqbridge.autoquant.planning.decide import Decision, apply
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.plan import Overrides
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.collect import observable
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.record import ParetoRow
from qdqbridge.autoquant.search.body_fallback import bodies_that_meet, without_bodies
from qdqbridge.autoquant.search.sensitivity import Ranking, Sensitivity, sensitivity
from qdqbridge.autoquant.search.sensitivity_variants import (
    Layer,
    LayerChange,
    Variants,
    layers_of,
    widened,
    widened_weights,
)
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.engines import SimulationEngine
from qdqbridge.autoquant.simulation.metrics import Metric, Metrics, outputs_of
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.errors import InputDataError

Progress = Callable[[int, int], None]
"""Takes the trials done, and how many there will be at most, as far as can be told by then."""
Changes = dict[Layer, LayerChange]
_LAST_BITS = 1e-9
"""One less 0.995 is a little more than 0.005 in float64."""
_LEVELS: Mapping[str, int] = {"int16": 3, "float": 1}
"""What a layer may get: more bits of weights, then of activations, then float; or that at once."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the outputs have to be like.

    Attributes:
        min_sqnr: Smallest signal to noise in dB; None for any.
        max_drop: Largest loss: of the user's metric where the simulation has one, else of top-1
            agreement (0.01 for 1 %); None for any.
    """

    min_sqnr: float | None = None
    max_drop: float | None = None

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
        if metrics.unseen is not None and not self.met(metrics.unseen):
            return False
        if self.min_sqnr is not None and metrics.sqnr < self.min_sqnr:
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
        layer: The layer.
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
        pareto: Size against quality, where a budget was asked for.
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


@dataclass(slots=True, eq=False)
class _Search:
    """Tries sets of changes; every set is tried once.

    ``ahead`` is how many more trials the present step takes at most.
    """

    variants: Variants
    simulation: Simulation
    goal: Goal
    progress: Progress | None
    ahead: int = 0
    tried: dict[frozenset[tuple[Layer, LayerChange]], Metrics] = field(
        default_factory=dict["frozenset[tuple[Layer, LayerChange]]", Metrics]
    )

    def metrics(self, changes: Mapping[Layer, LayerChange]) -> Metrics:
        key = frozenset(changes.items())
        if key not in self.tried:
            self.tried[key] = self.simulation.metrics(self.variants.decision(changes))
            self._tell()
        return self.tried[key]

    def finish(self) -> None:
        """Says that there is nothing left to try."""
        self.ahead = 0
        self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(len(self.tried), len(self.tried) + self.ahead)

    def met(self, changes: Mapping[Layer, LayerChange]) -> bool:
        return self.goal.met(self.metrics(changes))

    def shortest(
        self, ranked: Sequence[Layer], change: LayerChange, rest: Changes
    ) -> Changes | None:
        """Returns ``rest`` with ``change`` for as few of the first layers as are needed.

        Args:
            ranked: The most costly layer first.
            change: What they get.
            rest: What all layers get that do not get it.

        Returns:
            None where all of them are not enough.
        """

        def prefix(count: int) -> Changes:
            return {**rest, **dict.fromkeys(ranked[:count], change)}

        self.ahead = trials(len(ranked), 1)
        if not self.met(prefix(len(ranked))):
            return None
        low, high = 0, len(ranked)
        while low < high:
            self.ahead = (high - low).bit_length()
            middle = (low + high) // 2
            if self.met(prefix(middle)):
                high = middle
            else:
                low = middle + 1
        return prefix(high) if self.met(prefix(high)) else prefix(len(ranked))

    def pruned(
        self, changes: Changes, ranked: Sequence[Layer], levels: Sequence[LayerChange]
    ) -> Changes:
        """Returns ``changes`` without what is not needed, the least costly layer first."""
        kept = dict(changes)
        self.ahead = sum(1 + levels.index(change) for change in changes.values())
        for layer in reversed([layer for layer in ranked if layer in changes]):
            self.ahead -= 1 + levels.index(kept[layer])
            without = {key: value for key, value in kept.items() if key is not layer}
            softer = levels[: levels.index(kept[layer])]
            options = [without, *({**kept, layer: level} for level in softer)]
            kept = next((option for option in options if self.met(option)), kept)
        return kept


def trials(layers: int, levels: int) -> int:
    """Returns how many trials it takes to find how many of some layers have to change."""
    return levels * (1 + layers.bit_length())


def fall_back(
    variants: Variants,
    simulation: Simulation,
    goal: Goal,
    *,
    wide: Format | None = None,
    wide_weights: Format | None = None,
    to_float: bool = True,
    ranking: Ranking | None = None,
    progress: Progress | None = None,
) -> Fallback:
    """Returns a quantized graph that meets ``goal`` with as few changes as were found.

    Layers get ``wide_weights`` first, then ``wide`` activations as well; only what that does not
    mend stays float.

    Args:
        variants: The decision to begin with.
        simulation: A simulation of its graph.
        goal: How good the outputs have to be.
        wide: The format of more bits; None where the target has none (see ``widened``).
        wide_weights: The same of weights (see ``widened_weights``).
        to_float: Whether layers may stay float.
        ranking: What each layer costs; by default that is found out where it is needed.
        progress: Called with the trials done, and how many there will be at most.

    Raises:
        InputDataError: No set of layers meets the goal, so it cannot be met.
    """
    most = trials(
        len(layers_of(variants.base.plan)), sum((bool(wide), bool(wide_weights), to_float))
    )
    search = _Search(variants, simulation, goal, progress, most)
    before = search.metrics({})
    if goal.max_drop is not None and before.score is None and before.top1 is None:
        raise InputDataError(
            "there is nothing that could drop",
            why="the outputs are no classes, and no metric is given",
            fix="give a metric, or a smallest SQNR",
        )
    if goal.met(before):
        found = _proven(search, {}, [], before, None)
        if found is not None:
            return found
    if ranking is None:
        ranking = sensitivity(variants, simulation, without=False)
    simulation.hold(variants.base)
    ranked = list(ranking.layers)
    layers = [entry.layer for entry in ranked]
    levels = _levels(goal, wide, wide_weights, to_float=to_float)
    changes = _chosen(search, layers, levels)
    search.finish()
    simulation.release()
    while changes is not None:
        found = _proven(search, changes, ranked, before, ranking)
        if found is not None:
            return found
        changes = _further(changes, layers, levels)
    raise InputDataError(
        "no choice of layers is good enough",
        why=f"wanted: {goal}; with all layers changed: "
        f"{search.metrics(dict.fromkeys(layers, levels[-1]) if levels else {}).sqnr:.2f} dB",
        fix="allow layers to stay float, or ask for less",
    )


def _levels(
    goal: Goal, wide: Format | None, wide_weights: Format | None, *, to_float: bool
) -> list[LayerChange]:
    """Returns what a layer may get, the cheapest first."""
    found: list[LayerChange] = []
    if wide_weights is not None:
        found.append(LayerChange(None, weights=wide_weights))
    if wide is not None:
        found.append(LayerChange(wide, weights=wide_weights))
    if to_float:
        found.append(LayerChange())
    return [replace(change, reason=f"{change} for {goal}") for change in found]


def _chosen(
    search: _Search, layers: Sequence[Layer], levels: Sequence[LayerChange]
) -> Changes | None:
    """Returns the fewest changes of the cheapest level that is enough, less below that."""
    rest: Changes = {}
    below: LayerChange | None = None
    for level in levels:
        changes = search.shortest(layers, level, rest)
        if changes is not None:
            if below is not None:
                most = {layer: change for layer, change in changes.items() if change is level}
                others = [layer for layer in layers if layer not in most]
                changes = search.shortest(others, below, most) or changes
            return search.pruned(changes, layers, levels)
        rest, below = dict.fromkeys(layers, level), level
    return None


def _further(
    changes: Changes, layers: Sequence[Layer], levels: Sequence[LayerChange]
) -> Changes | None:
    """Returns one more change, for what holds in the simulation and not in the real graph."""
    for layer in layers:
        if layer not in changes:
            return {**changes, layer: levels[0]}
    for layer in layers:
        if changes[layer] is not levels[-1]:
            return {**changes, layer: levels[levels.index(changes[layer]) + 1]}
    return None


def _proven(
    search: _Search,
    changes: Changes,
    ranked: Sequence[Sensitivity],
    before: Metrics,
    ranking: Ranking | None,
) -> Fallback | None:
    """Returns the real graph with ``changes``; None where it does not meet the goal."""
    decision = search.variants.decision(changes)
    graph = apply(decision)
    simulation = search.simulation
    real = simulation.compared(outputs_of(graph, simulation.batches), simulation.reference)
    if not search.goal.met(real):
        return None
    return Fallback(
        graph,
        decision,
        search.variants.overrides_for(changes),
        before,
        search.metrics(changes),
        real,
        _report(changes, ranked),
        len(search.tried),
        ranking,
    )


def _report(changes: Changes, ranked: Sequence[Sensitivity]) -> list[Reverted]:
    found: list[Reverted] = []
    for rank, entry in enumerate(ranked, 1):
        change = changes.get(entry.layer)
        if change is None:
            continue
        to = str(change)
        alone = "no error" if math.isinf(entry.alone.sqnr) else f"{entry.alone.sqnr:.2f} dB"
        reason = f"{change.reason}: quantized alone it gives {alone}, rank {rank} of {len(ranked)}"
        found.append(Reverted(entry.layer, to, rank, entry.alone, reason))
    return found


def meeting(
    decision: Decision,
    goal: Goal,
    samples: Samples | Iterable[Sample],
    target: Target,
    stats: Mapping[Value, TensorStats],
    *,
    original: Graph | None = None,
    unseen: Samples | None = None,
    overrides: Overrides | None = None,
    fallback: Literal["int16", "float"] = "int16",
    metric: Metric | None = None,
    engine: SimulationEngine | str = "onnxruntime",
    workers: int | str | None = None,
    progress: Progress | None = None,
) -> Fallback:
    """Returns a quantized graph that meets ``goal``.

    Args:
        decision: The decision to begin with.
        goal: How good the outputs have to be.
        samples: What they are judged on.
        target: The target that was decided for.
        stats: Statistics of every float tensor of the decision's graph.
        original: The float model that outputs are compared with; by default the decision's graph.
        unseen: Further samples, which nothing was chosen by: the goal must be met on them too.
        overrides: The wishes of its plan. What its plan leaves float stays float in any case.
        fallback: ``int16`` gives layers more bits first: 8 where weights have fewer, then 16-bit
            activations, and leaves those float that this does not mend; ``float`` leaves them
            float at once.
        metric: A user's score of the outputs; more is better.
        engine: What runs the simulated graph.
        workers: A number of processes, or ``ray``, that rank the layers.
        progress: Called with the trials done, and how many there will be at most.

    Raises:
        InputDataError: The goal cannot be met.
    """
    overrides = overrides or Overrides()
    simulation = Simulation(
        decision.plan, samples, unseen, engine=engine, metric=metric, original=original
    )
    decision, dropped = bodies_that_meet(decision, goal.met, simulation, str(goal))
    own = replace(overrides, floats={**decision.plan.floats, **overrides.floats})
    variants = Variants(decision, target, stats, own)
    more = fallback == "int16"
    ranking, ranked = None, 0
    if not goal.met(simulation.metrics(decision)) and layers_of(decision.plan):
        ranked = len(layers_of(decision.plan))
        ahead = trials(ranked, _LEVELS[fallback])
        report = None if progress is None else _after(progress, 0, ahead)
        ranking = sensitivity(variants, simulation, without=False, workers=workers, progress=report)

    def found(some: Variants) -> Fallback:
        return fall_back(
            some,
            simulation,
            goal,
            wide=widened(target) if more else None,
            wide_weights=widened_weights(target) if more else None,
            ranking=ranking,
            progress=None if progress is None else _after(progress, ranked),
        )

    try:
        fallen = found(variants)
    except InputDataError:
        if not decision.bodies:
            raise
        dropped = dict.fromkeys(decision.bodies, simulation.metrics())
        reason = f"its bodies stay float for {goal}"
        fallen = found(replace(variants, base=without_bodies(decision, dropped, reason)))
    return replace(fallen, reverted=[*fallen.reverted, *_reverted(dropped, goal)])


def _reverted(dropped: Mapping[Node, Metrics], goal: Goal) -> list[Reverted]:
    """Returns what is told of nodes whose bodies became float."""
    reason = f"its bodies stay float for {goal}"
    return [
        Reverted(Layer((node,)), "float", rank, alone, reason)
        for rank, (node, alone) in enumerate(dropped.items(), 1)
    ]


def _after(progress: Progress, done: int, ahead: int = 0) -> Progress:
    """Returns ``progress`` for a part of the work, ``done`` trials before and ``ahead`` behind."""
    return lambda trial, total: progress(done + trial, done + total + ahead)


def met(
    made: Quantized,
    goal: Goal,
    samples: Samples,
    *,
    fallback: Literal["int16", "float"] = "int16",
    metric: Metric | None = None,
    progress: Progress | None = None,
) -> Fallback:
    """Returns what it took to make ``made`` meet ``goal``.

    Args:
        made: A quantized graph and how it came about.
        goal: How good the outputs have to be.
        samples: What they are judged on.
        fallback: Whether layers get 16 bits first, or stay float at once.
        metric: A user's score of the outputs by name; more is better.
        progress: Called with the trials done, and how many there will be at most.

    Raises:
        InputDataError: The goal cannot be met.
    """
    graph = made.decision.plan.graph
    seen = made.profile.by_name()
    stats = {value: seen[value.name] for value in observable(graph) if value.name in seen}
    return meeting(
        made.decision,
        goal,
        samples,
        made.target,
        stats,
        original=made.original,
        unseen=made.unseen,
        overrides=made.options.overrides(graph),
        fallback=fallback,
        metric=metric,
        workers=made.options.workers,
        progress=progress,
    )
