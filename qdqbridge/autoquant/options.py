"""What a user asks of quantization, by name, and what that is in a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from qdqbridge.autoquant.choosers import CHOOSERS, Chooser
from qdqbridge.autoquant.formats import Format
from qdqbridge.autoquant.plan import Wishes
from qdqbridge.autoquant.profile import observable
from qdqbridge.autoquant.repair.steps import DEFAULT
from qdqbridge.autoquant.targets import TARGETS, WEIGHTS, Target
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.graph.graph import Graph, Node
from qdqbridge.graph.quantization import QuantParams


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What a float model is quantized for, and what the user wants otherwise.

    Names of nodes may be patterns (``*`` and ``?``); they are looked for among the nodes' own names
    and their operators' (``Conv``).

    Attributes:
        target: What the result is for, by name (:mod:`qdqbridge.autoquant.targets`) or described.
        exclude: Nodes that stay float.
        only: Nodes that are quantized, all others staying float; empty for all.
        fixed: Parameters of tensors by name, instead of a chooser's.
        formats: Formats of what nodes read and compute.
        chooser: Parameters of activations: ``mse``, ``minmax``, ``percentile``,
            ``mean-of-maxima``, ``kl``, or any function; None for the target's.
        weight_chooser: Parameters of weights; None for the target's.
        weights: How weights are stored, see :data:`WEIGHTS`; None for the target's type.
        repair: Steps to try on data, see :mod:`qdqbridge.autoquant.repair.steps`.
        tune: Try the target's further choosers on the data, see
            :mod:`qdqbridge.autoquant.tuning`; never against a chooser that the user names.
    """

    target: str | Target = "ort"
    exclude: Sequence[str] = ()
    only: Sequence[str] = ()
    fixed: Mapping[str, QuantParams] = field(default_factory=dict[str, QuantParams])
    formats: Mapping[str, Format] = field(default_factory=dict[str, Format])
    chooser: str | Chooser | None = None
    weight_chooser: str | Chooser | None = None
    weights: str | None = None
    repair: Sequence[str] = DEFAULT
    tune: bool = True

    def described(self) -> Target:
        """Returns the target with the user's choosers and storage of weights.

        Raises:
            UnsupportedTargetError: A name stands for nothing.
        """
        target = _named("target", self.target, TARGETS)
        if self.chooser is not None:
            chooser = _named("chooser", self.chooser, CHOOSERS)
            target = replace(target, chooser=chooser, candidates=())
        if self.weight_chooser is not None:
            chooser = _named("chooser", self.weight_chooser, CHOOSERS)
            target = replace(target, weight_chooser=chooser)
        if self.weights is not None:
            target = _stored_as(target, _named("type of weights", self.weights, WEIGHTS))
        return target

    def wishes(self, graph: Graph) -> Wishes:
        """Returns what the names mean in ``graph``.

        Raises:
            InputDataError: A name or pattern stands for nothing.
        """
        floats: dict[Node, str] = {}
        if self.only:
            kept = {node for pattern in self.only for node in _nodes(graph, pattern)}
            floats = {
                node: "the user quantizes others only" for node in graph.nodes if node not in kept
            }
        for pattern in self.exclude:
            floats |= dict.fromkeys(_nodes(graph, pattern), f"the user excludes {pattern!r}")
        values = {value.name: value for value in observable(graph)}
        unknown = sorted(set(self.fixed) - set(values))
        if unknown:
            raise InputDataError(
                "parameters are given for tensors that the model does not have",
                why=f"unknown: {', '.join(unknown)}",
                fix="give names of float tensors of the model; "
                "batch normalizations are folded first",
            )
        return Wishes(
            floats=floats,
            fixed={values[name]: params for name, params in self.fixed.items()},
            formats={n: f for pattern, f in self.formats.items() for n in _nodes(graph, pattern)},
        )


def _named(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    """Returns what ``name`` stands for; what is no name stands for itself."""
    if not isinstance(name, str):
        return name
    if name not in known:
        raise UnsupportedTargetError(
            f"there is no {kind} '{name}'", why=f"there are {', '.join(known)}", fix="use one"
        )
    return known[name]


def _stored_as(target: Target, weights: Format) -> Target:
    """Returns ``target`` with another storage type for weights, per channel where it had that."""
    format = replace(weights, axis=target.weights.axis)
    rules = tuple(
        rule
        if rule.weights is None
        else replace(rule, weights=replace(format, axis=rule.weights.axis))
        for rule in target.rules
    )
    return replace(target, weights=format, rules=rules)


def _nodes(graph: Graph, pattern: str) -> list[Node]:
    found = [node for node in graph.nodes if _matches(node, pattern)]
    if not found:
        raise InputDataError(
            f"no node is called {pattern!r}",
            why="a wish that concerns nothing is a mistake",
            fix="qdqbridge inspect MODEL shows the operators; names may hold * and ?",
        )
    return found


def _matches(node: Node, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (*node.origin.nodes, node.op.name))
