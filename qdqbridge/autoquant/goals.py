"""A quantized graph made to meet a goal: layers get more bits, or stay float."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from qdqbridge.autoquant.fallback import Fallback, Goal
from qdqbridge.autoquant.fallback_run import meeting
from qdqbridge.autoquant.profile import observable
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.requests import Request, resolve
from qdqbridge.autoquant.samples import Samples
from qdqbridge.autoquant.simulate_metrics import Metric
from qdqbridge.autoquant.targets import Target

Step = Callable[[int, int], None]


def met(
    made: Quantized,
    goal: Goal,
    samples: Samples,
    target: Target,
    *,
    request: Request | None = None,
    fallback: Literal["int16", "float"] = "int16",
    metric: Metric | None = None,
    progress: Step | None = None,
) -> Fallback:
    """Returns what it took to make ``made`` meet ``goal``.

    Args:
        made: A quantized graph and how it came about.
        goal: How good the outputs have to be.
        samples: What they are judged on.
        target: The target it was made for.
        request: What the user asked for when it was made.
        fallback: Whether layers get 16 bits first, or stay float at once.
        metric: A user's score of the outputs by name; more is better.
        progress: Called with the trials done, and how many there will be at most.

    Raises:
        InputDataError: The goal cannot be met.
    """
    graph = made.decision.plan.graph
    seen = made.profile.by_name()
    stats = {value: seen[value.name] for value in observable(graph) if value.name in seen}
    return meeting(
        made.decision,
        goal,
        samples,
        target,
        stats,
        wishes=resolve(request or Request(), graph),
        fallback=fallback,
        metric=metric,
        progress=progress,
    )
