"""How rules are applied to a graph until none fires.

A worklist, and sweeps over all nodes until one is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from qdqbridge.core.graph.edit import Editor, rewire
from qdqbridge.core.graph.graph import Graph, Node, Note, Value
from qdqbridge.core.ops.folding import Budget
from qdqbridge.core.rewrite.rule import Reject, Replace, Rule, RuleContext


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


class _Visits:
    """Applies rules at one node after another, and again around what they change."""

    def __init__(self, rules: Sequence[Rule], context: RuleContext, notes: Iterable[Note]) -> None:
        self.rules, self.context, self.editor = rules, context, context.editor
        self.by_op: dict[str, list[Rule]] = {}
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

    def _rules_for(self, name: str) -> list[Rule]:
        if name not in self.by_op:
            self.by_op[name] = [r for r in self.rules if r.ops is None or name in r.ops]
        return self.by_op[name]

    def _visit(self, node: Node) -> None:
        for rule in self._rules_for(node.op.name):
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
