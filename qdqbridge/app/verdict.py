"""What is said first of a quantization: how good, how large, what stayed float and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qdqbridge.autoquant.delivered import Delivered
    from qdqbridge.autoquant.inside import QuantizedBody
    from qdqbridge.autoquant.quantize import Quantized
    from qdqbridge.autoquant.search.fallback import Fallback
    from qdqbridge.autoquant.search.search import Goal
    from qdqbridge.autoquant.search.time_limit import SizeLimit, TimeLimit
    from qdqbridge.autoquant.simulation.metrics import Metrics
    from qdqbridge.autoquant.simulation.user_metric import MetricScore
    from qdqbridge.core.graph.graph import Graph, Value

_SHOWN_REASONS = 10
_ONNXRUNTIME = ("ort", "qoperator")
_READ_BY_ANY = "portable"
_WIDE = 16
_LOST = 0.01
"""A loss of accuracy that is called one, where labels are given."""
_LAST_BITS = 1e-9


@dataclass(frozen=True, slots=True)
class SplitProduct:
    """A product that is written as the sum of two.

    Attributes:
        name: Its node.
        size: Bytes of its weight, which is stored twice.
        share: Its part of the model's multiplications, which are done twice.
    """

    name: str
    size: int
    share: float


class JudgedModel(Protocol):
    """What is judged: :class:`qdqbridge.app.quantizing.Quantization`."""

    @property
    def made(self) -> Quantized:
        """What was quantized, before layers were taken back."""
        ...

    @property
    def goal(self) -> Goal | SizeLimit | TimeLimit | None:
        """What the outputs had to be like."""
        ...

    @property
    def fallback(self) -> Fallback | None:
        """What was taken back."""
        ...

    @property
    def original(self) -> Graph:
        """The float graph."""
        ...

    @property
    def graph(self) -> Graph:
        """The quantized graph."""
        ...

    @property
    def inside(self) -> Sequence[QuantizedBody]:
        """What became of bodies."""
        ...

    def scores(self) -> tuple[MetricScore, MetricScore | None] | None:
        """Returns the user's metric."""
        ...

    def delivered(self) -> Delivered | None:
        """Returns how close the outputs are."""
        ...


def verdict(
    made: JudgedModel, *, sizes: tuple[int | None, int] | None = None
) -> list[tuple[str, str]]:
    """Returns rows of a name and a sentence; the command line and the report show the same.

    Args:
        made: The quantization.
        sizes: Bytes of the float file, where it is one, and of the written one; by default those
            of the constants of both.
    """
    shown, scores = made.delivered(), made.scores()
    rows = [("verdict", first_sentence(made))]
    if scores is not None and scores[1] is not None:
        rows.append(("", f"{_scored(scores[0])}, most of which parameters were chosen by"))
    rows += [("goal" if not index else "", text) for index, text in enumerate(_goal_texts(made))]
    if shown is not None:
        rows += _outputs(shown, told=scores is None)
    # Where nothing is written: what makes files large.
    before, after = sizes or (_constants(made.original), _constants(made.graph))
    share = f", {after / before:.0%} of the model's {before:,}" if before else ""
    rows.append(("size", f"{after:,} bytes{share}"))
    reasons = floats(made)
    wide = _computed_in_floats(made)
    beside = (
        f", {wide} with 16-bit activations, which onnxruntime computes in float" if wide else ""
    )
    rows.append(("operators", f"{integers(made)} quantized{beside}, {len(reasons)} left float"))
    rows += [("float", row) for row in _float_rows(reasons)]
    if shown is not None:
        rows.append(("processors", processors(made)))
    if parts := split_products(made):
        rows.append(("split", _of_split(parts)))
    if made.fallback is not None:
        rows += [("layer", f"{r.layer.name}: {r.reason}") for r in made.fallback.reverted]
    return rows


def first_sentence(made: JudgedModel) -> str:
    """Returns how good it is in one sentence: in the user's measure where he has one."""
    from qdqbridge.autoquant.reporting import BAD, WANTED

    scores, shown = made.scores(), made.delivered()
    if scores is not None:
        every, unseen = scores
        if unseen is None:
            return f"{_scored(every)}, by which parameters were chosen"
        one = f" (one is {_share(1 / unseen.samples)})"
        return f"{unseen.name} {_pair(unseen)}, on {_left_out(unseen.samples)}{one}"
    if shown is None:
        return "not measured: there was no data, only a profile"
    if not integers(made):
        return f"nothing is quantized: {shown.on_others}"
    sqnr = _certain(shown)
    words = "poor" if sqnr < BAD else "fair: check it with labels" if sqnr < WANTED else "good"
    if shown.metrics.top1 is None:
        return f"{words}: {shown.on_others}"
    same = 100 * shown.metrics.top1
    return f"{words}: {shown.on_others}; same class for {same:.1f} % of {_judged_on(shown)}"


def _certain(shown: Delivered) -> float:
    """Returns the SQNR that a verdict is of: where few samples carry the error, the lower end.

    Data of the same kind may be there then, and no figure of these samples says how often.
    """
    return min(shown.likely) if shown.tails and shown.likely is not None else shown.expected


def is_good(made: JudgedModel) -> bool:
    """Returns whether nothing more has to be looked for."""
    from qdqbridge.autoquant.reporting import WANTED

    scores, shown = made.scores(), made.delivered()
    if scores is not None:
        return all(s is None or s.score >= s.reference - _LOST for s in scores)
    return shown is None or _certain(shown) >= WANTED


def floats(made: JudgedModel) -> dict[str, str]:
    """Returns why each node stayed float, by its name."""
    from qdqbridge.autoquant.reporting import floats_inside

    decision = made.made.decision if made.fallback is None else made.fallback.decision
    reasons = {node.name: reason for node, reason in decision.plan.floats.items()}
    return reasons | {row.node: row.reason for row in floats_inside(made.inside)}


def goal_met(made: JudgedModel) -> bool | None:
    """Returns whether the figures that are shown meet the goal; None where there is none."""
    checks = _goal_checks(made)
    return all(met for met, *_ in checks) if checks else None


def _goal_checks(made: JudgedModel) -> list[tuple[bool, str, str]]:
    """Returns of each part of the goal whether it is met, what it is, and what was measured."""
    goal, shown = _goal(made), made.delivered()
    if goal is None or shown is None:
        return []
    found: list[tuple[bool, str, str]] = []
    if goal.min_sqnr is not None:
        figures = [(shown.expected, "likely on other samples")]
        figures += [(shown.metrics.sqnr, f"on {shown.where}")] if shown.left_out else []
        said = ", ".join(f"{sqnr:.2f} dB {where}" for sqnr, where in figures)
        met = all(sqnr >= goal.min_sqnr for sqnr, _ in figures)
        found.append((met, f"at least {goal.min_sqnr:g} dB", said))
    if goal.max_drop is not None:
        name, drops = _drops(made, shown)
        said = ", ".join(f"{_share(max(drop, 0.0))} on {where}" for drop, where in drops)
        met = all(drop <= goal.max_drop + _LAST_BITS for drop, _ in drops)
        found.append((met, f"at most {_share(goal.max_drop)} of {name} lost", said))
    return found


def _goal(made: JudgedModel) -> Goal | None:
    from qdqbridge.autoquant.search.search import Goal

    goal = made.goal
    return goal if isinstance(goal, Goal) or goal is None else goal.goal


def _drops(made: JudgedModel, shown: Delivered) -> tuple[str, list[tuple[float, str]]]:
    """Returns what a largest drop is of, and what was lost of it, on left-out samples first."""
    scores = made.scores()
    if scores is None:
        agreement = shown.metrics.top1
        return "top-1 agreement", [] if agreement is None else [(1 - agreement, shown.where)]
    every, unseen = scores
    found = [(every.reference - every.score, f"all {every.samples}")]
    if unseen is not None:
        found.insert(0, (unseen.reference - unseen.score, _left_out(unseen.samples)))
    return every.name, found


def _share(drop: float) -> str:
    return f"{100 * drop:.3g} %"


def _goal_texts(made: JudgedModel) -> list[str]:
    texts = [
        f"{'met' if met else 'NOT MET'}: {wanted}: {said}"
        for met, wanted, said in _goal_checks(made)
    ]
    goal, shown, scores = _goal(made), made.delivered(), made.scores()
    if goal is None or shown is None or not shown.left_out or not goal.max_drop:
        return texts
    count = shown.samples if scores is None or scores[1] is None else scores[1].samples
    if 1 / count > goal.max_drop:
        texts.append(
            f"{count} left-out samples resolve {_share(1 / count)}, and cannot show "
            f"{_share(goal.max_drop)}: give more samples (one in eight is left out, 64 at most)"
        )
    return texts


def split_products(made: JudgedModel) -> list[SplitProduct]:
    """Returns the products that are written as the sum of two, and what that takes."""
    from qdqbridge.autoquant.planning.decide import parted

    decision = made.made.decision if made.fallback is None else made.fallback.decision
    room = decision.plan.room
    return [
        SplitProduct(weight.node.name, weight.value.constant.size, room.shares[weight.node.name])
        for weight, _ in parted(decision)
        if room is not None and weight.value.constant is not None
    ]


def _of_split(split: Sequence[SplitProduct]) -> str:
    many, s = len(split), "s" * (len(split) > 1)
    return (
        f"{many} product{s} ({_named([each.name for each in split])}) written as the sum of two, "
        "of every other term each, since pairs would saturate on x86 without VNNI: the same "
        f"numbers for {sum(each.size for each in split):,} more bytes and "
        f"{_share(sum(each.share for each in split))} more multiplications; 'qdqbridge fix --for' "
        "another runtime makes one of them again"
    )


def processors(made: JudgedModel) -> str:
    """Returns for which processors and runtimes the figures hold."""
    from qdqbridge.autoquant.search.pair_cost import PAIRS
    from qdqbridge.targets.engines.kinds import ENGINES
    from qdqbridge.targets.profiles import products_in_pairs
    from qdqbridge.targets.profiles.ort.pairs import pairs_sentence

    tried = [step.outcome for step in made.made.repairs if step.step == PAIRS]
    if tried:
        return tried[-1]
    target = made.made.target
    if target.profile in _ONNXRUNTIME:
        some = pairs_sentence(products_in_pairs(made.graph))
        return some or "the same on all: onnxruntime adds no pairs of products that can saturate"
    own = {target.name, target.profile} - {_READ_BY_ANY}
    engine = next((kind for kind in ENGINES.values() if kind.profile in own), None)
    exact = "of what the file says, computed exactly: the same on all processors"
    if engine is None and target.profile == _READ_BY_ANY:
        return exact
    if engine is None:
        rules = f"'qdqbridge export --check --profile {target.profile}' has its rules"
        return f"{exact}; {target.name} does not run here, {rules}"
    return f"{exact}; 'qdqbridge compare --engine {engine.name}' says what {engine.label} gives"


def _computed_in_floats(made: JudgedModel) -> int:
    """Returns how many operators have activations that the runtime has no integer kernels for."""
    from qdqbridge.core.graph.operator import Flow

    if made.made.target.profile not in _ONNXRUNTIME:
        return 0
    # What moves elements does so in any width.
    return sum(
        node.op.flow not in (Flow.MOVE, Flow.CONVERT)
        and any(_is_wide(value) for value in (*node.inputs, *node.outputs))
        for node in made.graph.nodes
    )


def _is_wide(value: Value | None) -> bool:
    if value is None or value.is_constant or value.quant is None:
        return False
    storage = value.quant.params.storage_dtype
    return storage.is_integer and storage.bits == _WIDE


def integers(made: JudgedModel) -> int:
    """Returns how many operators are quantized."""
    decision = made.made.decision if made.fallback is None else made.fallback.decision
    return len(decision.plan.rules) + sum(body.integers for body in made.inside)


def _closeness(metrics: Metrics) -> str:
    """Returns how close outputs are, in words."""
    from qdqbridge.autoquant.delivered import closeness

    top1 = metrics.top1
    classes = "" if top1 is None else f" and top-1 agreement {100 * top1:.2f} %"
    return f"{closeness(metrics.sqnr)}{classes}"


def _scored(score: MetricScore) -> str:
    return f"{score.name} {_pair(score)}, on all {score.samples} samples"


def _left_out(count: int) -> str:
    return f"{count} left-out sample{'' if count == 1 else 's'}"


def _judged_on(shown: Delivered) -> str:
    return (
        _left_out(shown.samples) if shown.left_out else f"the {shown.samples} calibration samples"
    )


def _pair(score: MetricScore) -> str:
    from qdqbridge.autoquant.simulation.user_metric import TOP1

    if score.name == TOP1:
        return f"{100 * score.score:.2f} %, float {100 * score.reference:.2f} %"
    return f"{score.score:.6g}, float {score.reference:.6g}"


def _outputs(shown: Delivered, *, told: bool) -> list[tuple[str, str]]:
    """Returns what was measured; what is likely first where the verdict has not told it."""
    from qdqbridge.autoquant.delivered import closeness

    measured = f"{_closeness(shown.metrics)} against the float model on {shown.where}"
    rows = [] if told else [("outputs", shown.on_others)]
    rows.append(("outputs" if told else "", measured))
    for each in shown.outputs if len(shown.outputs) > 1 or shown.mixed() else ():
        rows.append(("output", f"{each.name}: {closeness(each.sqnr_db)}"))
        rows += [("", f"{p.name}, a part of it: {closeness(p.sqnr_db)}") for p in each.parts]
    return rows


def _float_rows(reasons: Mapping[str, str]) -> list[str]:
    """Returns why nodes stayed float, a row for each of the first reasons."""
    nodes: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        nodes.setdefault(reason, []).append(node)
    return [f"{_named(names)}: {reason}" for reason, names in list(nodes.items())[:_SHOWN_REASONS]]


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}"


def _constants(graph: Graph) -> int:
    return sum(value.constant.nbytes for value in graph.values() if value.constant is not None)
