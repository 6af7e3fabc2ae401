"""The target's further choosers, tried on a quantized graph: what the step ``choosers`` is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qdqbridge.autoquant.planning.decide import apply
from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.collect import collect, onnxruntime_observer
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.repair.steps import QuantizedState, StepRecord
from qdqbridge.autoquant.search.tuning import (
    ELEMENTS,
    LEAST,
    SAMPLES,
    Fold,
    Progress,
    Tuned,
    spread,
    taken,
    tuned,
)
from qdqbridge.autoquant.simulation import Simulation

CHOOSERS = "choosers"
"""What trying other choosers is called in records."""
CLEARLY = 1.0
"""How much closer, in dB, choosers have to come without scaled channels to leave them unscaled."""


def with_choosers_tried(
    state: QuantizedState,
    data: Samples,
    target: Target,
    progress: Progress | None = None,
    workers: int | str | None = None,
) -> tuple[QuantizedState, StepRecord]:
    """Returns ``state`` with parameters by those of the target's choosers that prove best.

    Args:
        state: A quantized graph with the target's own chooser's parameters.
        data: Samples; some of them are used.
        target: Its candidates are tried.
        progress: Called with the number of tensors done, and of all.
        workers: A number of processes, or ``ray``.
    """
    samples = spread(data, _calibration_sample_count(data))
    if len(samples) < LEAST:
        outcome = f"{len(samples)} samples are too few to try choosers on"
        return state, StepRecord(CHOOSERS, applied=False, outcome=outcome)
    plan, seen = state.decision.plan, state.profile.by_name()
    found = tuned(
        state.decision,
        {value: seen[value.name] for value in plan.observed()},
        folds_of(state, samples),
        target.chooser,
        candidates=target.candidates,
        weight_candidates=() if target.weight_chooser else target.weight_candidates,
        workers=workers,
        progress=progress,
    )
    if found.decision is state.decision or found.end <= found.start:
        outcome = f"of {_listed(target)}, {target.chooser!r} is the best everywhere"
        return state, StepRecord(CHOOSERS, False, outcome, found.start, found.end)
    record = StepRecord(CHOOSERS, True, _tried_in_words(found), found.start, found.end)
    return QuantizedState(apply(found.decision), found.decision, state.profile), record


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


def folds_of(state: QuantizedState, samples: Samples) -> list[Fold]:
    """Returns two folds: the samples with even numbers, and those with odd ones."""
    plan = state.decision.plan
    halves = [taken(samples, range(first, len(samples), 2)) for first in (0, 1)]
    observer = onnxruntime_observer(plan.graph)
    seen = [collect(plan.graph, half, observer).by_name() for half in halves]
    return [
        Fold(Simulation(plan, half), {value: other[value.name] for value in plan.observed()})
        for half, other in zip(halves, reversed(seen), strict=True)
    ]


def _calibration_sample_count(data: Samples) -> int:
    return max(LEAST, min(SAMPLES, ELEMENTS // max(data.elements, 1)))


def _listed(target: Target) -> str:
    return ", ".join(map(repr, target.candidates))


def _tried_in_words(found: Tuned) -> str:
    others = len(found.changes)
    tensors = f"; another chooser for {others} tensor{'s' if others > 1 else ''}" if others else ""
    return f"{found.chooser!r} for activations{tensors}"
