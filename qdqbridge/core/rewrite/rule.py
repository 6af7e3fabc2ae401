"""What a rule is: a name, the operators it looks at, and a function that proposes.

A rule that looks for steps states them as a pattern (:func:`pattern_rule`); one that computes what
it looks for walks by itself (:func:`rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.edit import Editor
from qdqbridge.core.graph.graph import Graph, Node, Note, Origin, Value
from qdqbridge.core.graph.operator import Attributes, Operator
from qdqbridge.core.graph.patterns import AnyPattern, PatternMatch, anchors, matches, operand_makers
from qdqbridge.core.graph.quantization import QuantParams
from qdqbridge.core.graph.types import ValueType
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.conversion import DEQUANTIZE
from qdqbridge.core.ops.folding import Budget

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replace:
    """Every reader of each key shall read its value instead.

    New values come from nodes that the rule built; the driver links them. They may be computed
    from what they stand for.

    Attributes:
        values: What to read in the place of what.
        notes: What somebody should know about it.
        operands: What single operands shall be, after that: by node and index.
    """

    values: dict[Value, Value] = field(default_factory=dict[Value, Value])
    notes: tuple[Note, ...] = ()
    operands: dict[tuple[Node, int], Value] = field(default_factory=dict[tuple[Node, int], Value])


@dataclass(frozen=True, slots=True)
class Reject:
    """The rule looked and refused; ``explain`` shows it.

    Attributes:
        reason: Says why, with the operator that it is about as its subject.
        culprits: Names of the tensors or nodes that cause it.
        about: That operator; None where it is the node looked at.
    """

    reason: str
    culprits: tuple[str, ...] = ()
    about: Node | None = None


Proposal: TypeAlias = "Replace | Reject | None"


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule may ask about the surroundings of a node.

    Attributes:
        editor: Knows the graph.
        budget: What rules may compute of constants, all together.
        quantized: How each constant was quantized: by the type that it is given, the outcome.
        shared: The node that stands for all that compute the same, by what they compute.
        facts: What was found out of the whole graph, by the function that does so.
        values: What rules have made once for several readers.
    """

    editor: Editor
    budget: Budget
    quantized: dict[tuple[Constant, ValueType, Attributes], dict[QuantParams, Constant]] = field(
        default_factory=dict[tuple[Constant, ValueType, Attributes], dict[QuantParams, Constant]]
    )
    shared: dict[Hashable, Node] = field(default_factory=dict[Hashable, Node])
    facts: dict[Callable[[Graph], Any], Any] = field(
        default_factory=dict[Callable[[Graph], Any], Any]
    )
    values: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])

    def fact(self, of_graph: Callable[[Graph], T]) -> T:
        """Returns what a function finds in the whole graph, as it was when it was first asked."""
        if of_graph not in self.facts:
            self.facts[of_graph] = of_graph(self.editor.graph)
        return self.facts[of_graph]

    def once(self, make: Callable[[Value], Value], value: Value) -> Value:
        """Returns what a function makes of a value, the same each time."""
        if (make, value) not in self.values:
            self.values[make, value] = make(value)
        return self.values[make, value]

    def is_output(self, value: Value) -> bool:
        """True where ``value`` leaves the graph."""
        return self.editor.is_output(value)

    def readers(self, value: Value) -> list[Node]:
        """Returns the nodes that read ``value``, once per operand."""
        return [node for node, _ in value.users]

    def sole_reader(self, value: Value) -> Node | None:
        """Returns the one node that reads ``value`` where nothing else does."""
        if len(value.users) != 1 or self.is_output(value):
            return None
        return next(iter(value.users))[0]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite.

    Attributes:
        name: Kebab-case.
        apply: Looks at a node and proposes; its docstring is the rewrite. It has no state.
        ops: Names of the operators it looks at; None for all.
        pattern: What it looks for, where a pattern says it.
    """

    name: str
    apply: Callable[[Node, RuleContext], Proposal]
    ops: frozenset[str] | None = field(default=None)
    pattern: AnyPattern | None = None


def rule(
    name: str, *ops: Operator | str
) -> Callable[[Callable[[Node, RuleContext], Proposal]], Rule]:
    """Makes a :class:`Rule` of the decorated function.

    Args:
        name: Kebab-case.
        ops: The operators it looks at; by name where they have no row. None: all of them.
    """
    names = frozenset(op if isinstance(op, str) else op.name for op in ops)

    def make(apply: Callable[[Node, RuleContext], Proposal]) -> Rule:
        return Rule(name, apply, names or None)

    return make


def pattern_rule(
    name: str, pattern: AnyPattern
) -> Callable[[Callable[[Node, PatternMatch, RuleContext], Proposal]], Rule]:
    """Makes a :class:`Rule` of a pattern and the function that proposes for what is found.

    The function is asked for each way in which the pattern fits, until it says something. Sums,
    products and extremes match in either order.

    Args:
        name: Kebab-case.
        pattern: An operator on its operands, or several (:mod:`qdqbridge.core.graph.patterns`).
    """
    makers = operand_makers(pattern)

    def make(propose: Callable[[Node, PatternMatch, RuleContext], Proposal]) -> Rule:
        @wraps(propose)
        def apply(node: Node, context: RuleContext) -> Proposal:
            for names in makers:  # most nodes are something else, and many rules look at each
                if not _reads_from(node, names):
                    return None
            is_output = context.is_output
            for match in matches(node.output, pattern, either_order=True, is_output=is_output):
                proposal = propose(node, match, context)
                if proposal is not None:
                    return proposal
            return None

        return Rule(name, apply, anchors(pattern) or None, pattern)

    return make


def _reads_from(node: Node, names: frozenset[str]) -> bool:
    for value in node.inputs:
        producer = None if value is None else value.producer
        if producer is not None and producer.op.name in names:
            return True
    return False


def replaced(
    node: Node, op: Operator, attributes: Attributes, operands: Sequence[Value | None],
    origin: Origin | None = None, notes: tuple[Note, ...] = (),
) -> Replace:  # fmt: skip
    """Proposes one operator for ``node``: its result has the type and the name of that of ``node``.

    Args:
        node: What readers read today.
        op: The operator.
        attributes: Its attributes.
        operands: Its operands.
        origin: Where it comes from; by default that of ``node``.
        notes: What somebody should know about it.
    """
    output = node.output
    origin = node.origin if origin is None else origin
    value = result(op, attributes, operands, output.type, origin, output.name)
    return Replace({output: value}, notes)


def made_by(value: Value | None, op: Operator | str) -> Node | None:
    """Returns the producer of ``value`` where it is that operator, by name if it has no row."""
    node = None if value is None else value.producer
    if node is None or op not in (node.op, node.op.name):
        return None
    return node


def stored_behind(value: Value | None) -> Value | None:
    """Returns ``q`` where ``value`` is ``dequantize(q)``."""
    node = made_by(value, DEQUANTIZE)
    return None if node is None else node.operand(0)
