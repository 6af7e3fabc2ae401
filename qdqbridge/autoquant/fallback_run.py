"""From a decision and a goal to a graph that meets it: everything that falling back needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from qdqbridge.autoquant.decide import Decision
from qdqbridge.autoquant.fallback import Fallback, Goal, Progress, fall_back, trials
from qdqbridge.autoquant.plan import Wishes
from qdqbridge.autoquant.samples import Sample, Samples
from qdqbridge.autoquant.sensitivity import sensitivity
from qdqbridge.autoquant.sensitivity_variants import Variants, layers_of, widened, widened_weights
from qdqbridge.autoquant.simulate import Simulation
from qdqbridge.autoquant.simulate_engines import Engine
from qdqbridge.autoquant.simulate_metrics import Metric
from qdqbridge.autoquant.stats import TensorStats
from qdqbridge.autoquant.targets import Target
from qdqbridge.graph.graph import Value

_LEVELS: Mapping[str, int] = {"int16": 3, "float": 1}
"""What a layer may get: more bits of weights, then of activations, then float; or that at once."""


def meeting(
    decision: Decision,
    goal: Goal,
    samples: Samples | Iterable[Sample],
    target: Target,
    stats: Mapping[Value, TensorStats],
    *,
    wishes: Wishes | None = None,
    fallback: Literal["int16", "float"] = "int16",
    metric: Metric | None = None,
    engine: Engine | str = "onnxruntime",
    progress: Progress | None = None,
) -> Fallback:
    """Returns a quantized graph that meets ``goal``.

    Args:
        decision: The decision to begin with.
        goal: How good the outputs have to be.
        samples: What they are judged on.
        target: The target that was decided for.
        stats: Statistics of every float tensor of the decision's graph.
        wishes: The wishes of its plan. What its plan leaves float stays float in any case.
        fallback: ``int16`` gives layers more bits first: 8 where weights have fewer, then 16-bit
            activations, and leaves those float that this does not mend; ``float`` leaves them
            float at once.
        metric: A user's score of the outputs; more is better.
        engine: What runs the simulated graph.
        progress: Called with the trials done, and how many there will be at most.

    Raises:
        InputDataError: The goal cannot be met.
    """
    wishes = wishes or Wishes()
    own = replace(wishes, floats={**decision.plan.floats, **wishes.floats})
    variants = Variants(decision, target, stats, own)
    simulation = Simulation(decision.plan, samples, engine=engine, metric=metric)
    more = fallback == "int16"
    ranking, ranked = None, 0
    if not goal.met(simulation.metrics(decision)) and layers_of(decision.plan):
        ranked = len(layers_of(decision.plan))
        ahead = trials(ranked, _LEVELS[fallback])
        told = None if progress is None else _after(progress, 0, ahead)
        ranking = sensitivity(variants, simulation, without=False, progress=told)
    return fall_back(
        variants,
        simulation,
        goal,
        wide=widened(target) if more else None,
        wide_weights=widened_weights(target) if more else None,
        ranking=ranking,
        progress=None if progress is None else _after(progress, ranked),
    )


def _after(progress: Progress, done: int, ahead: int = 0) -> Progress:
    """Returns ``progress`` for a part of the work, ``done`` trials before and ``ahead`` behind."""
    return lambda trial, total: progress(done + trial, done + total + ahead)
