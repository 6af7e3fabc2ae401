"""Bits per layer for a size: at most so many bytes, or as few as a goal leaves.

Every layer with weights is tried with 4-bit weights alone, and float alone. What it costs in error
for each byte saved orders them; the curve of that order is what size buys of quality. Where a size
is given, as few layers as possible get 4 bits; where only a goal is, as many as it leaves. Every
trial can be saved, so that a search that was killed goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.formats import Unstored
from qdqbridge.autoquant.planning.targets import WEIGHTS
from qdqbridge.autoquant.profiling.samples import Samples
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
    simulation_of,
    variants_of,
)
from qdqbridge.autoquant.search.sensitivity import Layer, LayerChange, layers_of
from qdqbridge.autoquant.simulation.metrics import Metric, Metrics
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InputDataError
from qdqbridge.targets.running import Runner

_POINTS = 12
"""Points of the curve that are tried, beside those that the search needs."""
_RUNS = 5


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """How large a model may be, and what it has to be like.

    Attributes:
        max_bytes: Of all constants as they are stored; None for as few as the goal leaves.
        goal: How good the outputs have to be; None for as good as the bytes allow.
    """

    max_bytes: int | None = None
    goal: Goal | None = None

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


def size_of(graph: Graph) -> int:
    """Returns the bytes of all constants of a graph, scales and zero points included."""
    total = 0
    for value in dict.fromkeys(graph.values()):
        if value.constant is None:
            continue
        bits = value.constant.dtype.bits
        if value.quant is not None:
            params = value.quant.params
            bits = params.storage_dtype.bits
            total += params.scale.size * 4 + params.zero_point.size
        total += -(-value.constant.size * bits // 8)
    return total


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
            expected=2 * len(self._layers) + _POINTS,
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
        shown = sorted({*np.linspace(0, len(steps) - 1, _POINTS).astype(int).tolist(), start})
        curve = [*(self._point(steps[index]) for index in shown), self._point(proven.changes)]
        return self._search.fallback(
            proven,
            self._report(proven.changes),
            self._search.simulation.trials,
            pareto=tuple(sorted(set(curve), key=lambda point: point.size)),
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
        """Returns the bytes of a variant's constants."""
        return size_of(apply(self._variants.decision(changes)))

    def _chosen(self, steps: Sequence[Changes]) -> int:
        """Returns the first step that is small enough, or the last that is good enough."""
        most, goal = self._limit.max_bytes, self._limit.goal
        if most is not None:
            index = self._search.first(len(steps), lambda i: self._size(steps[i]) <= most)
            if index is None:
                least = self._size(steps[-1])
                raise InputDataError(
                    f"the model does not fit into {most:,} bytes",
                    why=f"with 4-bit weights everywhere its constants take {least:,}",
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
        narrow = sum(change is self._narrow for change in changes.values())
        floats = len(changes) - narrow
        runner, batch = Runner(graph), self._search.simulation.batches[0]
        best = math.inf
        for _ in range(_RUNS):
            began = time.perf_counter()
            runner.run(batch)
            best = min(best, time.perf_counter() - began)
        count = len(next(iter(batch.values()))) if batch else 1
        name = f"{narrow} of {len(self._layers)} layers in 4 bits" if narrow else "no 4 bits"
        name += f", {floats} float" if floats else ""
        return ParetoRow(
            name, size_of(graph), metrics.sqnr, metrics.top1, round(1e3 * best / count, 4)
        )

    def _report(self, changes: Changes) -> list[Reverted]:
        found: list[Reverted] = []
        for rank, (layer, change) in enumerate(changes.items(), 1):
            alone = self._metrics({layer: change})
            reason = f"{change.reason}: changed alone it leaves {alone.sqnr:.2f} dB"
            found.append(Reverted(layer, str(change), rank, alone, reason))
        return found


def _without(layer: Layer) -> Callable[[Changes], list[Changes]]:
    return lambda kept: [{other: change for other, change in kept.items() if other is not layer}]
