"""Channels-last: which values are stored so, decided once, and the graph with that carried out.

The layouts with the fewest transposes are a minimum cut; then transposes become nodes, and axes and
constants are permuted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from qdqbridge.core.graph.attribute_codecs import Holds, attribute_codecs_of, permuted_attributes
from qdqbridge.core.graph.edit import link
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import AnyAttributes, Flow, Operator, Row, typed
from qdqbridge.core.graph.types import Shape, ValueType, static_shape
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    ExpandAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.build import permuted_constant, permuted_type, widened
from qdqbridge.core.ops.conversion import CAST
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    EXPAND,
    FLATTEN,
    IDENTITY,
    RESHAPE,
    SPACE_TO_DEPTH,
    SQUEEZE,
    TILE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
)
from qdqbridge.core.ops.pooling import GLOBAL_POOLS
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.ops.selection import GATHER, PAD, SLICE, SPLIT
from qdqbridge.core.ops.table import OPERATORS

# ---- the channels-last permutation, and which values do not notice it ----------------------------


def channels_last(rank: int) -> tuple[int, ...]:
    """Returns the permutation from (N, C, spatial…) to (N, spatial…, C)."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """Returns the inverse: axis ``a`` of (N, C, spatial…) is axis ``channels_first(r)[a]``."""
    return (0, rank - 1, *range(1, rank - 1))


def unmoved(value: Value) -> bool:
    """True where both layouts hold the elements in one order, so that a reshape converts them."""
    shape = value.type.shape
    return shape is not None and (shape[1:2] == (1,) or all(extent == 1 for extent in shape[2:]))


class LayoutConstraint(Enum):
    """What an operand or result asks of the layout in which its value is stored."""

    AS_IS = "as the graph has it"
    LAST = "channels-last"
    FOLLOW = "whatever the node's other followers have"
    FREE = "whatever the value has"


@dataclass(frozen=True, slots=True)
class NodeConstraints:
    """The sides of a node's operands and results; a result is never FREE."""

    inputs: tuple[LayoutConstraint, ...]
    outputs: tuple[LayoutConstraint, ...]


def _over_windows(row: Operator) -> bool:
    window = any(
        codec.holds is Holds.SPATIAL for codec in attribute_codecs_of(row.attributes).values()
    )
    return (window and not row.by_steps) or row in GLOBAL_POOLS or row is RESIZE


WINDOWS = frozenset(row for row in OPERATORS if _over_windows(row))
"""Operators over windows: where channels-last is asked for, it is for them."""

_CHANNELS = frozenset(
    (INSTANCE_NORMALIZATION, GROUP_NORMALIZATION, BATCH_NORMALIZATION, DEPTH_TO_SPACE,
     SPACE_TO_DEPTH)
)  # fmt: skip
_ALONG = frozenset((CONCAT, SLICE, SPLIT, PAD, TILE, IDENTITY))
_CONVERTED = (Flow.CONVERT, Flow.REINTERPRET)


def constraints(node: Node, ranks: Collection[int], fixed: Collection[Operator]) -> NodeConstraints:
    """Returns the sides of a node.

    Args:
        node: Any node.
        ranks: Ranks of the values that may be stored channels-last.
        fixed: Operators whose host form is channels-first only.
    """
    result = node.output
    if node.op in fixed:
        return _all(node, LayoutConstraint.AS_IS)
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(node, ranks)
    if node.op in WINDOWS or node.op in _CHANNELS:
        side = LayoutConstraint.LAST if node.op in WINDOWS else LayoutConstraint.FOLLOW
        side = side if result.rank in ranks else LayoutConstraint.AS_IS
        return NodeConstraints(
            (side, *map(_weight_layout, node.inputs[1:])), _repeat_for_outputs(node, side)
        )
    if node.op in _ALONG or node.op.flow in _CONVERTED:
        return _all(node, LayoutConstraint.FOLLOW)
    if node.op.flow is Flow.ELEMENTWISE or node.op is CAST:
        return _elementwise(node)
    return _all(node, LayoutConstraint.AS_IS)


def _weight_layout(value: Value | None) -> LayoutConstraint:
    """A weight that is computed has its own axes; a constant is laid out as the call wants it."""
    return LayoutConstraint.FREE if value is None or value.is_constant else LayoutConstraint.AS_IS


def _repeat_for_outputs(node: Node, side: LayoutConstraint) -> tuple[LayoutConstraint, ...]:
    return (side,) * len(node.outputs)


def _all(node: Node, side: LayoutConstraint) -> NodeConstraints:
    return NodeConstraints((side,) * len(node.inputs), _repeat_for_outputs(node, side))


def _elementwise(node: Node) -> NodeConstraints:
    """Follows where every operand has all axes, or is a constant that can be given them."""
    rank = node.output.rank
    for value in node.inputs:
        if value is not None and value.rank != rank and not broadcast_constant(value):
            return _all(node, LayoutConstraint.AS_IS)
    return _all(node, LayoutConstraint.FOLLOW)


def broadcast_constant(value: Value) -> bool:
    """True for a constant that may be reshaped to more axes, and for any value of one element."""
    quant = value.quant
    plain = quant is None or quant.params.per_tensor
    return value.rank == 0 or (value.is_constant and plain)


def _reshape(node: Node, ranks: Collection[int]) -> NodeConstraints:
    """Batch and channels kept: a follower. One order of elements: a free operand or result."""
    before, after = node.operand(0), node.output
    rest = [LayoutConstraint.FREE] * (len(node.inputs) - 1)
    # A target says one extent with -1 at most.
    if after.type.shape is None or sum(isinstance(e, str) for e in after.type.shape) > 1:
        return NodeConstraints((LayoutConstraint.AS_IS, *rest), (LayoutConstraint.AS_IS,))
    # Batch and channels stay what they are, and the spatial elements keep their order, whether
    # channels lie before or behind them.
    if before.rank in ranks and after.rank in ranks and _keeps_channels(before, after):
        return NodeConstraints((LayoutConstraint.FOLLOW, *rest), (LayoutConstraint.FOLLOW,))
    taken = (
        LayoutConstraint.FREE
        if before.rank in ranks and unmoved(before)
        else LayoutConstraint.AS_IS
    )
    given = (
        LayoutConstraint.FOLLOW
        if after.rank in ranks and unmoved(after)
        else LayoutConstraint.AS_IS
    )
    return NodeConstraints((taken, *rest), (given,))


def _keeps_channels(before: Value, after: Value) -> bool:
    """True where a reshape splits or joins spatial axes only; one symbolic batch stays itself."""
    a, b = before.type.shape, after.type.shape
    rest = static_shape(a and a[1:]), static_shape(b and b[1:])
    if a is None or b is None or rest[0] is None or rest[1] is None:
        return False
    return rest[0][0] == rest[1][0] and math.prod(rest[0]) == math.prod(rest[1])


def _transpose(node: Node, attributes: TransposeAttrs, ranks: Collection[int]) -> NodeConstraints:
    """A change of layout written as a node is none where the values are stored so."""
    rank = node.output.rank
    if rank is not None and rank in ranks:
        if attributes.perm == channels_last(rank):
            return NodeConstraints((LayoutConstraint.LAST,), (LayoutConstraint.AS_IS,))
        if attributes.perm == channels_first(rank):
            return NodeConstraints((LayoutConstraint.AS_IS,), (LayoutConstraint.LAST,))
    return _all(node, LayoutConstraint.AS_IS)


def _dropping(node: Node, axes: Collection[int], ranks: Collection[int]) -> NodeConstraints:
    """An operator after which the axes that are left lie as before, or channels-last again."""
    rank, left = node.operand(0).rank, node.output.rank
    if rank is None or rank not in ranks or left is None:
        return _all(node, LayoutConstraint.AS_IS)
    kept = [axis for axis in channels_last(rank) if axis not in axes]
    order = tuple(sorted(kept).index(axis) for axis in kept)
    rest = [LayoutConstraint.FREE] * (len(node.inputs) - 1)
    # What is left lies in one order in both layouts, so that either operand will do.
    if order == tuple(range(left)):
        return NodeConstraints((LayoutConstraint.FREE, *rest), (LayoutConstraint.AS_IS,))
    if left in ranks and order == channels_last(left):
        return NodeConstraints((LayoutConstraint.FOLLOW, *rest), (LayoutConstraint.FOLLOW,))
    return _all(node, LayoutConstraint.AS_IS)


def _reduce(node: Node, attributes: ReduceAttrs, ranks: Collection[int]) -> NodeConstraints:
    if attributes.keepdims:
        return _all(node, LayoutConstraint.FOLLOW)
    return _dropping(node, attributes.axes, ranks)


def _squeeze(node: Node, attributes: AxesAttrs, ranks: Collection[int]) -> NodeConstraints:
    return _dropping(node, attributes.axes, ranks)


def _softmax(node: Node, attributes: SoftmaxAttrs, ranks: Collection[int]) -> NodeConstraints:
    del ranks
    return _all(
        node,
        LayoutConstraint.FOLLOW if len(attributes.axes) == 1 else LayoutConstraint.AS_IS,
    )


def _gather(node: Node, ranks: Collection[int]) -> NodeConstraints:
    del ranks
    side = LayoutConstraint.FOLLOW if node.operand(1).rank == 1 else LayoutConstraint.AS_IS
    return NodeConstraints((side, LayoutConstraint.FREE), (side,))


def _expand(node: Node, attributes: ExpandAttrs, ranks: Collection[int]) -> NodeConstraints:
    shape, rank = attributes.shape, node.operand(0).rank
    whole = shape is not None and rank in ranks and rank == len(shape)
    return _all(node, LayoutConstraint.FOLLOW if whole else LayoutConstraint.AS_IS)


def _plain_rows(record: type[AnyAttributes]) -> list[Row[AnyAttributes]]:
    """Returns the operators that hosts compute in any layout, not by the steps of a body."""
    found = (row for row in OPERATORS if row.attributes is record and not row.by_steps)
    return [cast("Row[AnyAttributes]", row) for row in found]


_RULES: Mapping[Operator, Callable[[Node, Collection[int]], NodeConstraints]] = {
    RESHAPE: _reshape,
    FLATTEN: _reshape,
    UNSQUEEZE: _reshape,
    GATHER: _gather,
    **dict((typed(SQUEEZE, _squeeze), typed(TRANSPOSE, _transpose), typed(EXPAND, _expand))),
    **dict(typed(row, _reduce) for row in _plain_rows(ReduceAttrs)),
    **dict(typed(row, _softmax) for row in _plain_rows(SoftmaxAttrs)),
}


# ---- the minimum cut of a network by Dinic's algorithm (Soviet Math. Dokl. 11, 1970) -------------

SOURCE, SINK = 0, 1
INFINITE = 1 << 60


class Network:
    """Numbered nodes with directed edges of integer capacity; 0 is the source, 1 the sink."""

    def __init__(self) -> None:
        self._leaving: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """Adds a node; returns its number."""
        self._leaving.append([])
        return len(self._leaving) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge."""
        # Each edge beside its reverse, by which flow can be taken back: ``edge ^ 1`` is the other
        # one.
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._leaving[start].append(len(self._to))
            self._to.append(end)
            self._room.append(room)

    def source_side(self) -> list[bool]:
        """Returns for every node whether the smallest minimum cut leaves it with the source."""
        while True:
            level = self._levels()
            if level[SINK] < 0:
                return [depth >= 0 for depth in level]
            self._fill(level)

    def _levels(self) -> list[int]:
        """Returns the distance from the source over edges with room; -1 out of reach."""
        level = [-1] * len(self._leaving)
        level[SOURCE] = 0
        queue = [SOURCE]
        for node in queue:
            for edge in self._leaving[node]:
                if self._room[edge] and level[self._to[edge]] < 0:
                    level[self._to[edge]] = level[node] + 1
                    queue.append(self._to[edge])
        return level

    def _fill(self, level: list[int]) -> None:
        """Sends flow along shortest paths until each of them has a full edge."""
        tried = [0] * len(self._leaving)
        path: list[int] = []
        at = SOURCE
        while True:
            if at == SINK:
                path = self._push(path)
                at = self._to[path[-1]] if path else SOURCE
                continue
            edge = self._next(at, level, tried)
            if edge is not None:
                path.append(edge)
                at = self._to[edge]
            elif path:
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
            else:
                return

    def _next(self, at: int, level: list[int], tried: list[int]) -> int | None:
        edges = self._leaving[at]
        while tried[at] < len(edges):
            edge = edges[tried[at]]
            if self._room[edge] and level[self._to[edge]] == level[at] + 1:
                return edge
            tried[at] += 1
        return None

    def _push(self, path: list[int]) -> list[int]:
        """Sends what fits; returns the path up to its first edge that is full now."""
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return path[: next(i for i, edge in enumerate(path) if not self._room[edge])]


_TRANSPOSE = 1 << 10
"""Cost of a transpose; its element size decides between equally many, a reshape costs 1."""


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """In which layout every value and node is stored.

    Attributes:
        values: The values whose results are stored channels-last.
        nodes: For each node, whether its operands are taken channels-last and whether its results
            are given so; a node whose operands may have any layout has them as their value does.
        transposes: Values that are needed in the layout that they are not stored in; converting
            one of them is a transpose, or a reshape where no element moves.
    """

    values: frozenset[Value]
    nodes: dict[Node, tuple[tuple[bool, ...], bool]]
    transposes: tuple[Value, ...]

    def permutation(self, value: Value) -> tuple[int, ...] | None:
        """Returns the permutation in which a value is stored; None as the graph has it."""
        if value not in self.values or value.rank is None:
            return None
        return channels_last(value.rank)


def plan(
    graph: Graph,
    channels_last: bool = True,
    *,
    ranks: Collection[int] = (3, 4),
    fixed: Collection[Operator] = (),
) -> LayoutPlan:
    """Returns the plan with the fewest transposes under which window operators are channels-last.

    Transposes that the graph has itself vanish where values are stored so; a graph without a
    window operator stays as it is unless it loses some. The time is linear in the nodes for graphs
    whose regions between window operators are small.

    Args:
        graph: A canonical graph.
        channels_last: False to carry everything as it is.
        ranks: Ranks of the values that may be stored channels-last; axis 1 is their channel.
        fixed: Operators whose host form is channels-first only.
    """
    if channels_last:
        found = _LayoutPlanner(graph.nodes, ranks, fixed).plan(graph.inputs, graph.outputs)
        windows = any(n.op in WINDOWS and n.output.rank in ranks for n in graph.nodes)
        # Without a window nothing gains from channels-last, unless more transposes go than come.
        if windows or len(found.transposes) < _vanishing(found):
            return found
    alone = {node: ((False,) * len(node.inputs), False) for node in graph.nodes}
    return LayoutPlan(frozenset(), alone, ())


def _vanishing(plan: LayoutPlan) -> int:
    """Returns how many transposes of the graph are none under the plan."""
    nodes = plan.nodes.items()
    return sum(n.op is TRANSPOSE and taken[0] != given for n, (taken, given) in nodes)


class _LayoutPlanner:
    def __init__(
        self, nodes: Sequence[Node], ranks: Collection[int], fixed: Collection[Operator]
    ) -> None:
        self.nodes, self.ranks = nodes, ranks
        self.constraints: dict[Node, NodeConstraints] = {
            n: constraints(n, ranks, fixed) for n in nodes
        }
        self.network = Network()
        self.followers: dict[Node, int] = {}

    def plan(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> LayoutPlan:
        readers = self._readers(inputs, outputs)
        for value, places in readers.items():
            self._connect(value, self._producer(value), places)
        near = self.network.source_side()
        values = frozenset(v for v in readers if not near[self._producer(v)])
        moved = [
            v
            for v, places in readers.items()
            if len({near[p] for p in places} | {near[self._producer(v)]}) > 1
        ]
        return LayoutPlan(
            values, {n: self._node(n, near, values) for n in self.nodes}, tuple(moved)
        )

    def _readers(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> dict[Value, list[int]]:
        """Returns the network nodes that read each value with a layout."""
        found: dict[Value, list[int]] = {}
        for value in inputs:
            if value.rank in self.ranks:
                found[value] = []
        for node in self.nodes:
            for value, side in zip(node.inputs, self.constraints[node].inputs, strict=True):
                if (
                    value is not None
                    and side is not LayoutConstraint.FREE
                    and self._laid_out(value)
                ):
                    found.setdefault(value, []).append(self._place(node, side))
            found.update({v: [] for v in node.outputs if self._laid_out(v)})
        for value in outputs:
            if self._laid_out(value):
                found[value].append(SOURCE)
        return found

    def _laid_out(self, value: Value) -> bool:
        return value.rank in self.ranks and not value.is_constant

    def _producer(self, value: Value) -> int:
        node = value.producer
        # Inputs are fed as the file has them.
        return SOURCE if node is None else self._place(node, self.constraints[node].outputs[0])

    def _place(self, node: Node, side: LayoutConstraint) -> int:
        # SOURCE and SINK are the two layouts; the cut between them is the fewest transposes.
        if side is LayoutConstraint.AS_IS or node.output.rank not in self.ranks:
            return SOURCE
        if side is LayoutConstraint.LAST:
            return SINK
        if node not in self.followers:
            self.followers[node] = self.network.node()
        return self.followers[node]

    def _connect(self, value: Value, producer: int, places: list[int]) -> None:
        """One conversion serves all readers of the other layout."""
        # Equally many transposes: rather of bytes than of floats.
        cost = 1 if unmoved(value) else _TRANSPOSE + value.type.dtype.bits
        others = {place for place in places if place != producer}
        if not others:
            return
        there, back = self.network.node(), self.network.node()
        self.network.edge(producer, there, cost)
        self.network.edge(back, producer, cost)
        for place in others:
            self.network.edge(there, place, INFINITE)
            self.network.edge(place, back, INFINITE)

    def _node(
        self, node: Node, near: list[bool], values: frozenset[Value]
    ) -> tuple[tuple[bool, ...], bool]:
        own = self.constraints[node]
        taken = tuple(
            value in values
            if side is LayoutConstraint.FREE and value is not None
            else not near[self._place(node, side)]
            if side is not LayoutConstraint.FREE
            else False
            for value, side in zip(node.inputs, own.inputs, strict=True)
        )
        return taken, not near[self._place(node, own.outputs[0])]


_SPREAD = frozenset((RESHAPE, FLATTEN, UNSQUEEZE))


@dataclass(frozen=True, slots=True)
class ConvertedGraph:
    """A graph as a host computes it; its interface is the original's.

    Attributes:
        graph: Values have the shapes in which they are stored; attributes name those axes.
        channels_last: Nodes whose data operand and results are channels-last. Weights of
            convolutions among their operands are as the original graph has them.
        transposes: Number of transposes that the plan put in (reshapes not counted).
        sources: What each node does, as a node of the file's would: the node itself, or the
            original where its attributes could not be kept; and whether its operands and results
            are channels-last (None where it is as it was). Conversions of layouts have no entry.
        to_last: The conversions whose result is channels-last.
    """

    graph: Graph
    channels_last: frozenset[Node]
    transposes: int
    sources: Mapping[Node, tuple[Node, tuple[bool, bool] | None]]
    to_last: frozenset[Node] = frozenset()


def apply_layout(graph: Graph, plan: LayoutPlan) -> ConvertedGraph:
    """Returns ``graph`` with ``plan`` carried out; the graph itself where the plan is empty."""
    if not plan.values and not any(given or any(taken) for taken, given in plan.nodes.values()):
        return ConvertedGraph(graph, frozenset(), 0, {node: (node, None) for node in graph.nodes})
    return _Converter(plan).run(graph)


class _Converter:
    def __init__(self, plan: LayoutPlan) -> None:
        self.plan = plan
        self.nodes: list[Node] = []
        self.last: set[Node] = set()
        self.to_last: set[Node] = set()
        self.sources: dict[Node, tuple[Node, tuple[bool, bool] | None]] = {}
        self.count = 0
        self.found: dict[tuple[Value, bool], Value] = {}

    def run(self, old: Graph) -> ConvertedGraph:
        inputs = [Value(v.type, v.name) for v in old.inputs]
        self.found.update({(v, False): new for v, new in zip(old.inputs, inputs, strict=True)})
        for node in old.nodes:
            self._node(node)
        outputs = [self._as(value, last=False) for value in old.outputs]
        graph = Graph(
            inputs,
            outputs,
            list(old.output_names),
            self.nodes,
            old.name,
            dict(old.metadata),
            old.opset,
        )
        last, to_last = frozenset(self.last), frozenset(self.to_last)
        return ConvertedGraph(graph, last, self.count, self.sources, to_last)

    def _node(self, node: Node) -> None:
        taken, given = self.plan.nodes[node]
        if node.op is TRANSPOSE and taken[0] != given:
            # The layouts differ by just this permutation: the result is the operand.
            self.found[node.output, given] = self._as(node.operand(0), last=taken[0])
            return
        outputs = [self._result(value, given) for value in node.outputs]
        first = bool(taken) and taken[0]
        layout = (first, given) if first or given else None
        if node.op in _SPREAD and layout is not None:
            new = self._add(
                Node(
                    RESHAPE,
                    _reshape_attrs_of(outputs[0]),
                    [self._as(node.operand(0), last=taken[0])],
                    outputs,
                    node.origin,
                )
            )
            self.sources[new] = node, layout
            return
        inputs = [
            None if v is None else self._operand(node, v, last=taken[i])
            for i, v in enumerate(node.inputs)
        ]
        rank = node.operand(0).rank if first else None
        attributes = node.attributes
        if rank is not None:
            attributes = permuted_attributes(attributes, channels_last(rank))
        new = self._add(Node(node.op, attributes, inputs, outputs, node.origin))
        self.sources[new] = new, layout
        if layout is not None:
            self.last.add(new)
            # What it says of itself has the constants of the file, before they got more axes.
            results = [Value(value.type, value.name) for value in outputs]
            self.sources[new] = Node(node.op, attributes, node.inputs, results, node.origin), layout

    def _add(self, node: Node) -> Node:
        link(node)
        self.nodes.append(node)
        return node

    def _result(self, value: Value, last: bool) -> Value:
        new = Value(_moved(value.type, value.rank) if last else value.type, value.name)
        new.metadata = value.metadata
        self.found[value, last] = new
        return new

    def _operand(self, node: Node, value: Value, *, last: bool) -> Value:
        rank = node.output.rank
        if (
            last
            and rank is not None
            and value.rank not in (0, rank)
            and (broadcast_constant(value) and value.constant is not None and node.op is not CONCAT)
        ):
            return permuted_constant(widened(value, rank), channels_last(rank))
        return self._as(value, last=last and value.rank != 0)

    def _as(self, value: Value, *, last: bool) -> Value:
        """Returns a value in a layout; converts it the first time it is asked for."""
        known = self.found.get((value, last))
        if known is None and value.constant is not None:
            turn = channels_last(value.rank or 0)
            known = permuted_constant(value, turn) if last else value
        if known is None:
            known = self._converted(value, self.found[value, not last], last=last)
        self.found[value, last] = known
        return known

    def _converted(self, value: Value, source: Value, *, last: bool) -> Value:
        assert value.rank is not None
        result = Value(_moved(value.type, value.rank) if last else value.type, value.name)
        if unmoved(value) and _static(result.type.shape):
            node = Node(RESHAPE, _reshape_attrs_of(result), [source], [result])
        else:
            turn = channels_last if last else channels_first
            attributes = TransposeAttrs(turn(value.rank))
            node = Node(TRANSPOSE, attributes, [source], [result])
            self.count += 1
        self._add(node)
        if last:
            self.to_last.add(node)
        return result


def _static(shape: Shape) -> bool:
    if shape is None:
        return False
    symbols = sum(isinstance(extent, str) for extent in shape)
    return symbols == 0 or (symbols == 1 and 0 not in shape)  # of (-1, 0) nobody could tell the -1


def _reshape_attrs_of(value: Value) -> ReshapeAttrs:
    assert value.type.shape is not None
    extents = tuple(-1 if isinstance(e, str) else e for e in value.type.shape)
    return ReshapeAttrs(extents, allow_zero=0 in extents)


def _moved(type_: ValueType, rank: int | None) -> ValueType:
    """Returns the type of a value that is stored channels-last."""
    return type_ if rank is None else permuted_type(type_, channels_last(rank))
