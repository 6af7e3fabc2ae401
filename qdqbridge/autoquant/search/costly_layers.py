"""Which few layers to leave float where 16-bit activations would be better, but are floats anyway.

An engine without integer kernels for 16-bit activations computes all of them in floats. If a few of
the layers that run on integers cause most of the error, these alone as floats give as much, and the
rest keeps its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from qdqbridge.autoquant.planning.targets import Target
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import Quantized
from qdqbridge.autoquant.search.search import Climb, stats_of
from qdqbridge.autoquant.search.sensitivity import sensitivity
from qdqbridge.autoquant.search.sensitivity_variants import Variants, layers_of
from qdqbridge.autoquant.search.work_budget import WorkBudget
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.graph import Node

GAIN = 1.0
"""What a layer has to gain that stays float, in dB."""
_SHARE = 8
"""One of so many layers may stay float."""


@dataclass(frozen=True, slots=True, eq=False)
class _Others:
    """True for what a rule is about but some nodes."""

    when: Callable[[Node], bool]
    names: frozenset[str]

    def __call__(self, node: Node) -> bool:
        return node.name not in self.names and self.when(node)


def without(target: Target, names: Collection[str]) -> Target:
    """Returns a target that leaves some nodes to its rules of what stays float.

    Args:
        target: It has rules by which nodes stay float behind those by which they do not.
        names: Of the nodes.
    """
    left = frozenset(names)
    rules = [
        replace(rule, when=_Others(rule.when, left)) if rule.quantized else rule
        for rule in target.rules
    ]
    return replace(target, rules=tuple(rules))


def costly(made: Quantized, samples: Samples, work: WorkBudget) -> list[str]:
    """Returns the names of the layers that may stay float, the most costly one first.

    Args:
        made: What was quantized.
        samples: Those that parameters were chosen by.
        work: What this takes is noted there.
    """
    plan = made.decision.plan
    layers = layers_of(plan)
    if len(layers) < _SHARE:
        return []
    work.spend(plan.graph, made.profile, len(layers) * len(samples) / 2)  # what is before is kept
    overrides = made.options.overrides(plan.graph)
    variants = Variants(made.decision, made.target, stats_of(made), overrides)
    ranking = sensitivity(variants, Simulation(plan, samples), without=False)
    return [entry.layer.name for entry in ranking.layers if entry.layer.name][
        : math.ceil(len(layers) / _SHARE)
    ]


def left_float(
    target: Target,
    names: Sequence[str],
    tried: Callable[[Target], float],
    start: float,
    goal: float,
) -> tuple[Target, Sequence[str], float]:
    """Returns a target with as many layers float as bring the outputs to a goal, and these.

    Args:
        target: What is quantized for.
        names: Of the layers, the most costly one first.
        tried: How close the outputs come, in dB.
        start: With all of them on integers.
        goal: What is enough; layers that gain little end it before.
    """
    climb, left = Climb(tried, start), list[str]()
    for name in names:
        if climb.best >= goal or not climb.step(without(target, [*left, name]), GAIN):
            break
        left.append(name)
    return climb.taken or target, left, climb.best
