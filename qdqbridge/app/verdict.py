"""What is said first of a quantization: how good, how large, what stayed float and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qdqbridge.autoquant.delivered import Delivered
    from qdqbridge.autoquant.inside import QuantizedBody
    from qdqbridge.autoquant.quantize import Quantized
    from qdqbridge.autoquant.search.fallback import Fallback
    from qdqbridge.autoquant.simulation.metrics import Metrics
    from qdqbridge.autoquant.simulation.user_metric import MetricScore
    from qdqbridge.core.graph.graph import Graph, Value

_SHOWN_REASONS = 10
_ONNXRUNTIME = ("ort", "qoperator")
_WIDE = 16
_LOST = 0.01
"""A loss of accuracy that is called one, where labels are given."""


class JudgedModel(Protocol):
    """What is judged: :class:`qdqbridge.app.quantizing.Quantization`."""

    @property
    def made(self) -> Quantized:
        """What was quantized, before layers were taken back."""
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
    shown = made.delivered()
    rows = [("verdict", first_sentence(made))]
    if shown is not None:
        rows += _outputs(shown, made.made.profile.samples, told=made.scores() is None)
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
    if text := processors(made):
        rows.append(("processors", text))
    if made.fallback is not None:
        rows += [("reverted", f"{r.layer.name}: {r.reason}") for r in made.fallback.reverted]
    return rows


def first_sentence(made: JudgedModel) -> str:
    """Returns how good it is in one sentence: in the user's measure where he has one."""
    from qdqbridge.autoquant.reporting import BAD, WANTED

    scores, shown = made.scores(), made.delivered()
    if scores is not None:
        every, unseen = scores
        texts = [_scored(every)]
        if unseen is not None:
            texts.append(f"of the {unseen.samples} left out {_pair(unseen)}")
        return "; ".join(texts)
    if shown is None:
        return "not measured: there was no data, only a profile"
    if not integers(made):
        return f"nothing is quantized: {shown.on_others}"
    sqnr = shown.expected
    words = "poor" if sqnr < BAD else "fair: check it with labels" if sqnr < WANTED else "good"
    if shown.metrics.top1 is None:
        return f"{words}: {shown.on_others}"
    unseen = "left-out" if shown.left_out else "calibration"
    many = f"{shown.samples} {unseen} sample{'' if shown.samples == 1 else 's'}"
    return f"{words}: {shown.on_others}; same class for {100 * shown.metrics.top1:.1f} % of {many}"


def is_good(made: JudgedModel) -> bool:
    """Returns whether nothing more has to be looked for."""
    from qdqbridge.autoquant.reporting import WANTED

    scores, shown = made.scores(), made.delivered()
    if scores is not None:
        return all(s is None or s.score >= s.reference - _LOST for s in scores)
    return shown is None or shown.expected >= WANTED


def floats(made: JudgedModel) -> dict[str, str]:
    """Returns why each node stayed float, by its name."""
    from qdqbridge.autoquant.reporting import floats_inside

    decision = made.made.decision if made.fallback is None else made.fallback.decision
    reasons = {node.name: reason for node, reason in decision.plan.floats.items()}
    return reasons | {row.node: row.reason for row in floats_inside(made.inside)}


def processors(made: JudgedModel) -> str:
    """Returns what is to be said of x86 without VNNI, where onnxruntime's pairs saturate."""
    from qdqbridge.autoquant.search.pair_cost import PAIRS
    from qdqbridge.targets.profiles import products_in_pairs
    from qdqbridge.targets.profiles.ort.pairs import pairs_sentence

    tried = [step.outcome for step in made.made.repairs if step.step == PAIRS]
    if tried or made.made.target.profile not in _ONNXRUNTIME:
        return "".join(tried[-1:])
    return pairs_sentence(products_in_pairs(made.graph))


def _computed_in_floats(made: JudgedModel) -> int:
    """Returns how many operators have activations that the runtime has no integer kernels for."""
    from qdqbridge.core.graph.operator import Flow

    if made.made.target.profile not in _ONNXRUNTIME:
        return 0
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
    many = f"of {score.samples} sample{'' if score.samples == 1 else 's'}"
    return f"{score.name} {_pair(score)}, {many}"


def _pair(score: MetricScore) -> str:
    from qdqbridge.autoquant.simulation.user_metric import TOP1

    if score.name == TOP1:
        return f"{100 * score.score:.2f} %, float {100 * score.reference:.2f} %"
    return f"{score.score:.6g}, float {score.reference:.6g}"


def _outputs(shown: Delivered, chosen: int, *, told: bool) -> list[tuple[str, str]]:
    """Returns what was measured; what is likely first where the verdict has not told it."""
    from qdqbridge.autoquant.delivered import closeness

    measured = f"{_closeness(shown.metrics)} against the float model on {shown.where}"
    rows = [] if told else [("outputs", shown.on_others)]
    rows.append(("outputs" if told else "", measured))
    if shown.left_out:
        given = chosen + shown.samples
        several = f"all {given}" if given == shown.count else f"{shown.count} of {given}"
        rows.append(("", f"{_closeness(shown.everything)} on {several} samples"))
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
