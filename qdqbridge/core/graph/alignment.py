"""Which node of one graph corresponds to which node of another one, by structure alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import Flow

_OUTPUT = -1
_ANY = -2
"""The place of every operand that may change places."""
_SKIPPED = 8
"""How many inserted nodes in a row are looked past."""
_ALIKE = 64
"""Nodes in equal places up to which what else they have is compared, each with each."""

_FAR = 0.9
"""Constants that are this far apart have nothing to do with each other."""

Apart = Callable[[Node, Node], "float | None"]
"""How far two nodes in equal places are apart in what they hold: 0 to 1, None where unknown."""


@dataclass(slots=True)
class Alignment:
    """A one-to-one correspondence between nodes of two graphs.

    Attributes:
        forward: From nodes of ``a`` to nodes of ``b``.
        backward: From nodes of ``b`` to nodes of ``a``.
        apart: What keeps nodes from being paired that hold other things.
    """

    forward: dict[Node, Node] = field(default_factory=dict[Node, Node])
    backward: dict[Node, Node] = field(default_factory=dict[Node, Node])
    apart: Apart | None = None

    def pair(self, a: Node, b: Node) -> bool:
        """Pairs two nodes; False where one of them has a partner, or they are too far apart."""
        if a in self.forward or b in self.backward:
            return False
        if self.apart is not None and (self.apart(a, b) or 0.0) >= _FAR:
            return False
        self.forward[a], self.backward[b] = b, a
        return True


Kin = Callable[[Node], Hashable]
"""What two nodes have in common that may correspond; None for one that is looked through."""


def _operator(node: Node) -> Hashable:
    return node.op.name


def align(
    a: Graph, b: Graph, kin: Kin = _operator, *, replaced: bool = True, apart: Apart | None = None
) -> Alignment:
    """Returns the correspondence between two graphs.

    Nodes correspond that have the same operators before them and behind them, then the same before
    or the same behind, then what lies next to corresponding nodes at the same operand or reader.
    Parameters and attributes play no part, constants only by ``apart``, and names only where
    nothing else tells nodes apart. Linear in the size of the graphs.

    Args:
        a: A graph in its deterministic order.
        b: Another one.
        kin: What corresponding nodes have in common; by default the operator. Nodes that have
            nothing are looked through: they are no part of what is before or behind another.
        replaced: Nodes that have nothing in common correspond too, where all around them does.
        apart: Tells nodes apart whose places are equal. Without it their order does.
    """
    places = _in_place if apart is None else _of_no_order
    before = _before(a, kin, places), _before(b, kin, places)
    behind = _behind(a, kin, places), _behind(b, kin, places)
    found = Alignment()
    # From the strongest evidence to the weakest: a pair that is made is never undone, and its
    # neighbours follow from it.
    keys: tuple[Callable[[int, Node], Hashable], ...] = (
        lambda s, n: (before[s].get(n), behind[s].get(n)),
        lambda s, n: before[s].get(n),
        lambda s, n: behind[s].get(n),
    )
    # Names come last: tools rename nodes, and one that was removed shifts the numbers of the
    # others.
    choices = (_in_order,) if apart is None else (_by_distance(apart), _by_name)
    for choice in choices:
        found.apart = None if choice is _by_name else apart
        for key in keys:
            _pair_equal(found, a, b, kin, key, choice)
            _propagate_alignment(found, a, b, kin, places)
    if replaced:
        _propagate_alignment(found, a, b, kin, places, replaced=True)
    return found


_Places = Callable[[Node, int], int]
"""The place of an operand; operands that are distinguished by what they are may have one place."""


def _in_place(node: Node, index: int) -> int:
    """Operands in their canonical order."""
    del node
    return index


def _of_no_order(node: Node, index: int) -> int:
    """Operands that may change places have one."""
    return _ANY if index < node.op.commuting else index


def _before(graph: Graph, kin: Kin, place: _Places) -> dict[Node, int]:
    """Returns a hash of the operators that each node depends on, and how."""
    places = places_of(graph)
    hashes: dict[Node, int] = {}
    for node in graph.nodes:
        if kin(node) is not None:
            operands = [
                (place(node, i), hash(_operand(_seen(v, kin), places, hashes)))
                for i, v in enumerate(node.inputs)
            ]
            hashes[node] = hash((kin(node), tuple(sorted(operands))))
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


def _behind(graph: Graph, kin: Kin, place: _Places) -> dict[Node, int]:
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
                readers.setdefault(value, []).append((hashes[node], place(node, index)))
    return hashes


_Choice = Callable[[list[Node], list[Node]], Iterable[tuple[Node, Node]]]


def _pair_equal(
    found: Alignment, a: Graph, b: Graph, kin: Kin, key: Callable[[int, Node], Hashable],
    choice: _Choice,
) -> None:  # fmt: skip
    """Pairs free nodes with equal keys."""
    groups: dict[Hashable, tuple[list[Node], list[Node]]] = {}
    taken = (found.forward, found.backward)
    for side, graph in enumerate((a, b)):
        for node in graph.nodes:
            if node not in taken[side] and kin(node) is not None:
                groups.setdefault(key(side, node), ([], []))[side].append(node)
    for mine, others in groups.values():
        for pair in choice(mine, others):
            found.pair(*pair)


def _in_order(mine: list[Node], others: list[Node]) -> Iterable[tuple[Node, Node]]:
    """Pairs all nodes where both graphs have equally many."""
    return zip(mine, others, strict=True) if len(mine) == len(others) else ()


def _by_name(mine: list[Node], others: list[Node]) -> Iterable[tuple[Node, Node]]:
    """Pairs those of one name first."""
    if len(mine) != len(others):
        return ()
    named = {node.output.name: node for node in others if node.outputs}
    pairs = [(node, named.pop(node.output.name)) for node in mine if node.output.name in named]
    taken = {node for pair in pairs for node in pair}
    left = ([node for node in side if node not in taken] for side in (mine, others))
    return [*pairs, *zip(*left, strict=True)]


def _by_distance(apart: Apart) -> _Choice:
    """Returns what pairs nodes that are alone in their place, and the nearest ones of several."""

    def choose(mine: list[Node], others: list[Node]) -> Iterable[tuple[Node, Node]]:
        if len(mine) == len(others) == 1:
            return [(mine[0], others[0])]
        if not mine or not others or max(len(mine), len(others)) > _ALIKE:
            return ()
        near = sorted(
            (distance, i, j)
            for i, node in enumerate(mine)
            for j, other in enumerate(others)
            if (distance := apart(node, other)) is not None and distance < _FAR
        )
        pairs: dict[int, int] = {}
        for _, i, j in near:
            if i not in pairs and j not in pairs.values():
                pairs[i] = j
        return [(mine[i], others[j]) for i, j in pairs.items()]

    return choose


def _propagate_alignment(
    found: Alignment, a: Graph, b: Graph, kin: Kin, place: _Places, *, replaced: bool = False
) -> None:
    """Pairs the neighbours of pairs; where ``replaced``, also those of different operators."""
    pending = deque(found.forward.items())
    for value, other in zip(a.outputs, b.outputs, strict=False):
        _pair_producers(found, (value, other), pending, kin, replaced=replaced)
    while pending:
        node, other = pending.popleft()
        for mine, theirs in _facing(node, other, kin, place):
            _pair_producers(found, (mine, theirs), pending, kin, replaced=replaced)
        for mine, theirs in zip(node.outputs, other.outputs, strict=False):
            _pair_readers(found, (mine, theirs), pending, kin)


def _facing(node: Node, other: Node, kin: Kin, place: _Places) -> Iterator[tuple[Value, Value]]:
    """Yields operands of two nodes that correspond: in one place, or the only ones of their kin."""
    free: tuple[list[Value], list[Value]] = [], []
    for index in range(max(len(node.inputs), len(other.inputs))):
        pair = node.optional(index), other.optional(index)
        if place(node, index) == place(other, index) == _ANY:
            for side, value in zip(free, pair, strict=True):
                if value is not None and value.constant is None:
                    side.append(value)
        elif pair[0] is not None and pair[1] is not None:
            yield pair[0], pair[1]
    kins = [[_kin_of(value, kin) for value in side] for side in free]
    for own in dict.fromkeys(kins[0]):
        if kins[0].count(own) == kins[1].count(own) == 1:
            yield free[0][kins[0].index(own)], free[1][kins[1].index(own)]
    left = [
        [v for v, k in zip(side, known, strict=True) if kins[0].count(k) != kins[1].count(k)]
        for side, known in zip(free, kins, strict=True)
    ]
    if len(left[0]) == len(left[1]) == 1:
        yield left[0][0], left[1][0]


def _kin_of(value: Value, kin: Kin) -> Hashable:
    producer = _producer(value, kin)
    return None if producer is None else kin(producer)


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
    # Only where nothing else is left (``replaced``) is a node of another operator its counterpart.
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
    # Several readers are not told apart here; what stands behind them pairs them later.
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
    """Returns the first operand that is not constant: what a node inserted in a chain reads."""
    return next((v for v in node.inputs if v is not None and v.constant is None), None)


def _first_alike(a: list[Node], b: list[Node], kin: Kin) -> tuple[Node, Node] | None:
    """Returns the first pair of the longest common subsequence of two chains.

    Of several the one that skips the fewest nodes, then as many on either side; names decide only
    what is left (a layer less in a chain of layers that are all alike).
    """
    common = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    best: tuple[tuple[int, int, int, bool, int], tuple[Node, Node]] | None = None
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            common[i][j] = max(common[i + 1][j], common[i][j + 1])
            if kin(a[i]) != kin(b[j]):
                continue
            length = 1 + common[i + 1][j + 1]
            common[i][j] = max(common[i][j], length)
            rank = -length, i + j, abs(i - j), not _one_name(a[i], b[j]), i
            if best is None or rank < best[0]:
                best = rank, (a[i], b[j])
    return None if best is None else best[1]


def _one_name(a: Node, b: Node) -> bool:
    return [value.name for value in a.outputs] == [value.name for value in b.outputs]
