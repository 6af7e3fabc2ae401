"""Choosers tried on samples: which ones, on how many samples, and what is told about it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qdqbridge.autoquant.apply import apply
from qdqbridge.autoquant.collect import Data, collect, onnxruntime_observer
from qdqbridge.autoquant.repair.steps import Record, State
from qdqbridge.autoquant.samples import Samples
from qdqbridge.autoquant.simulate import Simulation
from qdqbridge.autoquant.targets import Target
from qdqbridge.autoquant.tune import Fold, Tuned, tuned

STEP = "choosers"
"""The name of this step in records."""
SAMPLES = 64
"""How many samples choosers are tried on, at most."""
ELEMENTS = 1 << 21
"""Elements of inputs that they are tried on, at most: large pictures tell more each."""
LEAST = 8
"""Samples that are needed; fewer say little about others."""


def with_choosers_tried(
    state: State, data: Samples, target: Target, progress: Callable[[int, int], None] | None = None
) -> tuple[State, Record]:
    """Returns ``state`` with parameters by those of the target's choosers that prove best.

    Args:
        state: A quantized graph with the target's own chooser's parameters.
        data: Samples; some of them are used.
        target: Its candidates are tried.
        progress: Called with the number of tensors done, and of all.
    """
    samples = spread(data, _count(data))
    if len(samples) < LEAST:
        told = f"{len(samples)} samples are too few to try choosers on"
        return state, Record(STEP, applied=False, told=told)
    plan, seen = state.decision.plan, state.profile.by_name()
    found = tuned(
        state.decision,
        {value: seen[value.name] for value in plan.observed()},
        folds_of(state, samples),
        target.chooser,
        candidates=target.candidates,
        weight_candidates=() if target.weight_chooser else target.weight_candidates,
        progress=progress,
    )
    if found.decision is state.decision or found.end <= found.start:
        told = f"of {_listed(target)}, {target.chooser!r} is the best everywhere"
        return state, Record(STEP, False, told, found.start, found.end)
    record = Record(STEP, True, _told(found), found.start, found.end)
    return State(apply(found.decision), found.decision, state.profile), record


def folds_of(state: State, samples: Samples) -> list[Fold]:
    """Returns two folds: the samples with even numbers, and those with odd ones."""
    plan = state.decision.plan
    halves = [_taken(samples, range(first, len(samples), 2)) for first in (0, 1)]
    observer = onnxruntime_observer(plan.graph)
    seen = [collect(plan.graph, half, observer).by_name() for half in halves]
    return [
        Fold(Simulation(plan, half), {value: other[value.name] for value in plan.observed()})
        for half, other in zip(halves, reversed(seen), strict=True)
    ]


def spread(data: Data, count: int) -> Samples:
    """Returns ``count`` samples, evenly spread over all of ``data``."""
    picked = np.linspace(0, len(data) - 1, min(count, len(data))).astype(int).tolist()
    if isinstance(data, Samples):
        return data if len(picked) == len(data) else _taken(data, picked)
    wanted = set(picked)
    kept = [sample for index, sample in enumerate(data) if index in wanted]
    arrays = {name: np.concatenate([sample[name] for sample in kept]) for name in kept[0]}
    return Samples(arrays, len(next(iter(kept[0].values()))))


def _taken(samples: Samples, indices: range | list[int]) -> Samples:
    step = samples.step
    rows = [index * step + offset for index in indices for offset in range(step)]
    return Samples({name: array[rows] for name, array in samples.arrays.items()}, step)


def _count(data: Samples) -> int:
    elements = sum(array[: data.step].size for array in data.arrays.values())
    return max(LEAST, min(SAMPLES, ELEMENTS // max(elements, 1)))


def _listed(target: Target) -> str:
    return ", ".join(map(repr, target.candidates))


def _told(found: Tuned) -> str:
    others = len(found.changes)
    tensors = f"; another one for {others} tensor{'s' if others > 1 else ''}" if others else ""
    return f"{found.chooser!r} for activations{tensors}"
