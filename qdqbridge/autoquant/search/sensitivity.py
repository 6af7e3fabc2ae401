"""Which layers cost most: every layer quantized alone, and left float alone.

No labels are needed, and nothing is compiled: a layer is switched by flags of the simulated graph,
and what lies before it is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.search.sensitivity_variants import Layer, LayerChange, Variants, layers_of
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.autoquant.simulation.metrics import Metrics
from qdqbridge.autoquant.simulation.teams import TrialTeam

Progress = Callable[[int, int], None]
_FLOAT = LayerChange(None, "only one layer is looked at")


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """What one layer costs.

    Attributes:
        layer: The layer.
        alone: The outputs where nothing but this layer is quantized.
        without: The outputs where everything but this layer is; None where that was not tried.
    """

    layer: Layer
    alone: Metrics
    without: Metrics | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """All layers, the most costly one first.

    Attributes:
        everything: The outputs where every layer is quantized.
        layers: By what they cost alone.
    """

    everything: Metrics
    layers: Sequence[Sensitivity]

    def by_gain(self) -> list[Sensitivity]:
        """Returns the layers by what is gained when only they stay float."""
        known = [entry for entry in self.layers if entry.without is not None]
        return sorted(known, key=lambda entry: _cost(entry.without or self.everything))

    def __str__(self) -> str:
        rows = [f"all layers: {_said(self.everything)}"]
        for entry in self.layers:
            more = "" if entry.without is None else f", all others {_said(entry.without)}"
            row = f"{entry.layer.kind} '{entry.layer.name}': alone {_said(entry.alone)}{more}"
            rows.append(row)
        return "\n".join(rows)


def sensitivity(
    variants: Variants,
    simulation: Simulation,
    *,
    layers: Collection[Layer] | None = None,
    without: bool = True,
    workers: int | str | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Returns what each layer costs.

    Args:
        variants: The decision to look at.
        simulation: A simulation of its graph.
        layers: Which ones; by default all.
        without: Try each layer float alone as well, which takes as long again.
        workers: A number of processes, or ``ray``, that try layers side by side.
        progress: Called with the number of trials done, and of all.
    """
    chosen = list(layers_of(variants.base.plan) if layers is None else layers)
    everyone = layers_of(variants.base.plan)
    total, done = len(chosen) * (2 if without else 1), 0

    def counted(metrics: Metrics) -> Metrics:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)
        return metrics

    singles = {layer: variants.decision(only(everyone, [layer])) for layer in chosen}
    simulation.cover([decision.plan for decision in singles.values()])
    everything = simulation.metrics(variants.base)
    alone = dict(
        zip(singles, tried(simulation, singles.values(), None, workers, counted), strict=True)
    )
    others: Mapping[Layer, Metrics] = {}
    if without:
        rest = {layer: variants.decision({layer: _FLOAT}) for layer in chosen}
        simulation.cover([decision.plan for decision in rest.values()])
        others = dict(
            zip(
                rest, tried(simulation, rest.values(), variants.base, workers, counted), strict=True
            )
        )
    simulation.release()
    found = [Sensitivity(layer, alone[layer], others.get(layer)) for layer in chosen]
    return Ranking(everything, sorted(found, key=lambda entry: _cost(entry.alone), reverse=True))


def tried(
    simulation: Simulation,
    decisions: Iterable[Decision],
    near: Decision | None,
    workers: int | str | None,
    counted: Callable[[Metrics], Metrics],
) -> Iterator[Metrics]:
    """Yields the metrics of decisions, in order.

    Args:
        simulation: It covers them.
        decisions: What is tried.
        near: What most of them differ little from; None for the float model.
        workers: Who tries them; None for this process.
        counted: Called with each result.
    """
    if workers is None:
        simulation.hold(near)
        for decision in decisions:
            yield counted(simulation.metrics(decision))
        return
    with TrialTeam([simulation], workers) as team:
        for outputs in team.outputs([(simulation, decision) for decision in decisions]):
            yield counted(simulation.compared(outputs, simulation.reference))


def only(everyone: Collection[Layer], kept: Collection[Layer]) -> dict[Layer, LayerChange]:
    """Returns the changes that leave all layers float but some."""
    return {layer: _FLOAT for layer in everyone if layer not in kept}


def _cost(metrics: Metrics) -> tuple[float, float]:
    """Returns what is sorted by: the user's metric where there is one, then the error."""
    return (metrics.drop if metrics.score is not None else 0.0, metrics.nmse)


def _said(metrics: Metrics) -> str:
    parts = [f"{metrics.sqnr:.2f} dB"]
    if metrics.score is not None:
        parts.append(f"metric {metrics.score:.6g}")
    if metrics.top1 is not None:
        parts.append(f"top-1 {100 * metrics.top1:.2f} %")
    return ", ".join(parts)
