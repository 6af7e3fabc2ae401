"""As few layers as possible with more bits, or float, until the outputs are good enough.

The layers are ranked once; how many of the most costly ones have to change is found by halving,
on the simulated graph. One pass from the least costly of them back then takes back what was not
needed. What is found is proven on the real quantized graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from qdqbridge.autoquant.planning.decide import Decision, apply
from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.plan import Overrides, QuantizationPlan
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.search.search import (
    Changes,
    Fallback,
    Goal,
    LayerSearch,
    Progress,
    Reverted,
    Search,
    stats_of,
)
from qdqbridge.autoquant.search.sensitivity import (
    Layer,
    LayerChange,
    Ranking,
    Sensitivity,
    Variants,
    layers_of,
    sensitivity,
    widened,
    widened_weights,
)
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.engines import SimulationEngine
from qdqbridge.autoquant.simulation.metrics import Metric, Metrics, outputs_of
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.errors import InputDataError

# ---- Which bodies of If, Loop and Scan stay quantized where a goal is given ----------------------
# The simulated graph has float bodies, so they are judged on real graphs in which they alone are
# quantized: the most costly ones become float until the goal is met.


def bodies_that_meet(
    decision: Decision, met: Callable[[Metrics], bool], simulation: Simulation, goal: str
) -> tuple[Decision, dict[Node, Metrics]]:
    """Returns a decision with the bodies that a goal bears, and what the others cost alone.

    Args:
        decision: Some of its nodes may have quantized bodies.
        met: Whether outputs are good enough.
        simulation: Of its graph.
        goal: In words.
    """
    search = Search[Collection[Node]](
        lambda nodes: _with_these(decision, nodes, simulation), met, key=frozenset
    )
    if not decision.bodies or search.met([*decision.bodies]):
        return decision, {}
    alone = {node: search.metrics([node]) for node in decision.bodies}
    kept = sorted(alone, key=lambda node: alone[node].nmse)
    fewer = (kept[:count] for count in range(len(kept), 0, -1))
    few = search.in_turn(fewer) or []
    dropped = {node: alone[node] for node in reversed(kept[len(few) :])}
    return without_bodies(decision, dropped, f"its bodies stay float for {goal}"), dropped


def without_bodies(decision: Decision, nodes: Collection[Node], reason: str) -> Decision:
    """Returns a decision in which the bodies of some nodes are float."""
    plan = replace(decision.plan, floats={**decision.plan.floats, **dict.fromkeys(nodes, reason)})
    bodies = {node: new for node, new in decision.bodies.items() if node not in nodes}
    return replace(decision, plan=plan, bodies=bodies)


def _with_these(decision: Decision, nodes: Collection[Node], simulation: Simulation) -> Metrics:
    """Returns the outputs where nothing but the bodies of some nodes is quantized."""
    bodies = {node: new for node, new in decision.bodies.items() if node in nodes}
    graph = apply(Decision(QuantizationPlan(decision.plan.graph), bodies=bodies))
    return simulation.compared(outputs_of(graph, simulation.batches), simulation.reference)


# ---- As few layers as possible with more bits, or float, until the outputs are good enough -------


_LEVELS: Mapping[str, int] = {"int16": 3, "float": 1}
"""What a layer may get: more bits of weights, then of activations, then float; or that at once."""


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
    search = LayerSearch(variants, simulation, goal, progress)
    search.ahead = most
    before = search.metrics({})
    if goal.max_drop is not None and before.score is None and before.top1 is None:
        raise InputDataError(
            "there is nothing that could drop",
            why="the outputs are no classes, and no metric is given",
            fix="give a metric, or a smallest SQNR",
        )
    levels = _levels(goal, wide, wide_weights, to_float=to_float)

    def ranked() -> Ranking:
        nonlocal ranking
        ranking = ranking or sensitivity(variants, simulation, without=False)
        return ranking

    def candidates() -> Iterator[Changes]:
        if search.accepts(before):
            yield {}
        layers = [entry.layer for entry in ranked().layers]
        simulation.hold(variants.base)
        changes = _chosen(search, layers, levels)
        search.ahead = 0
        search.tell()
        simulation.release()
        # Enough in the simulation and too little in the real graph: one more at a time, since they
        # differ only a little.
        while changes is not None:
            yield changes
            changes = _further(changes, layers, levels)

    def unmet(_: Metrics | None) -> InputDataError:
        every = {entry.layer: levels[-1] for entry in ranked().layers} if levels else {}
        return InputDataError(
            "no choice of layers is good enough",
            why=f"wanted: {goal}; with all layers changed: {search.metrics(every).sqnr:.2f} dB",
            fix="allow layers to stay float, or ask for less",
        )

    proven = search.proven(candidates(), unmet)
    changed = ranked() if proven.changes else None
    report = [] if changed is None else _report(proven.changes, changed.layers)
    return search.fallback(proven, report, len(search.tried), ranking=changed)


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
    search: LayerSearch, layers: Sequence[Layer], levels: Sequence[LayerChange]
) -> Changes | None:
    """Returns the fewest changes of the cheapest level that is enough, less below that."""
    rest: Changes = {}
    below: LayerChange | None = None
    for level in levels:
        changes = _shortest(search, layers, level, rest)
        if changes is not None:
            if below is not None:
                most = {layer: change for layer, change in changes.items() if change is level}
                # Those of the cheaper level were given it for want of a better one; few of them may
                # need it.
                others = [layer for layer in layers if layer not in most]
                changes = _shortest(search, others, below, most) or changes
            return _pruned(search, changes, layers, levels)
        rest, below = dict.fromkeys(layers, level), level
    return None


def _shortest(
    search: LayerSearch, ranked: Sequence[Layer], change: LayerChange, rest: Changes
) -> Changes | None:
    """Returns ``rest`` with ``change`` for as few of the first layers as are needed.

    Args:
        search: What tries them.
        ranked: The most costly layer first.
        change: What they get.
        rest: What all layers get that do not get it.

    Returns:
        None where all of them are not enough.
    """

    def prefix(count: int) -> Changes:
        return {**rest, **dict.fromkeys(ranked[:count], change)}

    count = search.first(len(ranked) + 1, lambda count: search.met(prefix(count)))
    return None if count is None else prefix(count)


def _pruned(
    search: LayerSearch, changes: Changes, ranked: Sequence[Layer], levels: Sequence[LayerChange]
) -> Changes:
    """Returns ``changes`` without what is not needed, the least costly layer first."""
    search.ahead = sum(1 + levels.index(change) for change in changes.values())

    def softer(layer: Layer) -> Callable[[Changes], Iterator[Changes]]:
        def options(kept: Changes) -> Iterator[Changes]:
            search.ahead -= 1 + levels.index(kept[layer])
            # Halving takes all layers before the last one that is needed, whether each of them is
            # or not.
            yield {key: value for key, value in kept.items() if key is not layer}
            for level in levels[: levels.index(kept[layer])]:
                yield {**kept, layer: level}

        return options

    return search.refined(changes, [softer(la) for la in reversed(ranked) if la in changes])


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


def _report(changes: Changes, ranked: Sequence[Sensitivity]) -> list[Reverted]:
    found: list[Reverted] = []
    for rank, entry in enumerate(ranked, 1):
        change = changes.get(entry.layer)
        if change is None:
            continue
        to = str(change)
        alone = "no error" if math.isinf(entry.alone.sqnr) else f"{entry.alone.sqnr:.2f} dB"
        reason = (
            f"{change.reason}: with this layer alone quantized the outputs have {alone}, "
            f"{_worst(rank)} of {len(ranked)} layers"
        )
        found.append(Reverted(entry.layer, to, rank, entry.alone, reason))
    return found


def _worst(rank: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    end = "th" if rank % 100 in (11, 12, 13) else ends.get(rank % 10, "th")
    return "the worst" if rank == 1 else f"the {rank}{end} worst"


def meet_goal(
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
        overrides: The overrides of its plan. What its plan leaves float stays float in any case.
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
    """Returns what is reported of nodes whose bodies became float."""
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
    return meet_goal(
        made.decision,
        goal,
        samples,
        made.target,
        stats_of(made),
        original=made.original,
        unseen=made.unseen,
        overrides=made.options.overrides(made.decision.plan.graph),
        fallback=fallback,
        metric=metric,
        workers=made.options.workers,
        progress=progress,
    )
