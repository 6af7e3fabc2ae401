"""Which node of one graph corresponds to which node of another one, by structure alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow

_SKIPPED = 8
"""How many inserted nodes in a row are looked past."""


@dataclass(slots=True)
class Alignment:
    """A one-to-one correspondence between nodes of two graphs.

    Attributes:
        forward: From nodes of ``a`` to nodes of ``b``.
        backward: From nodes of ``b`` to nodes of ``a``.
    """

    forward: dict[Node, Node] = field(default_factory=dict[Node, Node])
    backward: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def pair(self, a: Node, b: Node) -> bool:
        """Pairs two nodes; False where one of them has a partner already."""
        if a in self.forward or b in self.backward:
            return False
        self.forward[a], self.backward[b] = b, a
        return True


def align(a: Graph, b: Graph) -> Alignment:
    """Returns the correspondence between two graphs.

    Nodes correspond that have the same operators before them and behind them, then the same before
    or the same behind, then what lies next to corresponding nodes at the same operand or reader.
    Parameters, attributes, constants and names play no part. Linear in the size of the graphs.

    Args:
        a: A graph in its deterministic order.
        b: Another one.
    """
    before = _before(a), _before(b)
    behind = _behind(a), _behind(b)
    found = Alignment()
    _pair_equal(found, a, b, lambda s, n: (before[s][n], behind[s][n]))
    _spread(found, a, b)
    for side in (before, behind):
        _pair_equal(found, a, b, lambda s, n, side=side: side[s][n])
        _spread(found, a, b)
    _spread(found, a, b, replaced=True)
    return found


def _before(graph: Graph) -> dict[Node, int]:
    """Returns a hash of the operators that each node depends on, and how."""
    places = places_of(graph)
    hashes: dict[Node, int] = {}
    for node in graph.nodes:
        operands = tuple(_operand(value, places, hashes) for value in node.inputs)
        hashes[node] = hash((node.op.name, operands))
    return hashes


def places_of(graph: Graph) -> dict[Value, int]:
    """Returns the place of each input among the inputs, of each result among its node's."""
    places = {value: index for index, value in enumerate(graph.inputs)}
    for node in graph.nodes:
        places.update((value, index) for index, value in enumerate(node.outputs))
    return places


def _operand(value: Value | None, places: dict[Value, int], hashes: dict[Node, int]) -> Hashable:
    if value is None or value.constant is not None:
        return value is None
    if value.producer is None:
        return ("input", places.get(value, -1))
    return (hashes[value.producer], places[value])


def _behind(graph: Graph) -> dict[Node, int]:
    """Returns a hash of the operators that depend on each node, and how."""
    slots: dict[Value, list[int]] = {}
    for slot, value in enumerate(graph.outputs):
        slots.setdefault(value, []).append(slot)
    hashes: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        readers = tuple(
            (*sorted((hashes[user], i) for user, i in value.users), *slots.get(value, ()))
            for value in node.outputs
        )
        hashes[node] = hash((node.op.name, readers))
    return hashes


def _pair_equal(found: Alignment, a: Graph, b: Graph, key: Callable[[int, Node], Hashable]) -> None:
    """Pairs free nodes with equal keys in order, where both graphs have equally many of them."""
    groups: dict[Hashable, tuple[list[Node], list[Node]]] = {}
    taken = (found.forward, found.backward)
    for side, graph in enumerate((a, b)):
        for node in graph.nodes:
            if node not in taken[side]:
                groups.setdefault(key(side, node), ([], []))[side].append(node)
    for mine, others in groups.values():
        if len(mine) == len(others):
            for pair in zip(mine, others, strict=True):
                found.pair(*pair)


def _spread(found: Alignment, a: Graph, b: Graph, *, replaced: bool = False) -> None:
    """Pairs the neighbours of pairs; where ``replaced``, also those of different operators."""
    pending = deque(found.forward.items())
    for value, other in zip(a.outputs, b.outputs, strict=False):
        _pair_producers(found, (value, other), pending, replaced=replaced)
    while pending:
        node, other = pending.popleft()
        for mine, theirs in zip(node.inputs, other.inputs, strict=False):
            if mine is not None and theirs is not None:
                _pair_producers(found, (mine, theirs), pending, replaced=replaced)
        for mine, theirs in zip(node.outputs, other.outputs, strict=False):
            _pair_readers(found, (mine, theirs), pending)


def _pair_producers(
    found: Alignment,
    values: tuple[Value, Value],
    pending: deque[tuple[Node, Node]],
    *,
    replaced: bool,
) -> None:
    first, second = values[0].producer, values[1].producer
    if first is None or second is None or first in found.forward or second in found.backward:
        return
    chains = list(_up(first, found.forward)), list(_up(second, found.backward))
    converts = Flow.CONVERT in (first.op.flow, second.op.flow)  # inserted, no replacement
    pair = _first_alike(*chains) or ((first, second) if replaced and not converts else None)
    if pair is not None and found.pair(*pair):
        pending.append(pair)


def _pair_readers(
    found: Alignment, values: tuple[Value, Value], pending: deque[tuple[Node, Node]]
) -> None:
    mine = [node for node, _ in values[0].users if node not in found.forward]
    others = [node for node, _ in values[1].users if node not in found.backward]
    alike = len(mine) == len(others) == 1 and mine[0].op.name == others[0].op.name
    if alike and found.pair(mine[0], others[0]):
        pending.append((mine[0], others[0]))


def _up(node: Node, taken: dict[Node, Node]) -> Iterator[Node]:
    """Yields a free node and the free nodes that lead to its first computed operand."""
    current: Node | None = node
    for _ in range(_SKIPPED):
        if current is None or current in taken:
            return
        yield current
        source = main_operand(current)
        current = None if source is None else source.producer


def main_operand(node: Node) -> Value | None:
    """Returns the first operand that is no constant: what a node inserted in a chain reads."""
    return next((v for v in node.inputs if v is not None and v.constant is None), None)


def _first_alike(a: list[Node], b: list[Node]) -> tuple[Node, Node] | None:
    """Returns the pair of one operator that skips the fewest nodes."""
    pairs = [
        (i + j, i, mine, theirs)
        for i, mine in enumerate(a)
        for j, theirs in enumerate(b)
        if mine.op.name == theirs.op.name
    ]
    if not pairs:
        return None
    _, _, mine, theirs = min(pairs, key=lambda pair: pair[:2])
    return mine, theirs
