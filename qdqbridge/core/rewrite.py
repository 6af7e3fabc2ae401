"""The rewriter: what a rule is, and how a set of rules is applied. Rooms have sets of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import Graph, Node, Note, Origin, Value
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.patterns import AnyPattern, PatternMatch, anchors, matches, operand_makers
from qdqbridge.core.graph.types import QuantParams, ValueType
from qdqbridge.core.ops.build import result
from qdqbridge.core.ops.conversion import DEQUANTIZE, REQUANTIZE
from qdqbridge.core.ops.folding import Budget

# ---- What a rule is: a name, the operators it looks at, and a function that proposes -------------
# A rule that looks for steps states them as a pattern (:func:`pattern_rule`); one that computes
# what it looks for walks by itself (:func:`rule`).


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


# ---- driver --------------------------------------------------------------------------------------
# How rules are applied: to a graph until none fires, or to nodes while a reader makes a graph.
#
# The first is a worklist, and sweeps over all nodes until one is idle.


def run(graph: Graph, rules: Sequence[Rule]) -> dict[tuple[str, Node], Reject]:
    """Rewrites ``graph`` to the fixpoint of ``rules``; returns the refusals that still stand."""
    editor = Editor(graph)
    visits = _Visits(rules, RuleContext(editor, Budget.of(graph.nodes)), graph.notes)
    while visits.changed:  # a rule may look further than the neighbours that were queued
        visits.sweep(graph.nodes)
        editor.finish()
    graph.notes = list(visits.notes)
    alive = set(graph.nodes)
    return {key: reject for key, reject in visits.refused.items() if key[1] in alive}


class RulesByOperator:
    """A set of rules, found by the operator at which they look.

    Args:
        rules: In the order in which they look at a node.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._by_name: dict[str, list[Rule]] = {}

    def of(self, name: str) -> list[Rule]:
        """Returns the rules that look at nodes of an operator."""
        if name not in self._by_name:
            self._by_name[name] = [r for r in self.rules if r.ops is None or name in r.ops]
        return self._by_name[name]


class Growing:
    """Applies rules to the nodes of a graph that is being made, each before anything reads it.

    What stands for a node decides the types of all that is read behind it, so a reader asks before
    it adds one. New nodes are the reader's, which makes them while a rule builds; those of a rule
    that refuses nobody reads.

    Args:
        rules: In the order in which they look at a node.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = RulesByOperator(rules)
        self._context = RuleContext(Editor(Graph([], [], [], [])), Budget())

    def looks_at(self, name: str) -> bool:
        """Returns whether any rule looks at nodes of an operator."""
        return bool(self._rules.of(name))

    def proposal(self, node: Node) -> Proposal:
        """Returns what the first rule with something to say of a node proposes or refuses."""
        for rule in self._rules.of(node.op.name):
            proposal = rule.apply(node, self._context)
            if proposal is not None:
                return proposal
        return None


class _Visits:
    """Applies rules at one node after another, and again around what they change."""

    def __init__(self, rules: Sequence[Rule], context: RuleContext, notes: Iterable[Note]) -> None:
        self.rules, self.context, self.editor = RulesByOperator(rules), context, context.editor
        self.refused: dict[tuple[str, Node], Reject] = {}
        self.queue: deque[Node] = deque()
        self.queued: set[Node] = set()
        self.changed = True
        self.notes: dict[Note, None] = dict.fromkeys(notes)

    def sweep(self, nodes: Iterable[Node]) -> None:
        """Visits all nodes, and their neighbours as long as something changes there."""
        self.changed = False
        self._enqueue(nodes)
        while self.queue:
            node = self.queue.popleft()
            self.queued.discard(node)
            if not node.linked:
                continue
            if self.editor.is_dead(node):
                self._remove(node)
                continue
            self._visit(node)

    def _remove(self, node: Node) -> None:
        for producer in self.editor.remove(node):
            self._enqueue([producer])
            self._enqueue(_readers(producer))

    def _visit(self, node: Node) -> None:
        for rule in self.rules.of(node.op.name):
            proposal = rule.apply(node, self.context)
            if isinstance(proposal, Replace):
                self._replace(proposal, node)
                return
            if isinstance(proposal, Reject):
                self.refused[rule.name, node] = proposal
            else:
                self.refused.pop((rule.name, node), None)

    def _replace(self, proposal: Replace, node: Node) -> None:
        self.changed = True
        self.notes.update(dict.fromkeys(proposal.notes))
        touched: dict[Node, None] = {node: None}
        for old, new in proposal.values.items():
            readers = list(old.users)  # what is new may be computed from what it stands for
            self._insert(new, touched)
            touched.update(dict.fromkeys(self.editor.replace_value(old, new, readers)))
            if old.producer is not None:
                touched[old.producer] = None
            if new.producer is not None:
                touched[new.producer] = None
            if not new.name:
                new.name = old.name
        for (reader, index), new in proposal.operands.items():
            old = reader.optional(index)
            self._insert(new, touched)
            rewire(reader, index, new)
            touched[reader] = None
            if old is not None and old.producer is not None:
                touched[old.producer] = None
        self._enqueue(touched)

    def _insert(self, value: Value, touched: dict[Node, None]) -> None:
        for fresh in self.editor.insert(value):
            touched.update(dict.fromkeys(_neighbours(fresh)))

    def _enqueue(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self.queued:
                self.queued.add(node)
                self.queue.append(node)


_PARTS = 64
"""Results of a node up to which the readers of one are looked at again when another's change."""


def _readers(node: Node) -> list[Node]:
    """Returns the readers of a node's results where these are not so many as a Split may have."""
    if len(node.outputs) > _PARTS:
        return []
    return [reader for value in node.outputs for reader, _ in _few(value)]


def _few(value: Value) -> list[tuple[Node, int]]:
    """Readers of ``value`` where they are few; more than a handful cannot depend on one another."""
    return list(value.users) if len(value.users) <= 4 else []


def _neighbours(node: Node) -> list[Node]:
    producers = [v.producer for v in node.inputs if v is not None and v.producer is not None]
    siblings = [reader for producer in producers for reader in _readers(producer)]
    return [*producers, node, *siblings]


# ---- interface -----------------------------------------------------------------------------------
# Conversions at a graph's inputs and outputs, which keep their types while those inside change.


def converted_interface(
    node: Node, context: RuleContext, wanted: Callable[[Value], bool],
    convert: Callable[[Value], Value],
) -> Replace | None:  # fmt: skip
    """Proposes conversions of the inputs and outputs of a graph that a node reads and gives.

    Args:
        context: What a rule may ask.
        wanted: Of which inputs and outputs, where they are not converted already.
        convert: Returns a value behind a requantize that changes nothing but the type, later.
    """
    operands: dict[tuple[Node, int], Value] = {}
    for value in node.inputs:
        if value is None or value.producer is not None or value.constant is not None:
            continue
        if wanted(value) and not any(made_for_interface(user) for user, _ in value.users):
            operands |= dict.fromkeys(value.users, context.once(convert, value))
    values: dict[Value, Value] = {}
    for value in () if made_for_interface(node) else node.outputs:
        if context.is_output(value) and wanted(value):
            values[value] = convert(value)
            operands |= dict.fromkeys(value.users, value)  # inside it is read as it was
    return Replace(values, operands=operands) if operands or values else None


def made_for_interface(node: Node) -> bool:
    """True for a requantize that changes nothing, and for a movement beside one."""
    if node.op.flow is Flow.MOVE:
        beside = [node.operand(0).producer, *(user for user, _ in node.output.users)]
        return any(other is not None and _changes_nothing(other) for other in beside)
    return _changes_nothing(node)


def _changes_nothing(node: Node) -> bool:
    if node.op is not REQUANTIZE:
        return False
    source, own = node.operand(0).quant, node.output.quant
    return source is not None and own is not None and source.params.same_mapping(own.params)
