"""Which node of one graph corresponds to which node of another one, by structure alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow

_OUTPUT = -1
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


Kin = Callable[[Node], Hashable]
"""What two nodes have in common that may correspond; None for one that is looked through."""


def _operator(node: Node) -> Hashable:
    return node.op.name


def align(a: Graph, b: Graph, kin: Kin = _operator, *, replaced: bool = True) -> Alignment:
    """Returns the correspondence between two graphs.

    Nodes correspond that have the same operators before them and behind them, then the same before
    or the same behind, then what lies next to corresponding nodes at the same operand or reader.
    Parameters, attributes, constants and names play no part. Linear in the size of the graphs.

    Args:
        a: A graph in its deterministic order.
        b: Another one.
        kin: What corresponding nodes have in common; by default the operator. Nodes that have
            nothing are looked through: they are no part of what is before or behind another.
        replaced: Nodes that have nothing in common correspond too, where all around them does.
    """
    before = _before(a, kin), _before(b, kin)
    behind = _behind(a, kin), _behind(b, kin)
    found = Alignment()
    _pair_equal(found, a, b, kin, lambda s, n: (before[s].get(n), behind[s].get(n)))
    _spread(found, a, b, kin)
    for side in (before, behind):
        _pair_equal(found, a, b, kin, lambda s, n, side=side: side[s].get(n))
        _spread(found, a, b, kin)
    if replaced:
        _spread(found, a, b, kin, replaced=True)
    return found


def _before(graph: Graph, kin: Kin) -> dict[Node, int]:
    """Returns a hash of the operators that each node depends on, and how."""
    places = places_of(graph)
    hashes: dict[Node, int] = {}
    for node in graph.nodes:
        if kin(node) is not None:
            operands = tuple(_operand(_seen(v, kin), places, hashes) for v in node.inputs)
            hashes[node] = hash((kin(node), operands))
    return hashes


def _seen(value: Value | None, kin: Kin) -> Value | None:
    """Returns what is before the nodes that are looked through."""
    while value is not None and value.producer is not None and kin(value.producer) is None:
        source = main_operand(value.producer)
        if source is None:
            return None
        value = source
    return value


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


def _producer(value: Value | None, kin: Kin) -> Node | None:
    source = _seen(value, kin)
    return None if source is None else source.producer


def _readers(value: Value, kin: Kin) -> list[Node]:
    """Returns what reads a value, also behind nodes that are looked through."""
    found: list[Node] = []
    pending = [value]
    while pending:
        for node, index in pending.pop().users:
            if kin(node) is not None:
                found.append(node)
            elif node.inputs[index] is main_operand(node):
                pending.extend(node.outputs)
    return found


def _behind(graph: Graph, kin: Kin) -> dict[Node, int]:
    """Returns a hash of the operators that depend on each node, and how."""
    readers: dict[Value, list[tuple[int, int]]] = {}
    for slot, value in enumerate(graph.outputs):
        readers.setdefault(value, []).append((_OUTPUT, slot))
    hashes: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        own = kin(node)
        found = tuple(sorted(readers.get(value, ())) for value in node.outputs)
        if own is None:
            source = main_operand(node)
            if source is not None:
                readers.setdefault(source, []).extend(each for part in found for each in part)
            continue
        hashes[node] = hash((own, tuple(map(tuple, found))))
        for index, value in enumerate(node.inputs):
            if value is not None:
                readers.setdefault(value, []).append((hashes[node], index))
    return hashes


def _pair_equal(
    found: Alignment, a: Graph, b: Graph, kin: Kin, key: Callable[[int, Node], Hashable]
) -> None:
    """Pairs free nodes with equal keys in order, where both graphs have equally many of them."""
    groups: dict[Hashable, tuple[list[Node], list[Node]]] = {}
    taken = (found.forward, found.backward)
    for side, graph in enumerate((a, b)):
        for node in graph.nodes:
            if node not in taken[side] and kin(node) is not None:
                groups.setdefault(key(side, node), ([], []))[side].append(node)
    for mine, others in groups.values():
        if len(mine) == len(others):
            for pair in zip(mine, others, strict=True):
                found.pair(*pair)


def _spread(found: Alignment, a: Graph, b: Graph, kin: Kin, *, replaced: bool = False) -> None:
    """Pairs the neighbours of pairs; where ``replaced``, also those of different operators."""
    pending = deque(found.forward.items())
    for value, other in zip(a.outputs, b.outputs, strict=False):
        _pair_producers(found, (value, other), pending, kin, replaced=replaced)
    while pending:
        node, other = pending.popleft()
        for mine, theirs in zip(node.inputs, other.inputs, strict=False):
            if mine is not None and theirs is not None:
                _pair_producers(found, (mine, theirs), pending, kin, replaced=replaced)
        for mine, theirs in zip(node.outputs, other.outputs, strict=False):
            _pair_readers(found, (mine, theirs), pending, kin)


def _pair_producers(
    found: Alignment,
    values: tuple[Value, Value],
    pending: deque[tuple[Node, Node]],
    kin: Kin,
    *,
    replaced: bool,
) -> None:
    first, second = (_producer(value, kin) for value in values)
    if first is None or second is None or first in found.forward or second in found.backward:
        return
    chains = list(_up(first, found.forward, kin)), list(_up(second, found.backward, kin))
    converts = Flow.CONVERT in (first.op.flow, second.op.flow)  # inserted, no replacement
    pair = _first_alike(*chains, kin) or ((first, second) if replaced and not converts else None)
    if pair is not None and found.pair(*pair):
        pending.append(pair)


def _pair_readers(
    found: Alignment, values: tuple[Value, Value], pending: deque[tuple[Node, Node]], kin: Kin
) -> None:
    readers = [_readers(value, kin) for value in values]
    mine = [node for node in readers[0] if node not in found.forward]
    others = [node for node in readers[1] if node not in found.backward]
    if len(mine) != 1 or len(others) != 1:
        return
    chains = mine, others
    if len(readers[0]) == len(readers[1]) == 1:  # what only one graph has in between is passed
        chains = (
            list(_down(mine[0], found.forward, kin)),
            list(_down(others[0], found.backward, kin)),
        )
    pair = _first_alike(*chains, kin)
    if pair is not None and found.pair(*pair):
        pending.append(pair)


def _down(node: Node, taken: dict[Node, Node], kin: Kin) -> Iterator[Node]:
    """Yields a free node and the free nodes that its only result leads to alone."""
    for _ in range(_SKIPPED):
        if node in taken:
            return
        yield node
        readers = _readers(node.outputs[0], kin) if len(node.outputs) == 1 else []
        if len(readers) != 1:
            return
        node = readers[0]


def _up(node: Node, taken: dict[Node, Node], kin: Kin) -> Iterator[Node]:
    """Yields a free node and the free nodes that lead to its first computed operand."""
    current: Node | None = node
    for _ in range(_SKIPPED):
        if current is None or current in taken:
            return
        yield current
        current = _producer(main_operand(current), kin)


def main_operand(node: Node) -> Value | None:
    """Returns the first operand that is no constant: what a node inserted in a chain reads."""
    return next((v for v in node.inputs if v is not None and v.constant is None), None)


def _first_alike(a: list[Node], b: list[Node], kin: Kin) -> tuple[Node, Node] | None:
    """Returns the pair of one operator that skips the fewest nodes."""
    pairs = [
        (i + j, i, mine, theirs)
        for i, mine in enumerate(a)
        for j, theirs in enumerate(b)
        if kin(mine) == kin(theirs)
    ]
    if not pairs:
        return None
    _, _, mine, theirs = min(pairs, key=lambda pair: pair[:2])
    return mine, theirs
