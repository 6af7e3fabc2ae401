"""From a quantization to the record that its report is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

import numpy as np

from qdqbridge.autoquant.delivered import Delivered, delivered
from qdqbridge.autoquant.hardware.products import accumulators, observe
from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.plan import Derived, Fixed, Observed, Shared, has_floats
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.collect import observable
from qdqbridge.autoquant.profiling.profile import Profile
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import SIDE, Histogram, TensorStats
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.record import (
    Culprit,
    FallbackRow,
    FloatNode,
    QuantizationRecord,
    RepairRow,
    TensorReport,
)
from qdqbridge.autoquant.search.search import stats_of
from qdqbridge.autoquant.search.sensitivity import (
    LIMIT,
    Errors,
    Ranking,
    Variants,
    errors,
    layers_of,
    sensitivity,
    some_of,
    weight_errors,
)
from qdqbridge.autoquant.search.tuning import spread
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.printer import origin_of

if TYPE_CHECKING:
    from qdqbridge.autoquant.inside import QuantizedBody
    from qdqbridge.autoquant.repair.steps import StepRecord as Repair
    from qdqbridge.autoquant.search.search import Fallback


Progress = Callable[[int, int], None]
_BINS = 64
"""Bars of a histogram in a report, at most."""
_PROGRAMS = ("qdqbridge", "numpy", "onnx", "onnxruntime")


class Made(Protocol):
    """A quantized graph and how it came about: ``Quantized``."""

    @property
    def graph(self) -> Graph:
        """The quantized graph."""
        ...

    @property
    def decision(self) -> Decision:
        """The plan, with the float graph, and the parameters."""
        ...

    @property
    def profile(self) -> Profile:
        """What was seen of the float graph."""
        ...

    @property
    def original(self) -> Graph | None:
        """The float graph as it was given."""
        ...


def record_of(
    made: Made,
    target: Target,
    samples: Samples | None,
    *,
    shown: Delivered | None = None,
    model: str = "model",
    data: str = "data",
    repairs: Sequence[Repair] = (),
    ranking: Ranking | None = None,
    fallback: Fallback | None = None,
    goal: str = "",
    inside: Sequence[QuantizedBody] = (),
    notes: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> QuantizationRecord:
    """Returns what a report on a quantization shows; errors are measured here.

    Args:
        made: What came out.
        target: What it is for.
        samples: Calibration data to measure on; None where there is only a profile.
        shown: How close the outputs are; measured where nobody has.
        model: What to call the model.
        data: What to call the data.
        repairs: What became of the repair steps.
        ranking: What each layer costs alone.
        fallback: Which layers were taken back.
        goal: What the outputs had to be like.
        inside: What became of the bodies of If, Loop and Scan.
        notes: What else to tell.
        versions: Of programs, by name; by default of those that are installed.
        limit: Samples to measure on, at most.
        progress: Called with the steps done and their number.

    Raises:
        InputDataError: The samples do not fit the graph.
    """
    found, seen = Errors((), 0), None
    if samples is not None:
        report = progress or _silent
        found = errors(
            made.decision.plan.graph,
            made.graph,
            samples,
            limit=limit,
            progress=lambda done, total: report(done, 2 * total),
        )
        few = some_of(samples, limit)
        shown = shown or delivered(made.original or made.decision.plan.graph, made.graph, few)
        seen = observe(
            made.graph, few, progress=lambda done, total: report(total + done, 2 * total)
        )
    stats = made.profile.by_name()
    decisions = [made.decision, *_inner_decisions(inside)]
    return QuantizationRecord(
        model=model,
        float_digest=made.profile.model if made.original is None else made.original.digest,
        digest=made.graph.digest,
        target=target.name,
        data=data,
        samples=made.profile.samples,
        measured=found.samples,
        versions=installed() if versions is None else versions,
        choosers=_choosers(target),
        outputs=() if shown is None else shown.outputs,
        sqnr_db=None if shown is None else shown.expected,
        judged="" if shown is None else shown.judged,
        top1=None if shown is None else shown.metrics.top1,
        layers=found.layers,
        tensors=tuple(row for each in decisions for row in tensors(each, stats)),
        weights=tuple(row for each in decisions for row in weight_errors(each)),
        accumulators=tuple(row.row() for row in accumulators(made.graph, stats, seen=seen)),
        floats=(*_floats(made.decision), *floats_inside(inside)),
        culprits=() if ranking is None else _culprits(ranking),
        fallback=() if fallback is None else _fallback(fallback),
        pareto=() if fallback is None else tuple(fallback.pareto),
        goal=goal,
        repairs=tuple(RepairRow(r.step, r.applied, r.outcome, r.before, r.after) for r in repairs),
        notes=tuple(notes),
    )


def _silent(done: int, total: int) -> None:
    del done, total


def installed() -> dict[str, str]:
    """Returns the versions of the programs that take part."""
    result: dict[str, str] = {}
    for name in _PROGRAMS:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def _choosers(target: Target) -> dict[str, str]:
    formats = {target.weights, *(r.weights for r in target.rules if r.weights is not None)}
    names = {repr(target.chooser_of_weights(format)) for format in formats}
    return {"activations": repr(target.chooser), "weights": ", ".join(sorted(names))}


def _floats(decision: Decision) -> tuple[FloatNode, ...]:
    floats = decision.plan.floats
    nodes = [node for node in decision.plan.graph.nodes if node in floats]
    return tuple(FloatNode(node.name, node.op.name, floats[node]) for node in nodes)


def _inner_decisions(inside: Sequence[QuantizedBody]) -> list[Decision]:
    """Returns what was decided about bodies, those inside bodies too."""
    return [
        each
        for body in inside
        if body.made is not None
        for each in (body.made.decision, *_inner_decisions(body.made.inside))
    ]


def floats_inside(inside: Sequence[QuantizedBody]) -> list[FloatNode]:
    """Returns why nodes in bodies stay float, by the name of their body and their own."""
    found: list[FloatNode] = []
    for body in inside:
        place = body.body.place
        if body.made is None:
            found += (
                FloatNode(place + node.name, node.op.name, body.reason)
                for node in body.body.graph.nodes
                if has_floats(node)
            )
            continue
        found += (
            FloatNode(place + row.node, row.operator, row.reason)
            for row in _floats(body.made.decision)
        )
        found += floats_inside(body.made.inside)
    return found


def _culprits(ranking: Ranking) -> tuple[Culprit, ...]:
    return tuple(
        Culprit(each.layer.name, each.layer.kind, each.alone.sqnr) for each in ranking.layers
    )


def _fallback(found: Fallback) -> tuple[FallbackRow, ...]:
    return tuple(
        FallbackRow(each.layer.name, each.to, each.rank, each.alone.sqnr, each.reason)
        for each in found.reverted
    )


def tensors(decision: Decision, stats: Mapping[str, TensorStats]) -> tuple[TensorReport, ...]:
    """Returns what was seen of every float tensor, and the range chosen for it.

    Args:
        decision: Parameters of the tensors that are stored.
        stats: By name.
    """
    return tuple(
        _tensor(value, stats[value.name], decision)
        for value in observable(decision.plan.graph)
        if value.name in stats
    )


def _tensor(value: Value, seen: TensorStats, decision: Decision) -> TensorReport:
    params = decision.values.get(value)
    bins = _binned(seen.histogram)
    known = params is not None and params.per_tensor
    low, high = params.real_range if params is not None and known else (0.0, 0.0)
    return TensorReport(
        value.name,
        origin_of(value)[0],
        "" if params is None else str(params.storage_dtype),
        float(params.scale) if params is not None and known else None,
        int(params.zero_point) if params is not None and known else 0,
        low,
        high,
        _decided(value, decision),
        seen.minimum,
        seen.maximum,
        seen.finite,
        seen.zeros,
        _clipped(seen, low, high) if known else 0.0,
        *bins,
    )


def _decided(value: Value, decision: Decision) -> str:
    match decision.plan.specs.get(value):
        case Fixed(reason=reason):
            return f"fixed by {reason}"
        case Shared(source=source):
            return f"shared with {source.name}"
        case Observed():
            return "chosen"
        case Derived() | None:
            return ""


def _clipped(seen: TensorStats, low: float, high: float) -> float:
    """Returns the share of values in bins that lie outside of a range."""
    if not seen.finite or (low <= seen.minimum and seen.maximum <= high):
        return 0.0
    edges, counts = seen.histogram.edges, seen.histogram.counts
    outside = counts[(edges[1:] <= low) | (edges[:-1] >= high)].sum()
    return float(outside) / seen.finite


def _binned(histogram: Histogram) -> tuple[float, float, tuple[int, ...]]:
    """Returns left edge, width and counts of few bins that hold all values."""
    filled = np.flatnonzero(histogram.counts)
    while len(filled) and filled[-1] - filled[0] >= _BINS:
        histogram = histogram.coarsened(histogram.exponent + 1)
        filled = np.flatnonzero(histogram.counts)
    if not len(filled):
        return 0.0, 0.0, ()
    first, last = int(filled[0]), int(filled[-1])
    counts = tuple(int(count) for count in histogram.counts[first : last + 1])
    return (first - SIDE) * histogram.width, histogram.width, counts


# ---- What is reported of a network that quantizes badly: which layers do it, and what mends it ---


BAD = 20.0
"""Outputs further than this from the float model's, in dB, are reported."""
WANTED = 30.0
"""What the command that mends it asks for, in dB."""
_SAMPLES, _LAYERS, _SHOWN = 16, 400, 3


def doubt(made: Quantized, samples: Samples, sqnr: float) -> str:
    """Returns a warning about outputs that are far from the float model's.

    Args:
        made: What was quantized.
        samples: Some of these show which layers are to blame.
        sqnr: Of its outputs, in dB.
    """
    message = f"the outputs reach only {sqnr:.1f} dB SQNR against the float model"
    if sqnr == -math.inf:
        message = "outputs are NaN or infinite, or not zero where the float model gives zeros alone"
    names = culprits(made, samples)
    if names:
        message += f"; most of the error comes from {', '.join(names)}"
    excluded = "".join(f" --exclude '{escape(name)}'" for name in names)
    return (
        f"{message}. 'qdqbridge quantize … --min-sqnr {WANTED:g}' gives layers more bits until "
        f"that is reached, with '--fallback float' leaves them float;"
        f"{excluded or ' --exclude NAME'} leaves these float right away"
    )


def culprits(made: Quantized, samples: Samples) -> list[str]:
    """Returns the names of the layers that cost most alone, the worst first."""
    ranking = ranked(made, samples)
    named = () if ranking is None else ranking.layers[:_SHOWN]
    return [entry.layer.name for entry in named if entry.layer.name]


def ranked(made: Quantized, samples: Samples) -> Ranking | None:
    """Returns what every layer costs alone; None where there are very many: each takes a run.

    Args:
        made: What was quantized.
        samples: Some of these are run.
    """
    plan = made.decision.plan
    if not 1 < len(layers_of(plan)) <= _LAYERS:
        return None
    overrides = made.options.overrides(plan.graph)
    variants = Variants(made.decision, made.target, stats_of(made), overrides)
    simulation = Simulation(plan, spread(samples, _SAMPLES), original=made.original)
    return sensitivity(variants, simulation, without=False)
