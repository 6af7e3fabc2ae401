"""How rules are applied: to a graph until none fires, or to nodes while a reader makes a graph.

The first is a worklist, and sweeps over all nodes until one is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.ops.folding import Budget
from qdqbridge.core.rewrite.rule import Proposal, Reject, Replace, Rule, RuleContext


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
