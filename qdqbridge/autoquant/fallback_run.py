"""From a decision and a goal to a graph that meets it: everything that falling back needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from qdqbridge.autoquant.decide import Decision
from qdqbridge.autoquant.fallback import Fallback, Goal, Progress, fall_back
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
        progress: Called with what is done, and how many trials that took so far.

    Raises:
        InputDataError: The goal cannot be met.
    """
    wishes = wishes or Wishes()
    own = replace(wishes, floats={**decision.plan.floats, **wishes.floats})
    variants = Variants(decision, target, stats, own)
    simulation = Simulation(decision.plan, samples, engine=engine, metric=metric)
    ranking = None
    if not goal.met(simulation.metrics(decision)) and layers_of(decision.plan):

        def told(done: int, total: int) -> None:
            del total
            if progress is not None:
                progress("sensitivity", done)

        ranking = sensitivity(variants, simulation, without=False, progress=told)
    more = fallback == "int16"
    return fall_back(
        variants,
        simulation,
        goal,
        wide=widened(target) if more else None,
        wide_weights=widened_weights(target) if more else None,
        ranking=ranking,
        progress=progress,
    )
