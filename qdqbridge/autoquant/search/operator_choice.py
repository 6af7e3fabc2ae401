"""What runs on integers at all, and on how many bits, by trying where 8 bits everywhere are bad.

Some networks do not bear that their norms, activations and sums of residuals are rounded to 8 bits:
language models with a few loud channels, above all. The target's rules are tried first; only where
the outputs of samples that nobody chose parameters by are bad, some operators get 16-bit
activations if the engine has integer kernels for these, and fewer run on integers if that does not
mend it. The choice that brings most is taken. What is tried is quantized plainly, in seconds; the
full work is done once, for what was chosen.

An engine that computes 16-bit activations in floats between the roundings gains nothing by them:
there the operators stay float, and a few of the others with them that cost most, while 16 bits
everywhere would give more. If they still do, that is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.autoquant.advice.few_samples import HALVED
from qdqbridge.autoquant.calibration import Calibration
from qdqbridge.autoquant.planning.decide import Decision
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.targets import ACCUMULATORS, OperatorRule, Target, Wide
from qdqbridge.autoquant.profiling.collect import Data
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.quantize import Quantized, QuantizeOptions, quantized
from qdqbridge.autoquant.repair.steps import GRAPH_STEPS, StepRecord
from qdqbridge.autoquant.repair.sweep import DecisionJudge, decibels
from qdqbridge.autoquant.search.pair_cost import (
    COST,
    by_saturation,
    doubt,
    fewest,
    of_pairs,
    with_and_without_vnni,
)
from qdqbridge.autoquant.search.search import Climb, stats_of
from qdqbridge.autoquant.search.sensitivity import Variants, layers_of, sensitivity, widened, wider
from qdqbridge.autoquant.search.tuning import TimeBudget, spread, taken
from qdqbridge.autoquant.simulation import Simulation
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.ops.elementwise import ADD
from qdqbridge.core.ops.unary import CLIP, RELU
from qdqbridge.errors import QdqBridgeError

# ---- costly layers -------------------------------------------------------------------------------
# Which few layers to leave float where 16-bit activations would be better, but are floats anyway.
#
# An engine without integer kernels for 16-bit activations computes all of them in floats. If a few
# of the layers that run on integers cause most of the error, these alone as floats give as much,
# and the rest keeps its kernels.


COSTLY_GAIN = 1.0
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


def costly(made: Quantized, samples: Samples) -> list[str]:
    """Returns the names of the layers that may stay float, the most costly one first.

    Args:
        made: What was quantized.
        samples: Those that parameters were chosen by.
    """
    plan = made.decision.plan
    layers = layers_of(plan)
    if len(layers) < _SHARE:
        return []
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
        if climb.best >= goal or not climb.step(without(target, [*left, name]), COSTLY_GAIN):
            break
        left.append(name)
    return climb.taken or target, left, climb.best


# ---- What runs on integers at all, and on how many bits, by trying where 8 bits everywhere are bad


STEP = "operators"
"""The name of this step in records."""
GOOD, GAIN = 25.0, 3.0
"""Outputs this close to the float model's, in dB, are not worth many float operators; what these
have to gain at least."""
HEAD_GOOD, HEAD_GAIN = 35.0, 1.5
"""The same for the few operators behind the last products."""
_SAMPLES, _RUNS = 64, 8
_ENDS = (ADD, RELU, CLIP)


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """A choice of what runs on integers as the target says.

    Attributes:
        name: What users are reported.
        rest: All others: they stay float, or get 16-bit activations.
        rules: From a target's rules to those that are left.
        good: It is tried where the outputs are further from the float model's, in dB.
        gain: What it has to gain.
    """

    name: str
    rest: str
    rules: Callable[[Sequence[OperatorRule]], tuple[OperatorRule, ...]]
    good: float = GOOD
    gain: float = GAIN


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A choice for a target.

    Attributes:
        choice: When it is tried, and what it has to gain.
        description: What users read of it.
        kept: The rules of what runs as the target says.
        target: What is quantized for.
    """

    choice: OperatorChoice
    description: str
    kept: tuple[OperatorRule, ...]
    target: Target

    def changes(self, node: Node) -> bool:
        """True for a node that runs otherwise than the target says."""
        rule = self.target.rule_for(node)
        return not any(rule is kept for kept in self.kept)


def _stores_weights_alone(rule: OperatorRule) -> bool:
    """True for rules by which no activation is rounded."""
    return isinstance(rule.operands, Unstored)


def _products(rules: Sequence[OperatorRule]) -> tuple[OperatorRule, ...]:
    kept = (
        r
        if _stores_weights_alone(r)
        else replace(r, ops=[op for op in r.ops if op in ACCUMULATORS])
        for r in rules
    )
    return tuple(rule for rule in kept if rule.ops)


def _weighted(rules: Sequence[OperatorRule]) -> tuple[OperatorRule, ...]:
    return tuple(replace(rule, when=_WithWeight(rule.when)) for rule in _products(rules))


def with_fewer(
    target: Target, name: str, rules: Sequence[OperatorRule], **changed: Unstored
) -> Target:
    """Returns a target with fewer integers, which says so of the nodes that stay float.

    Args:
        name: What runs on integers.
        rules: Of what does.
        changed: What else is otherwise.
    """
    reason = f"the outputs are closer to the float model's with {name} on integers"
    left = [replace(r, quantized=False, reason=reason) if r.quantized else r for r in target.rules]
    return replace(target, rules=(*rules, *left), **changed)


def with_wider(target: Target, rules: Sequence[OperatorRule]) -> Target:
    """Returns a target with 16-bit activations of all that ``rules`` are not about."""
    wide = widened(target)
    left = [
        replace(rule, operands=wider(rule.operands) or wide, result=wider(rule.result) or wide)
        if rule.quantized and not _stores_weights_alone(rule)
        else rule
        for rule in target.rules
    ]
    return replace(target, rules=(*rules, *left))


@dataclass(frozen=True, slots=True)
class _WithWeight:
    """True for products with a constant weight that a rule is about."""

    when: Callable[[Node], bool]

    def __call__(self, node: Node) -> bool:
        weight = node.optional(1)
        return weight is not None and weight.is_constant and self.when(node)


def _headless(rules: Sequence[OperatorRule]) -> tuple[OperatorRule, ...]:
    return tuple(
        rule if _stores_weights_alone(rule) else replace(rule, when=_BeforeProducts(rule.when))
        for rule in rules
    )


@dataclass(frozen=True, slots=True, eq=False)
class _BeforeProducts:
    """True for what a rule is about but operators behind the last products, and not their ends."""

    when: Callable[[Node], bool]
    known: dict[Node, bool] = field(default_factory=dict["Node", "bool"])

    def __call__(self, node: Node) -> bool:
        return self.when(node) and (_ends_product(node) or self.leads(node))

    def leads(self, node: Node) -> bool:
        """Returns whether a product is there, or depends on the node."""
        known, path = self.known, [node]
        while path:
            readers = [user for value in path[-1].outputs for user, _ in value.users]
            later = next((user for user in readers if user not in known), None)
            if path[-1].op.flow is Flow.ACCUMULATE or any(known.get(user) for user in readers):
                known[path.pop()] = True
            elif later is None:
                known[path.pop()] = False
            else:
                path.append(later)
        return known[node]


def _ends_product(node: Node) -> bool:
    """True for the bias and the clamp of a product."""
    while node.op in _ENDS:
        computed = [v.producer for _, v in node.data_operands() if v.producer is not None]
        if len(computed) != 1:
            return False
        node = computed[0]
    return node.op.flow is Flow.ACCUMULATE


CHOICES = (
    OperatorChoice(
        "all but what follows the last products", "what follows the last products", _headless,
        HEAD_GOOD, HEAD_GAIN,
    ),
    OperatorChoice("products only", "all but products", _products),
    OperatorChoice(
        "products with constant weights only", "all but products with constant weights", _weighted
    ),
)  # fmt: skip
"""What is tried, most integers first."""
_NONE = OperatorChoice("nothing", "all operators", lambda rules: ())
"""For what loses too much where even products with constant weights have 8-bit activations."""


def _attempts(target: Target) -> Iterator[_Attempt]:
    """Yields what is tried for a target: first more bits, which leave nothing float.

    Where there are such, float operators have to gain as much as many of them, be they few: they
    cut a model that else runs on integers from end to end.
    """
    wide = target.wide is Wide.INTEGERS and widened(target) is not None
    for choice in (*CHOICES, _NONE) if wide else ():
        kept = choice.rules(target.rules)
        description = f"16-bit activations of {choice.rest}"
        yield _Attempt(choice, description, kept, with_wider(target, kept))
    for choice in CHOICES:
        kept = choice.rules(target.rules)
        own = replace(choice, good=GOOD, gain=GAIN) if wide else choice
        description = f"{choice.name} on integers"
        yield _Attempt(own, description, kept, with_fewer(target, choice.name, kept))


def chosen(
    graph: Graph, data: Data | None, options: QuantizeOptions, ready: Calibration | None = None
) -> tuple[QuantizeOptions, tuple[StepRecord, ...]]:
    """Returns the options with the target that is best on unseen samples, and what was found out.

    Whether pairs of products that saturate are avoided is found out first.

    Args:
        graph: The float graph.
        data: Samples: half of those taken choose parameters, the others judge.
        options: What the user wants; ``budget`` says how long this may take.
        ready: The graph and what was seen of it.
    """
    target = options.described()
    if data is None or not (options.tune and options.repair):
        return options, ()
    ready = ready or Calibration.of(graph, data)
    picked = ready.tried
    more = _open(target, options) and len(picked) >= HALVED
    if not more and target.avoided_pairs is None:
        return options, ()
    seen, unseen = replace(ready, data=picked), picked
    if len(picked) >= HALVED:
        seen, unseen = ready.halves[0], taken(picked, range(1, len(picked), 2))
    judge, work = _Judging.of(ready, unseen), ready.budget(options.budget)
    unscaled = replace(options, target=target, tune=False, repair=())
    made = quantized(graph, None, unscaled, empty=True, ready=seen)
    if not made.decision.plan.rules:
        return options, ()  # all that can be quantized is in bodies, if anything
    errors = judge.errors(made.decision)
    start, found = decibels(float(errors.mean())), tuple[StepRecord, ...]()
    lost = 0.0  # by avoiding pairs, which no operator that is left float makes up for
    room = made.decision.plan.room
    if room is not None and room.used and work.left:
        trials = _PairTrials(seen, unseen, unscaled, judge, work)
        step, made, start, before = trials.judged(made, errors, "learn" in options.repair)
        found, lost = (step,), max(before - start, 0.0)
        if not step.applied or made.target.saturating:
            options, unscaled = (replace(each, target=made.target) for each in (options, unscaled))
    if not more or start + lost >= HEAD_GOOD:
        return options, found  # channels need not be scaled to know
    plain = unscaled
    # Scaled channels may save a model whose products lose everything; the rest does not need them.
    if start + lost < GOOD and any(step in GRAPH_STEPS for step in options.repair):
        plain = replace(unscaled, repair=[step for step in options.repair if step in GRAPH_STEPS])
        made = quantized(graph, None, plain, ready=seen)
        start = judge.sqnr(made.decision)
    if start + lost >= HEAD_GOOD:
        return options, found
    trials = _ChoiceTrials(seen, made, plain, judge, work)
    options, tried = trials.chosen(options, start, unscaled)
    return options, found if tried is None else (tried, *found)


@dataclass(frozen=True, slots=True)
class _Judging:
    """A judge of decisions, and which of its samples count."""

    judge: DecisionJudge
    counting: NDArray[np.bool_]

    @staticmethod
    def of(ready: Calibration, unseen: Samples) -> _Judging:
        """Returns what judges by ``unseen``: by the judge of all samples, where they are of it."""
        judge = ready.judge
        if 2 * len(unseen) <= len(judge.samples) <= len(ready.tried):
            return _Judging(judge, judge.odd)
        judge = DecisionJudge(ready.graph, unseen)
        return _Judging(judge, np.ones(len(judge.samples), np.bool_))

    def errors(self, decision: Decision) -> NDArray[np.float64]:
        """Returns the noise of each sample that counts."""
        return self.judge.errors(decision)[self.counting]

    def sqnr(self, decision: Decision) -> float:
        """Returns the output SQNR in dB."""
        return decibels(float(self.errors(decision).mean()))


@dataclass(slots=True, eq=False)
class _PairTrials:
    """Finds out in which products pairs that saturate are avoided.

    Attributes:
        seen: The float graph, and samples that parameters are chosen by.
        unseen: Others.
        plain: How is quantized, for a target that avoids them everywhere.
        judge: Of the outputs of ``unseen``.
        work: How long may be tried.
    """

    seen: Calibration
    unseen: Samples
    plain: QuantizeOptions
    judge: _Judging
    work: TimeBudget

    def _made(self, learn: bool = False, **changed: Any) -> Quantized:
        target = replace(self.plain.described(), **changed)
        options = replace(self.plain, target=target, repair=("learn",) if learn else ())
        return quantized(self.seen.given, None, options, ready=self.seen)

    def _errors(self, learn: bool = False, **changed: Any) -> NDArray[np.float64]:
        """Returns the errors of ``unseen``."""
        made = self._made(learn, **changed)
        return self.judge.errors(made.decision)

    def _sqnr(self, learn: bool = False, **changed: Any) -> float:
        return decibels(float(self._errors(learn, **changed).mean()))

    def judged(
        self, avoided: Quantized, own: NDArray[np.float64], learn: bool
    ) -> tuple[StepRecord, Quantized, float, float]:
        """Returns what was found out, the best, its dB, and those without avoiding any pair.

        Args:
            avoided: What avoiding them everywhere gives.
            own: The errors of its outputs.
            learn: Learned weights, which make up for much, decide where plain ones say no.
        """
        exact = self._made(avoided_pairs=None)
        errors = self.judge.errors(exact.decision)
        before = closest = decibels(float(errors.mean()))
        start = decibels(float(own.mean()))
        step = of_pairs(before, start, doubt=doubt(errors, own))
        if not step.applied and learn:
            errors = min(errors, self._errors(True, avoided_pairs=None), key=np.mean)
            own = min(own, self._errors(True), key=np.mean)
            closest = decibels(float(errors.mean()))
            step = of_pairs(closest, decibels(float(own.mean())), doubt=doubt(errors, own))
        if step.applied:
            return step, avoided, start, before
        room = avoided.decision.plan.room
        assert room is not None
        if self.work.left:
            rows = by_saturation(exact, room.raised_by, self.unseen)
            names = fewest(rows, lambda each: self._sqnr(saturating=each), before - COST)
            if names:
                return self._partly(names, exact, before, closest) or (step, exact, before, before)
        return step, exact, before, before

    def _partly(
        self, names: frozenset[str], exact: Quantized, before: float, closest: float
    ) -> tuple[StepRecord, Quantized, float, float] | None:
        """Returns the same where pairs are avoided but in some products; None if that wins little.

        Args:
            names: Of these products.
            exact: What avoids none.
            before: How close its outputs come, in dB.
            closest: The same, with learned weights where they are better.
        """
        made = self._made(saturating=names)
        own = sqnr = self.judge.sqnr(made.decision)
        if closest > before:
            sqnr = max(own, self._sqnr(True, saturating=names))
        step = of_pairs(closest, sqnr, names)
        if not step.applied:
            return None
        (best, worst), (_, mended) = (
            with_and_without_vnni(self.seen.graph, each.graph, self.unseen)
            for each in (exact, made)
        )
        return (step, made, own, before) if mended >= (best + worst) / 2 else None


@dataclass(slots=True, eq=False)
class _ChoiceTrials:
    """Attempts on some samples, judged by others.

    Attributes:
        seen: The float graph, and samples that parameters are chosen by.
        made: What the target's own rules give.
        plain: How is quantized.
        judge: Of the outputs.
        work: How long may be tried.
    """

    seen: Calibration
    made: Quantized
    plain: QuantizeOptions
    judge: _Judging
    work: TimeBudget

    @property
    def samples(self) -> Samples:
        """Those that parameters are chosen by."""
        assert self.seen.few is not None
        return self.seen.few

    def quantized(self, target: Target, options: QuantizeOptions | None = None) -> Quantized:
        wanted = replace(options or self.plain, target=target)
        return quantized(self.seen.given, None, wanted, ready=self.seen)

    def sqnr(self, target: Target, options: QuantizeOptions | None = None) -> float:
        """Returns how close the outputs come, which is nothing where nothing can be quantized."""
        try:
            return self.judge.sqnr(self.quantized(target, options).decision)
        except QdqBridgeError:  # the target's own rules stay
            return -math.inf

    def _afforded(self, target: Target) -> float:
        """Returns the same while the budget lasts."""
        return self.sqnr(target) if self.work.left else -math.inf

    def chosen(
        self, options: QuantizeOptions, start: float, unscaled: QuantizeOptions
    ) -> tuple[QuantizeOptions, StepRecord | None]:
        """Returns the options with the best target, and what was found out.

        Args:
            options: What the user wants.
            start: How close the target's own rules come, in dB.
            unscaled: How 16-bit activations are tried, which need no scaled channels.
        """
        target, rules = options.described(), self.made.decision.plan.rules
        climb = Climb[_Attempt](lambda attempt: self.sqnr(attempt.target), start)
        outcome = "fewer integer operators would not help"
        for attempt in _attempts(target):
            # An attempt that changes nothing of this model has a known result.
            if climb.best >= attempt.choice.good or not any(map(attempt.changes, rules)):
                continue
            if not self.work.left:
                outcome = "the budget was spent before all choices were tried; --budget gives more"
                break
            climb.step(attempt, attempt.choice.gain)
        best, taken, closest = climb.best, climb.taken, climb.closest
        kept, found = (taken.description, taken.target) if taken is not None else ("", target)
        wide = -math.inf
        # Such an engine computes 16-bit activations in floats. How good they would be says what
        # leaving a few layers float has to reach.
        if start < GOOD and target.wide is Wide.FLOATS and self.work.left:
            wide = self.sqnr(with_wider(target, ()), unscaled)
        if closest is not None and closest.kept and climb.nearest < wide and self.work.left:
            names = costly(self.quantized(closest.target), spread(self.samples, _RUNS))
            own, left, sqnr = left_float(closest.target, names, self._afforded, climb.nearest, wide)
            if left and sqnr >= start + GAIN:
                best, found, kept = sqnr, own, f"{closest.description}, except {', '.join(left)}"
        if start >= GOOD and not kept:
            return options, None
        outcome = kept or outcome
        outcome += f"; {_of_floats(target, wide)}" if wide > -math.inf and wide >= best else ""
        if kept:
            options = replace(options, target=found)
        return options, StepRecord(STEP, bool(kept), outcome, start, best)


def _of_floats(target: Target, sqnr: float) -> str:
    """Returns what is reported of 16-bit activations that the engine computes in floats."""
    return (
        f"--format '*={widened(target)}' gives all operators 16-bit activations, with "
        f"{sqnr:.1f} dB before repair; but the engine has no integer kernels for them, and "
        "computes floats between the roundings, slower than what is left float"
    )


def _open(target: Target, options: QuantizeOptions) -> bool:
    """True where the user left open what runs on integers."""
    asked = options.only or options.formats or not options.tune or not options.repair
    more = any(op not in ACCUMULATORS for rule in target.rules for op in rule.ops)
    return more and not asked and isinstance(target.activations, Format) and bool(target.candidates)
