"""What runs on integers at all, decided by trying where everything on integers is bad.

Some networks do not bear that their norms, activations and sums of residuals are rounded to 8 bits:
language models with a few loud channels, above all. The target's rules are tried first; only where
the outputs of samples that nobody chose parameters by are bad, fewer operators run on integers, and
the choice that brings most is taken. What is tried is quantized plainly, in seconds; the full work
is done once, for what was chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qdqbridge.autoquant.collect import Data
from qdqbridge.autoquant.formats import Format
from qdqbridge.autoquant.quantize import QuantizeOptions, quantized
from qdqbridge.autoquant.repair.steps import GRAPH_STEPS, FloatReference, StepRecord
from qdqbridge.autoquant.targets import ACCUMULATORS, OperatorRule, Target
from qdqbridge.autoquant.tuning import spread, taken
from qdqbridge.errors import QdqBridgeError
from qdqbridge.graph.graph import Graph, Node

STEP = "operators"
"""The name of this step in records."""
GOOD = 25.0
"""Outputs this close to the float model's, in dB, are not worth fewer integer operators."""
GAIN = 3.0
"""What fewer integer operators have to gain at least, in dB."""
_SAMPLES, _LEAST = 64, 16


@dataclass(frozen=True, slots=True)
class Preset:
    """A choice of what runs on integers.

    Attributes:
        name: What users are told.
        rules: From a target's rules to those that are left.
    """

    name: str
    rules: Callable[[Sequence[OperatorRule]], tuple[OperatorRule, ...]]


def _products(rules: Sequence[OperatorRule]) -> tuple[OperatorRule, ...]:
    kept = (replace(r, ops=[op for op in r.ops if op in ACCUMULATORS]) for r in rules)
    return tuple(rule for rule in kept if rule.ops)


def _weighted(rules: Sequence[OperatorRule]) -> tuple[OperatorRule, ...]:
    return tuple(replace(rule, when=_WithWeight(rule.when)) for rule in _products(rules))


@dataclass(frozen=True, slots=True)
class _WithWeight:
    """True for products with a constant weight that a rule is about."""

    when: Callable[[Node], bool]

    def __call__(self, node: Node) -> bool:
        weight = node.optional(1)
        return weight is not None and weight.is_constant and self.when(node)


PRESETS = (
    Preset("products only", _products),
    Preset("products with constant weights only", _weighted),
)
"""What is tried, most integers first."""


def chosen(
    graph: Graph, data: Data | None, options: QuantizeOptions
) -> tuple[QuantizeOptions, StepRecord | None]:
    """Returns the options with the target that is best on unseen samples, and what was found out.

    Args:
        graph: The float graph.
        data: Samples: half of those taken choose parameters, the others judge.
        options: What the user wants; ``budget`` says how many seconds this may take, about.
    """
    target = options.described()
    if data is None or not _open(target, options) or len(data) < _LEAST:
        return options, None
    began = time.monotonic()
    picked = spread(data, _SAMPLES)
    seen, unseen = (taken(picked, range(i, len(picked), 2)) for i in (0, 1))
    plain = replace(
        options, tune=False, repair=[step for step in options.repair if step in GRAPH_STEPS]
    )
    judge = FloatReference(graph, unseen)
    start = judge.sqnr(quantized(graph, seen, plain).graph)
    best, found, name = start, options, ""
    for number, preset in enumerate(PRESETS):
        late = number > 0 and time.monotonic() - began > options.budget
        if best >= GOOD or late:
            break
        other = replace(target, rules=preset.rules(target.rules))
        try:
            sqnr = judge.sqnr(quantized(graph, seen, replace(plain, target=other)).graph)
        except QdqBridgeError:  # nothing is left to quantize: the target's own rules stay
            continue
        if sqnr >= best + GAIN:
            best, found, name = sqnr, replace(options, target=other), preset.name
    if name:
        return found, StepRecord(STEP, True, f"{name} on integers", start, best)
    told = "fewer integer operators would not help"
    return options, None if start >= GOOD else StepRecord(STEP, False, told, start, best)


def _open(target: Target, options: QuantizeOptions) -> bool:
    """True where the user left open what runs on integers."""
    asked = options.only or options.formats or not options.tune or not options.repair
    more = any(op not in ACCUMULATORS for rule in target.rules for op in rule.ops)
    return more and not asked and isinstance(target.activations, Format) and bool(target.candidates)
