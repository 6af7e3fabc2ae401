"""Applies the rules until none fires: a worklist, and sweeps over all nodes until one is idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from qdqbridge.canonical.rule import Reject, Replace, Rule, Scope
from qdqbridge.graph.edit import Editor
from qdqbridge.graph.graph import Graph, Node, Note, Value
from qdqbridge.ops.folding import Budget


def run(graph: Graph, rules: Sequence[Rule]) -> dict[tuple[str, Node], Reject]:
    """Rewrites ``graph`` to the fixpoint of ``rules``; returns the refusals that still stand."""
    return _Driver(graph, rules).run()


class _Driver:
    def __init__(self, graph: Graph, rules: Sequence[Rule]) -> None:
        self.editor = Editor(graph)
        self.scope = Scope(self.editor, Budget.of(graph.nodes))
        self.graph = graph
        self.by_op: dict[str, list[Rule]] = {}
        self.rules = rules
        self.refused: dict[tuple[str, Node], Reject] = {}
        self.queue: deque[Node] = deque(graph.nodes)
        self.queued: set[Node] = set(graph.nodes)
        self.changed = False
        self.told: dict[Note, None] = dict.fromkeys(graph.notes)

    def run(self) -> dict[tuple[str, Node], Reject]:
        self._drain()
        while self.changed:  # a rule may look further than the neighbours that were queued
            self.changed = False
            self.editor.finish()
            self._enqueue_all(self.graph.nodes)
            self._drain()
        self.editor.finish()
        self.graph.notes = list(self.told)
        alive = set(self.graph.nodes)
        return {key: reject for key, reject in self.refused.items() if key[1] in alive}

    def _drain(self) -> None:
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
            self._enqueue_all([producer])
            self._enqueue_all(_readers(producer))

    def _rules_for(self, name: str) -> list[Rule]:
        if name not in self.by_op:
            self.by_op[name] = [r for r in self.rules if r.ops is None or name in r.ops]
        return self.by_op[name]

    def _visit(self, node: Node) -> None:
        for rule in self._rules_for(node.op.name):
            proposal = rule.apply(node, self.scope)
            if isinstance(proposal, Replace):
                self._replace(proposal, node)
                return
            if isinstance(proposal, Reject):
                self.refused[rule.name, node] = proposal
            else:
                self.refused.pop((rule.name, node), None)

    def _replace(self, proposal: Replace, node: Node) -> None:
        self.changed = True
        self.told.update(dict.fromkeys(proposal.notes))
        touched: dict[Node, None] = {node: None}
        for old, new in proposal.values.items():
            added = self.editor.insert(new)
            for fresh in added:
                touched.update(dict.fromkeys(self._neighbours(fresh)))
            touched.update(dict.fromkeys(self.editor.replace_value(old, new)))
            if old.producer is not None:
                touched[old.producer] = None
            if new.producer is not None:
                touched[new.producer] = None
            _keep_name(old, new)
        self._enqueue_all(touched)

    def _neighbours(self, node: Node) -> list[Node]:
        producers = [v.producer for v in node.inputs if v is not None and v.producer is not None]
        siblings = [reader for producer in producers for reader in _readers(producer)]
        return [*producers, node, *siblings]

    def _enqueue_all(self, nodes: Iterable[Node]) -> None:
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


def _keep_name(old: Value, new: Value) -> None:
    if not new.name:
        new.name = old.name


def notes_of(refused: dict[tuple[str, Node], Reject]) -> list[Note]:
    """Returns refusals as notes, in the order of the graph's nodes."""
    return [
        Note(name, (reject.about or node).name, reject.reason, reject.culprits)
        for (name, node), reject in refused.items()
    ]
