"""Bits per layer for a size or a limit of time: bytes at most, or no node slower than so much."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.formats import Unstored
from qdqbridge.autoquant.planning.targets import WEIGHTS, Target
from qdqbridge.autoquant.profiling.samples import Sample, Samples
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.record import ParetoRow
from qdqbridge.autoquant.search.fallback import bodies_that_meet
from qdqbridge.autoquant.search.search import (
    Changes,
    Fallback,
    Goal,
    LayerSearch,
    Progress,
    Reverted,
    Trials,
    key_of,
    name_of,
    simulation_of,
    variants_of,
)
from qdqbridge.autoquant.search.sensitivity import Layer, LayerChange, layers_of, narrowed
from qdqbridge.autoquant.simulation.metrics import Metric, Metrics
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.errors import InputDataError
from qdqbridge.onnx_io.control_flow.bodies import bodies_in, parts
from qdqbridge.targets.engines.kinds import NodeTime
from qdqbridge.targets.profiles.export import file_size
from qdqbridge.targets.running import Runner

# ---- Bits per layer for a size: at most so many bytes, or as few as a goal leaves ----------------
# Every layer with weights is tried with 4-bit weights alone, and float alone. What it costs in
# error for each byte saved orders them; the curve of that order is what size buys of quality. Where
# a size is given, as few layers as possible get 4 bits; where only a goal is, as many as it leaves.
# Every trial can be saved, so that a search that was killed goes on where it was.


Sized: TypeAlias = Callable[[Graph], int]
"""Returns the bytes of the file that a graph is written to."""

_SIZE_POINTS = 12
"""Points of the curve that are tried, beside those that the search needs."""
_RUNS = 5


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """How large a model may be, and what it has to be like.

    Attributes:
        max_bytes: Of the file that is written; None for as few as the goal leaves.
        goal: How good the outputs have to be; None for as good as the bytes allow.
        sized: Returns the bytes of the file that a graph is written to.
    """

    max_bytes: int | None = None
    goal: Goal | None = None
    sized: Sized = file_size

    def __post_init__(self) -> None:
        if self.max_bytes is None and self.goal is None:
            raise InputDataError(
                "nothing says what the model may cost",
                fix="give a largest size, a smallest SQNR, a largest drop, or several of them",
            )
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InputDataError(f"{self.max_bytes} is not a size", fix="give a number of bytes")

    def __str__(self) -> str:
        size = "as small as possible"
        if self.max_bytes is not None:
            size = f"at most {self.max_bytes:,} bytes"
        return size if self.goal is None else f"{size}, {self.goal}"


def within(
    made: Quantized,
    limit: SizeLimit,
    samples: Samples,
    *,
    state: Path | None = None,
    metric: Metric | None = None,
    progress: Progress | None = None,
) -> Fallback:
    """Returns a quantized graph within ``limit``, and the curve of size against quality.

    Args:
        made: A quantized graph and how it came about.
        limit: How large it may be.
        samples: What it is judged on.
        state: A file of trials, to go on from and to add to.
        metric: The user's score of the outputs, which a largest drop is of.
        progress: Called with the trials done, and how many there will be, about.

    Raises:
        InputDataError: The limit cannot be met, or ``state`` is of something else.
    """
    return _SizeSearch(made, limit, samples, state, metric, progress).run()


def _name_of_point(changes: Changes, layers: Sequence[Layer]) -> str:
    """Returns what a point of a curve is called: how many layers have what."""
    kinds = [str(change) for change in changes.values()]
    counts = [f"{kinds.count(kind)} in {kind}" for kind in dict.fromkeys(kinds)]
    return f"of {len(layers)} layers {', '.join(counts)}" if counts else "as quantized"


class _SizeSearch:
    def __init__(
        self,
        made: Quantized,
        limit: SizeLimit,
        samples: Samples,
        state: Path | None,
        metric: Metric | None,
        progress: Progress | None,
    ) -> None:
        decision, simulation = made.decision, simulation_of(made, samples, metric)
        if limit.goal is not None:
            met, goal = limit.goal.met, str(limit.goal)
            decision, _ = bodies_that_meet(decision, met, simulation, goal)
        weights = made.target.weights
        narrow = replace(WEIGHTS["int4"], axis=weights.axis, block=weights.block)
        known = [weight for weight in made.decision.weights if weight.index < 2]
        constants = [(weight.node, weight.value.constant) for weight in known]
        self._weights = {node: constant.size for node, constant in constants if constant}
        self._layers = [
            layer
            for layer in layers_of(made.decision.plan)
            if any(node in self._weights for node in layer.nodes)
        ]
        self._limit, self._workers = limit, made.options.workers
        self._search = LayerSearch(
            variants_of(made, decision),
            simulation,
            limit.goal,
            progress,
            trials=Trials(state, key_of(made, samples)),
            expected=2 * len(self._layers) + _SIZE_POINTS,
        )
        self._metrics, self._variants = self._search.metrics, self._search.variants
        self._narrow = LayerChange(None, f"4 bits for {limit}", narrow)
        self._float = LayerChange(reason=f"float for {limit}")
        dynamic = made.target.activations in (Unstored.DYNAMIC, Unstored.DYNAMIC_ROWS)
        self._few = dynamic or weights.storage.bits <= self._narrow_bits

    @property
    def _narrow_bits(self) -> int:
        assert self._narrow.weights is not None
        return self._narrow.weights.storage.bits

    def run(self) -> Fallback:
        steps = self._steps(self._metrics({}))
        start = next(i for i, changes in enumerate(steps) if not changes)
        proven = self._search.proven(self._candidates(steps), self._unmet)
        shown = sorted({*np.linspace(0, len(steps) - 1, _SIZE_POINTS).astype(int).tolist(), start})
        tried = [*(steps[index] for index in shown), proven.changes]
        curve = [self._point(each) for each in {name_of(each): each for each in tried}.values()]
        return self._search.fallback(
            proven,
            self._report(proven.changes),
            self._search.simulation.trials,
            pareto=tuple(sorted(curve, key=lambda point: point.size)),
        )

    def _candidates(self, steps: Sequence[Changes]) -> Iterator[Changes]:
        """Yields changes that suit the limit, and closer ones, unless they would be too large."""
        first = self._chosen(steps)
        if self._limit.max_bytes is not None:
            yield self._polished(steps[first])
            return
        for changes in reversed(steps[: first + 1]):
            polished = self._polished(changes)
            yield polished
            if polished != changes:
                yield changes

    def _steps(self, base: Metrics) -> list[Changes]:
        """Returns what layers get, from all float to all of 4 bits, one layer after the other."""
        narrow = [] if self._few else self._ordered(self._narrow, base)
        wide = self._ordered(self._float, base)
        steps: list[Changes] = [
            dict.fromkeys(wide[:n], self._float) for n in range(len(wide), 0, -1)
        ]
        return [*steps, *(dict.fromkeys(narrow[:n], self._narrow) for n in range(len(narrow) + 1))]

    def _ordered(self, change: LayerChange, base: Metrics) -> list[Layer]:
        """Returns the layers, first what gives most for what it costs.

        That is error for bytes where bytes are saved, bytes for error where error is.
        """
        self._search.try_each(self._layers, change, self._workers)

        def worth(layer: Layer) -> float:
            error = self._metrics({layer: change}).nmse - base.nmse
            return error / max(abs(self._saved(layer, change)), 1)

        return sorted(self._layers, key=worth)

    def _saved(self, layer: Layer, change: LayerChange) -> int:
        """Returns the bytes of weights that a change saves, about; negative where it costs some."""
        weights = [self._weights[node] for node in layer.nodes if node in self._weights]
        bits = 32 if change.is_float else self._narrow_bits
        own = self._variants.target.weights.storage.bits
        return sum(weights) * (own - bits) // 8

    def _size(self, changes: Changes) -> int:
        """Returns the bytes of a variant's file."""
        return self._limit.sized(apply(self._variants.decision(changes)))

    def _chosen(self, steps: Sequence[Changes]) -> int:
        """Returns the first step that is small enough, or the last that is good enough."""
        most, goal = self._limit.max_bytes, self._limit.goal
        if most is not None:
            index = self._search.first(len(steps), lambda i: self._size(steps[i]) <= most)
            if index is None:
                least = self._size(steps[-1])
                raise InputDataError(
                    f"the model does not fit into {most:,} bytes",
                    why=f"its smallest file takes {least:,}, as quantized"
                    if self._few
                    else f"with 4-bit weights everywhere its file takes {least:,}",
                    fix="allow more, or exclude less",
                )
            if goal is not None and not goal.met(self._metrics(steps[index])):
                raise self._unmet(self._metrics(steps[index]))
            return index
        assert goal is not None
        worse = self._search.first(len(steps), lambda i: not self._search.met(steps[i]))
        if worse == 0:
            raise self._unmet(self._metrics(steps[0]))
        return len(steps) - 1 if worse is None else worse - 1

    def _polished(self, changes: Changes) -> Changes:
        """Returns changes that suit the limit better, each layer looked at once more.

        What a size does not need is taken back, the costly layers first; what a goal still allows
        is done as well, the layers that save most first.
        """
        most, goal = self._limit.max_bytes, self._limit.goal
        if most is None:
            assert goal is not None
            others = [] if self._few else [la for la in self._layers if la not in changes]
            others.sort(key=lambda la: -self._saved(la, self._narrow))
            return self._search.refined(changes, [self._with_narrow(la) for la in others])
        size = self._size(changes)

        def fits(kept: Changes) -> bool:
            taken_back = (la for la in changes if la not in kept)
            return size + sum(self._saved(la, self._narrow) for la in taken_back) <= most

        narrow = [la for la in reversed(changes) if changes[la] is self._narrow]
        kept = self._search.refined(changes, [_without(la) for la in narrow], fits)
        return kept if self._size(kept) <= most else changes

    def _with_narrow(self, layer: Layer) -> Callable[[Changes], list[Changes]]:
        return lambda kept: [{**kept, layer: self._narrow}]

    def _unmet(self, metrics: Metrics | None) -> InputDataError:
        assert metrics is not None
        return InputDataError(
            f"no bits per layer are {self._limit}",
            why=f"the outputs are {metrics.sqnr:.2f} dB from the float model's then",
            fix="allow more bytes, or ask for less",
        )

    def _point(self, changes: Changes) -> ParetoRow:
        metrics, graph = self._metrics(changes), apply(self._variants.decision(changes))
        runner, batch = Runner(graph), self._search.simulation.batches[0]
        best = math.inf
        for _ in range(_RUNS):
            began = time.perf_counter()
            runner.run(batch)
            best = min(best, time.perf_counter() - began)
        count = len(next(iter(batch.values()))) if batch else 1
        size, taken = self._limit.sized(graph), round(1e3 * best / count, 4)
        name = _name_of_point(changes, self._layers)
        return ParetoRow(name, size, metrics.sqnr, metrics.top1, taken)

    def _report(self, changes: Changes) -> list[Reverted]:
        found: list[Reverted] = []
        for rank, (layer, change) in enumerate(changes.items(), 1):
            alone = self._metrics({layer: change})
            reason = f"{change.reason}: changed alone it leaves {alone.sqnr:.2f} dB"
            found.append(Reverted(layer, str(change), rank, alone, reason))
        return found


def _without(layer: Layer) -> Callable[[Changes], list[Changes]]:
    return lambda kept: [{other: change for other, change in kept.items() if other is not layer}]


# ---- Bits per layer for a limit of time: no node of an engine may take longer than so much -------
# An engine makes its own nodes of a model, and says what each takes. Those that take too long name
# layers; these are tried in what else they may be stored as (fewer bits of weights, 8 bits for 16,
# floats), and get what comes closest to the float model's outputs of what was fast enough. The
# whole model is timed again until no node is too slow, or nothing is left to be tried.


Clock = Callable[[Graph, Sample], Sequence[NodeTime]]
"""Returns what each node of an engine takes for a model and one sample."""
_Pick: TypeAlias = tuple[LayerChange, int]
"""What a layer gets, and how far around it."""
_REACH = 2
_POINTS = 4
"""Points of the curve that are timed, beside those that the search needs."""
_MOST_REASONS = 5
_SUFFIX = "_quantized"


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """What each node of a model may take.

    Attributes:
        max_seconds: For one sample.
        engine: Whose nodes.
        goal: How good the outputs have to be; None for as good as the time allows.
        threads: How many the engine uses; None for its default.
        sized: Returns the bytes of the file that a graph is written to, for the curve.
    """

    max_seconds: float
    engine: str
    goal: Goal | None = None
    threads: int | None = None
    sized: Sized = file_size

    def __post_init__(self) -> None:
        if not 0 < self.max_seconds < math.inf:
            raise InputDataError(f"{self.max_seconds} s are no limit", fix="give 2ms, or 500us")

    def __str__(self) -> str:
        limit = f"no node above {time_text(self.max_seconds)} on {self.engine}"
        return limit if self.goal is None else f"{limit}, {self.goal}"


def slow_nodes(graph: Graph, limit: TimeLimit, sample: Sample, clock: Clock) -> list[NodeTime]:
    """Returns the nodes of a graph that take too long as they are, the slowest first."""
    slow = [time for time in clock(graph, sample) if time.seconds > limit.max_seconds]
    return sorted(slow, key=lambda time: -time.seconds)


def within_time(
    made: Quantized,
    limit: TimeLimit,
    samples: Samples,
    clock: Clock,
    *,
    state: Path | None = None,
    metric: Metric | None = None,
    progress: Progress | None = None,
) -> Fallback:
    """Returns a quantized graph of whose nodes none takes too long, and the curve.

    Args:
        made: A quantized graph and how it came about.
        limit: What a node may take.
        samples: What outputs are judged on; the first one is timed.
        clock: What runs a graph in the engine.
        state: A file of trials, to go on from and to add to.
        metric: The user's score of the outputs, which a largest drop is of.
        progress: Called with the trials done, and how many there will be, about.

    Raises:
        InputDataError: No choice brings every node under the limit, which are named with what they
            take; the goal is not met then; or ``state`` is of something else.
        UnsupportedTargetError: The engine cannot run the model.
    """
    return _TimeSearch(made, limit, samples, clock, state, metric, progress).run()


class _TimeSearch:
    def __init__(
        self,
        made: Quantized,
        limit: TimeLimit,
        samples: Samples,
        clock: Clock,
        state: Path | None,
        metric: Metric | None,
        progress: Progress | None,
    ) -> None:
        graph = made.decision.plan.graph
        self._limit, self._clock, self._sample = limit, clock, samples[0]
        key = key_of(made, samples, f"{limit.engine} {limit.threads or ''}".strip())
        self._search = LayerSearch(
            variants_of(made),
            simulation_of(made, samples, metric),
            limit.goal,
            progress,
            trials=Trials(state, key),
        )
        self._metrics, self._trials = self._search.metrics, self._search.trials
        self._graphs: dict[str, Graph] = {}
        self._layers = layers_of(made.decision.plan)
        self._owners = _owners(self._layers)
        self._inside = _names_inside(graph)
        results = [value.name for node in bodies_in(graph) for value in node.outputs]
        self._starts = tuple(f"{name}." for name in results if name)
        self._around = _Neighbours(graph, self._layers)
        self._floats = made.decision.plan.floats
        weighted = {weight.node for weight in made.decision.weights if weight.index < 2}
        self._options = {
            layer: [
                change
                for change in _changes(made.target, str(limit))
                if change.weights is None or not weighted.isdisjoint(layer.nodes)
            ]
            for layer in self._layers
        }
        self._search.expected = 2 * (len(_unique(self._options.values())) + _POINTS) + 2

    def run(self) -> Fallback:
        self._metrics({})
        proven = self._search.proven([self._chosen()], self._not_good)
        return self._search.fallback(
            proven,
            self._report(proven.changes),
            self._search.simulation.trials,
            pareto=self._curve(proven.changes),
        )

    def _not_good(self, metrics: Metrics | None) -> InputDataError:
        assert metrics is not None
        return InputDataError(
            f"no bits per layer are {self._limit}",
            why=f"the outputs are {metrics.sqnr:.2f} dB from the float model's then",
            fix="allow more time, or ask for less",
        )

    def _chosen(self) -> Changes:
        """Returns what the layers get whose nodes are too slow, and with them their neighbours.

        Raises:
            InputDataError: Some node stays too slow, whatever its layer gets.
        """
        picks: dict[Layer, _Pick] = {}
        too_slow: dict[Layer, set[_Pick]] = {}
        while slow := [t for t in self._own_times(self._made(picks)) if self._is_slow(t.seconds)]:
            moved = False
            for layer in dict.fromkeys(filter(None, map(self._owner, slow))):
                seen = too_slow.setdefault(layer, set())
                if layer in picks:
                    seen.add(picks.pop(layer))
                pick = self._next(layer, seen)
                if pick is not None:
                    picks[layer], moved = pick, True
            if not moved:
                raise self._unmet(slow)
        return self._made(picks)

    def _is_slow(self, seconds: float) -> bool:
        return seconds > self._limit.max_seconds

    def _next(self, layer: Layer, seen: Collection[_Pick]) -> _Pick | None:
        """Returns what a layer is given next: alone, with who reads it, then with all around it.

        What is not fast where every layer has it is not tried, and of the rest first what costs
        least.
        """
        fast = [c for c in self._options[layer] if not self._is_slow(self._taken(layer, c))]
        for reach in range(_REACH + 1):
            left = [change for change in fast if (change, reach) not in seen]
            if left:
                return min(left, key=lambda c: self._metrics({layer: c}).nmse), reach
        return None

    def _made(self, picks: Mapping[Layer, _Pick]) -> Changes:
        """Returns what all layers get; what one gets for its own sake comes first."""
        found: Changes = {layer: change for layer, (change, _) in picks.items()}
        for layer, (change, reach) in picks.items():
            for other in self._around.of(layer, reach):
                if change in self._options[other]:
                    found.setdefault(other, change)
        return found

    def _taken(self, layer: Layer, change: LayerChange | None) -> float:
        """Returns what the slowest node of a layer takes where all that can are changed so."""
        times = self._times(self._everywhere(change))
        return max((t.seconds for t in times if self._owner(t) is layer), default=0.0)

    def _everywhere(self, change: LayerChange | None) -> Changes:
        if change is None:
            return {}
        return {layer: change for layer in self._layers if change in self._options[layer]}

    def _owner(self, time: NodeTime) -> Layer | None:
        """Returns the layer that an engine's node computes, or stores the result of."""
        return next((self._owners[name] for name in time.names if name in self._owners), None)

    def _unmet(self, slow: Sequence[NodeTime]) -> InputDataError:
        worst = sorted(slow, key=lambda time: -time.seconds)
        more = len(worst) - _MOST_REASONS
        reasons = [self._why(time) for time in worst[:_MOST_REASONS]]
        return InputDataError(
            f"{len(slow)} nodes take longer than {time_text(self._limit.max_seconds)} on "
            f"{self._limit.engine} whatever their layers are stored as",
            why="; ".join(reasons + ([f"and {more} more"] if more > 0 else [])),
            fix="allow more time, cut these operators in the model, or use another engine",
        )

    def _why(self, time: NodeTime) -> str:
        layer = self._owner(time)
        said = f"{time.operator} '{time.node}' {time_text(time.seconds)}"
        if layer is None:
            reasons = {node.name: why for node, why in self._floats.items()}
            why = next((reasons[name] for name in time.names if name in reasons), "")
            return f"{said} (it belongs to no quantized layer{f': {why}' if why else ''})"
        each = [f"{time_text(self._taken(layer, None))} as quantized"]
        each += [f"{time_text(self._taken(layer, c))} in {c}" for c in self._options[layer]]
        return f"{said} (layer '{layer.name}': {', '.join(each)})"

    def _curve(self, chosen: Changes) -> tuple[ParetoRow, ...]:
        """Returns what the slowest node's time buys of quality.

        The slowest layers get what is fastest for them, one after the other.
        """
        times = {layer: self._taken(layer, None) for layer in self._layers}
        steps: list[Changes] = [{}, chosen]
        steps += [self._everywhere(change) for change in _unique(self._options.values())]
        ordered = sorted(self._layers, key=lambda layer: -times[layer])
        best = {
            layer: min(self._options[layer], key=lambda c: self._taken(layer, c))
            for layer in ordered
        }
        faster = {la: c for la, c in best.items() if self._taken(la, c) < times[la]}
        counts = {1 << i for i in range(_POINTS) if 1 << i <= len(faster)}
        steps += [dict(list(faster.items())[:count]) for count in sorted(counts)]
        rows = {name_of(step): self._point(step) for step in steps}
        return tuple(sorted(rows.values(), key=lambda row: row.slowest_milliseconds or 0.0))

    def _point(self, changes: Changes) -> ParetoRow:
        metrics, times = self._metrics(changes), [t.seconds for t in self._times(changes)]
        own = [t.seconds for t in self._own_times(changes)]
        name = _name_of_point(changes, self._layers)
        size = self._limit.sized(self._graphs[name_of(changes)])
        whole, slowest = 1e3 * sum(times), 1e3 * max(own, default=0.0)
        return ParetoRow(name, size, metrics.sqnr, metrics.top1, round(whole, 4), round(slowest, 4))

    def _report(self, changes: Changes) -> list[Reverted]:
        found: list[Reverted] = []
        for rank, (layer, change) in enumerate(changes.items(), 1):
            before, after = self._taken(layer, None), self._taken(layer, change)
            reason = (
                f"{change.reason}: {time_text(before)} as quantized, {time_text(after)} in {change}"
            )
            found.append(Reverted(layer, str(change), rank, self._metrics({layer: change}), reason))
        return found

    def _times(self, changes: Changes) -> Sequence[NodeTime]:
        name = name_of(changes)
        if name not in self._graphs:
            self._graphs[name] = apply(self._search.variants.decision(changes))
        graph = self._graphs[name]  # several sets of changes may come to one graph
        known = self._trials.times(graph.digest)
        if known is not None:
            return known
        found = self._clock(graph, self._sample)
        self._search.count()
        return self._trials.add_times(graph.digest, found)

    def _own_times(self, changes: Changes) -> list[NodeTime]:
        """Returns the times of nodes that are not in bodies, nor run some: these have a search."""
        return [
            time for time in self._times(changes) if self._owner(time) or not self._is_inside(time)
        ]

    def _is_inside(self, time: NodeTime) -> bool:
        # Tensors of a body are written as a result of its node, a point, and more.
        inside = any(name.startswith(self._starts) for name in time.names)
        return inside or not self._inside.isdisjoint(time.names)


class _Neighbours:
    """Which layers a layer hands its results to, or gets operands from, past what moves data."""

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        of = {node: layer for layer in layers for node in layer.nodes}
        self._readers: dict[Layer, list[Layer]] = {layer: [] for layer in layers}
        self._writers: dict[Layer, list[Layer]] = {layer: [] for layer in layers}
        sources: dict[Node, list[Layer]] = {}
        for node in graph.nodes:
            written = [v.producer for _, v in node.data_operands() if v.producer is not None]
            found = list(dict.fromkeys(la for each in written for la in sources[each]))
            sources[node] = [of[node]] if node in of else found
            for source in found if node in of else ():
                if source is not of[node]:
                    self._readers[source].append(of[node])
                    self._writers[of[node]].append(source)

    def of(self, layer: Layer, reach: int) -> list[Layer]:
        """Returns nobody, the layers that read a layer, or these and those that it reads."""
        readers = self._readers[layer] if reach > 0 else []
        return [*readers, *(self._writers[layer] if reach > 1 else ())]


def _changes(target: Target, why: str) -> list[LayerChange]:
    """Returns what a layer may get instead of what the target wants."""
    own = target.weights
    narrow = replace(WEIGHTS["int4"], axis=own.axis, block=own.block)
    dynamic = target.activations in (Unstored.DYNAMIC, Unstored.DYNAMIC_ROWS)  # of 8 bits alone
    few = dynamic or own.storage.bits <= narrow.storage.bits
    found = [] if few else [LayerChange(None, why, narrow)]
    eight = narrowed(target)
    found += [] if eight is None else [LayerChange(eight, why)]
    return [*found, LayerChange(reason=why)]


def _unique(options: Iterable[Sequence[LayerChange]]) -> list[LayerChange]:
    return list(dict.fromkeys(change for each in options for change in each))


def _names_inside(graph: Graph) -> set[str]:
    """Returns the names of nodes that run bodies, of the nodes in these, and of their results."""
    found = _names_of(bodies_in(graph), "")
    for body in parts(graph):
        found |= _names_of(body.graph.nodes, body.place)
    return found


def _names_of(nodes: Iterable[Node], place: str) -> set[str]:
    """Returns the names of nodes and results, also without the place that files do not have."""
    found: set[str] = set()
    for node in nodes:
        results = [value.name for value in node.outputs]
        each = [node.name, *results, *(f"{result}{_SUFFIX}" for result in results)]
        found.update(name for full in each for name in (full, full.removeprefix(place)) if name)
    return found


def _owners(layers: Sequence[Layer]) -> Mapping[str, Layer]:
    """Returns the layer by the names of its nodes, of their results, and of what it reads.

    What it reads is charged to it where nobody writes it: the inputs of the model.
    """
    found: dict[str, Layer] = {}
    for layer in layers:
        for node in layer.nodes:
            results = [value.name for value in node.outputs]
            for name in (node.name, *results, *(f"{result}{_SUFFIX}" for result in results)):
                if name:
                    found.setdefault(name, layer)
    for layer in layers:
        for node in layer.nodes:
            for _, value in node.data_operands():
                if value.producer is None and value.name:
                    found.setdefault(value.name, layer)
                    found.setdefault(f"{value.name}{_SUFFIX}", layer)
    return found


def time_text(seconds: float) -> str:
    """Returns a time as people write it."""
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
