"""The whole way from a float graph and data to a quantized graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from numpy.typing import NDArray

from qdqbridge.autoquant.apply import apply
from qdqbridge.autoquant.checks import (
    check_float,
    check_numbers,
    check_plan,
    nodes_around,
    unusable,
)
from qdqbridge.autoquant.collect import Data, check_profile, collect, onnxruntime_observer
from qdqbridge.autoquant.decide import Decision, decide
from qdqbridge.autoquant.options import QuantizeOptions
from qdqbridge.autoquant.plan import QuantizationPlan, Wishes, plan
from qdqbridge.autoquant.prepare import prepared
from qdqbridge.autoquant.profile import Profile, observable
from qdqbridge.autoquant.repair.rounds import Rounds
from qdqbridge.autoquant.repair.steps import (
    GRAPH_STEPS,
    QuantizedState,
    StepRecord,
    check_steps,
    repaired,
)
from qdqbridge.autoquant.samples import Samples
from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.autoquant.targets import Target
from qdqbridge.autoquant.tuning import spread, with_choosers_tried
from qdqbridge.errors import InputDataError
from qdqbridge.graph.graph import Graph, Value

Progress = Callable[[int, int], None]
Arrays = Mapping[str, NDArray[Any]]
_REPAIRING = 256
"""How many samples are held in memory, for what looks at them again and again."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A quantized graph and how it came about.

    Attributes:
        graph: The quantized graph, canonical.
        decision: The plan and the parameters it was given.
        profile: What was seen of the float model; where its channels were scaled, of the scaled
            model.
        target: What it is for, with the user's choosers and storage of weights.
        options: What the user asked for.
        repairs: What became of each step of repair.
        tuning: What became of trying other choosers; None where that was not asked for.
        reference: The float graph that the profile is of: with the channels scaled that repair
            scales, and biases as they were; what reports compare tensors with.
    """

    graph: Graph
    decision: Decision
    profile: Profile
    target: Target
    options: QuantizeOptions
    repairs: tuple[StepRecord, ...] = ()
    tuning: StepRecord | None = None
    reference: Graph | None = None


def quantized(
    graph: Graph,
    data: Arrays | Data | None,
    options: QuantizeOptions,
    *,
    profile: Profile | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Quantizes ``graph`` and returns what was decided as well.

    Args:
        graph: A canonical float graph; it is not changed.
        data: Samples, one array per input; where ``profile`` is given, they are for tuning and
            repair alone.
        options: What it is for, and what the user wants otherwise.
        profile: Statistics of the prepared graph made before.
        progress: Called with the steps done and their number.

    Raises:
        InputDataError: The data or the profile does not belong to the graph, the graph is
            quantized already or computes NaN, or a name in the options stands for nothing.
        UnsupportedModelError: Nothing in the graph can be quantized.
        UnsupportedTargetError: There is no such target, chooser or type, or onnxruntime cannot run
            the float model.
    """
    target = options.described()
    tune, repair = options.tune and bool(target.candidates), options.repair
    check_float(graph)
    check_steps(repair)
    if profile is not None:
        check_profile(profile, graph)
    graph = prepared(graph)
    check_plan(plan(graph, target, options.wishes(graph)))
    samples = _samples(graph.inputs, data)
    if samples is None:
        repair, tune = (), False
    rounds = Rounds(Rounds.of(repair, None).number + tune, progress)
    profile = profile or _profile(graph, samples, rounds.next())
    start = _plainly(graph, target, options, profile)
    if samples is None or not (repair or tune):
        return start

    profiled = [(start.profile, graph)]

    def again(other: Graph) -> QuantizedState:
        found = _plainly(other, target, options, _profile(other, samples, rounds.next()))
        profiled.append((found.profile, other))
        return QuantizedState(found.graph, found.decision, found.profile)

    few = spread(samples, _REPAIRING)
    state = QuantizedState(start.graph, start.decision, start.profile)
    state, scaled = repaired(state, few, again, [s for s in repair if s in GRAPH_STEPS])
    tuning = None
    if tune:
        told = _in_units(rounds.next(), len(samples))
        state, tuning = with_choosers_tried(state, few, target, told)
    state, rounded = repaired(state, few, again, [s for s in repair if s not in GRAPH_STEPS])
    rounds.finish()
    return replace(
        start,
        graph=state.graph,
        decision=state.decision,
        profile=state.profile,
        repairs=(*scaled, *rounded),
        tuning=tuning,
        reference=next(other for seen, other in profiled if seen is state.profile),
    )


def _samples(inputs: Sequence[Value], data: Arrays | Data | None) -> Data | None:
    """Returns arrays by name as samples; samples as they are."""
    if data is None or not isinstance(data, Mapping):
        return data
    return Samples.of(inputs, cast("Arrays", data))


def _in_units(progress: Progress | None, units: int) -> Progress | None:
    """Returns a callback that tells of so many units, whatever it is told of."""
    if progress is None:
        return None
    return lambda done, total: progress(done * units // max(total, 1), units)


def _plainly(graph: Graph, target: Target, options: QuantizeOptions, profile: Profile) -> Quantized:
    """Quantizes a prepared graph without repair."""
    planned, stats = planned_with(graph, target, options.wishes(graph), profile)
    decision = decide(planned, stats, target)
    return Quantized(apply(decision), decision, profile, target, options, reference=graph)


def _profile(graph: Graph, data: Data | None, progress: Progress | None) -> Profile:
    if data is None:
        raise InputDataError(
            "there is nothing to choose parameters by",
            fix="give samples, or a profile of the model",
        )
    return collect(graph, data, onnxruntime_observer(graph), progress=progress)


def planned_with(
    graph: Graph, target: Target, wishes: Wishes, profile: Profile
) -> tuple[QuantizationPlan, dict[Value, TensorStats]]:
    """Returns a plan whose values all have usable statistics, and these.

    What reads or makes a tensor that no range describes stays float.

    Args:
        graph: The prepared graph.
        target: The hardware.
        wishes: What the user wants otherwise.
        profile: Statistics of the graph.

    Raises:
        InputDataError: The float model computes NaN.
        UnsupportedModelError: Nothing is left to quantize.
    """
    seen = profile.by_name()
    _check_complete(seen, observable(graph))
    planned = plan(graph, target, wishes)
    while True:
        stats = {value: seen[value.name] for value in planned.observed()}
        check_numbers(stats)
        unfit = unusable(stats)
        if not unfit:
            check_plan(planned)
            return planned, stats
        wishes = replace(wishes, floats={**nodes_around(unfit), **wishes.floats})
        planned = plan(graph, target, wishes)


def _check_complete(seen: Mapping[str, TensorStats], values: Iterable[Value]) -> None:
    missing = [value.name for value in values if value.name not in seen]
    if missing:
        raise InputDataError(
            "the profile lacks tensors of the model",
            why=f"it does not know {missing[0]!r} and {len(missing) - 1} others",
            fix="profile the model file itself with this version",
        )
