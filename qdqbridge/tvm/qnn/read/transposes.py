"""Transposes that stand for a layout, moved to where the fewest of them are left.

A channels-last call is read as a channels-first node between two transposes, and what computes in
any layout lies between such nodes. Which of those nodes become channels-first too is a minimum
cut: every value whose producer and readers disagree costs one transpose. It undoes
:mod:`qdqbridge.core.layout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from qdqbridge.core.graph.attribute_codecs import permuted_attributes
from qdqbridge.core.graph.edit import Editor, link, unlink
from qdqbridge.core.graph.graph import NO_ORIGIN, Graph, Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.layout import (
    INFINITE,
    SINK,
    SOURCE,
    WINDOWS,
    LayoutConstraint,
    Network,
    broadcast_constant,
    channels_first,
    channels_last,
    constraints,
    unmoved,
)
from qdqbridge.core.ops.attributes import ReduceAttrs, ReshapeAttrs, TransposeAttrs
from qdqbridge.core.ops.build import permuted_constant, permuted_shape, permuted_type, widened
from qdqbridge.core.ops.data_movement import (
    DEPTH_TO_SPACE,
    FLATTEN,
    RESHAPE,
    SPACE_TO_DEPTH,
    SQUEEZE,
    TRANSPOSE,
    UNSQUEEZE,
)
from qdqbridge.core.ops.normalization import OVER_CHANNELS
from qdqbridge.core.ops.pooling import GLOBAL_AVERAGE_POOL
from qdqbridge.core.ops.reduction import REDUCE_MEAN
from qdqbridge.core.ops.resize import RESIZE
from qdqbridge.core.rewrite import Proposal, Replace, RuleContext, replaced, rule, run
from qdqbridge.tvm.qnn.read.reader import (
    AS_WRITTEN,
    CONVERTED,
    TO_FIRST,
    TO_LAST,
    WITHOUT_PROVENANCE,
)

_RANKS = (3, 4, 5)
_NATIVE = frozenset(
    (*OVER_CHANNELS, DEPTH_TO_SPACE, SPACE_TO_DEPTH, RESHAPE, FLATTEN, UNSQUEEZE, SQUEEZE,
     TRANSPOSE)
)  # fmt: skip
"""Operators whose graph nodes have one layout."""


class ChannelLayout(IntEnum):
    """Where the channels of a value lie; the numbers are the two sides of the cut."""

    LAST = SOURCE
    FIRST = SINK


def cancel(graph: Graph, ranks: Mapping[Value, int] = MappingProxyType({})) -> None:
    """Rewrites ``graph`` in place with the fewest transposes that stand for a layout.

    Those are the ones that come from no operator of the file that a module was made of, and in a
    module with channels-last calls also those of which nobody says where they come from. Spans that
    say which nodes an emitter had made channels-last decide for these, and for those beside them.

    Args:
        ranks: How many axes constants of channels-last nodes had before they got more.
    """
    # Without one of these no call of the module was channels-last, and transposes are the model's
    # own.
    if any(_layout_move(node) or node.origin.variant == CONVERTED for node in graph.nodes):
        for node in graph.nodes:
            if node.origin.variant == WITHOUT_PROVENANCE:
                node.origin = NO_ORIGIN
        run(graph, BEFORE_THE_CUT)
        _Cancelling(graph, ranks).run()
        run(graph, BEHIND_THE_CUT)
    for node in graph.nodes:
        if node.origin.variant in (WITHOUT_PROVENANCE, CONVERTED, AS_WRITTEN, TO_FIRST, TO_LAST):
            node.origin = replace(node.origin, variant="")


def _layout_move(node: Node) -> tuple[ChannelLayout, ChannelLayout] | None:
    """Returns from which layout into which a transpose that stands for one goes."""
    attributes = node.attributes
    if not isinstance(attributes, TransposeAttrs) or not _nobodys(node):
        return None
    rank = len(attributes.perm)
    if rank not in _RANKS:
        return None
    # Of rank 3 both permutations are (0, 2, 1): what stands before the node tells them apart.
    if attributes.perm == channels_first(rank) and not _starts_last(node):
        return ChannelLayout.LAST, ChannelLayout.FIRST
    return (
        (ChannelLayout.FIRST, ChannelLayout.LAST)
        if attributes.perm == channels_last(rank)
        else None
    )


def _nobodys(node: Node) -> bool:
    """True for a node that comes from no operator of a file."""
    return node.origin == NO_ORIGIN or node.origin.variant in (TO_FIRST, TO_LAST)


def _starts_last(node: Node) -> bool:
    """True where a transpose that is its own inverse (rank 3) leads to channels-last."""
    if len(node.output.type.shape or ()) != 3 or node.origin.variant == TO_FIRST:
        return False
    before = node.operand(0).producer
    return node.origin.variant == TO_LAST or (before is not None and before.op in WINDOWS)


@rule("reshape-as-transpose", RESHAPE)
def reshape_as_transpose(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(x) -> Transpose(x)`` where no element moves: emitters write either."""
    del context
    before, after = node.operand(0), node.output
    rank = before.rank
    if not _nobodys(node) or rank not in _RANKS or after.rank != rank:
        return None
    if before.type.shape == after.type.shape:
        return None
    ways = ((channels_last, before), (channels_first, after))
    for turn, channels in ways[::-1] if node.origin.variant == TO_FIRST else ways:
        wanted = permuted_shape(before.type.shape, turn(rank))
        if wanted == after.type.shape and unmoved(channels):
            return replaced(node, TRANSPOSE, TransposeAttrs(turn(rank)), [before])
    return None


# ---- which nodes can have either layout --------------------------------------------------------


def _follows(node: Node) -> bool:
    """True where the node computes the same in either layout, its axes renamed."""
    if node.op in _NATIVE and not _drops(node):
        return False
    if _drops(node):
        return True
    rank = node.output.rank
    if rank not in _RANKS or not node.inputs:
        return False
    taken = [s for v, s in zip(node.inputs, _asked(node), strict=True) if v is not None]
    return LayoutConstraint.FOLLOW in taken and all(
        s in (LayoutConstraint.FOLLOW, LayoutConstraint.FREE) for s in taken
    )


def _asked(node: Node) -> tuple[LayoutConstraint, ...]:
    """Returns the sides of a node's operands; a Resize has its axes in its attributes."""
    asked = constraints(node, _RANKS, ()).inputs
    return (LayoutConstraint.FOLLOW, *asked[1:]) if node.op is RESIZE else asked


def _drops(node: Node) -> bool:
    """True for a reduction without the reduced axes whose other axes keep their order."""
    attributes, rank = node.attributes, node.operand(0).rank if node.inputs else None
    if rank not in _RANKS:
        return False
    reduces = isinstance(attributes, ReduceAttrs) and not attributes.keepdims
    gone: tuple[int, ...] | None = None
    if reduces or node.op is SQUEEZE:
        gone = getattr(attributes, "axes", None)
    if gone is None:
        return False
    moved = [channels_first(rank).index(axis) for axis in range(rank) if axis not in gone]
    return moved == sorted(moved)


def _followed(node: Node) -> list[Value]:
    """Returns the operands that have the layout of the node (constants are in any)."""
    rank = node.operand(0).rank if _drops(node) else node.output.rank
    free = [LayoutConstraint.FOLLOW] if _drops(node) else _asked(node)
    pairs = zip(node.inputs, free, strict=False)
    return [
        v for v, s in pairs
        if v is not None and s is LayoutConstraint.FOLLOW and v.rank == rank and not v.is_constant
    ]  # fmt: skip


def _given(node: Node) -> list[Value]:
    return [] if _drops(node) else [v for v in node.outputs if v.rank == node.output.rank]


# ---- the cut -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Use:
    """One reader of a tensor (None: the graph's output), and the layout that it reads."""

    node: Node | None
    layout: ChannelLayout


class _Cancelling:
    def __init__(self, graph: Graph, ranks: Mapping[Value, int]) -> None:
        self.graph, self.ranks = graph, ranks
        self.moves = {n: m for n in graph.nodes if (m := _layout_move(n)) is not None}
        self.followers = {n for n in graph.nodes if n not in self.moves and _follows(n)}
        self.labels = self._labels()
        self.network = Network()
        self.places: dict[Node, int] = {}
        self.flipped: set[Node] = set()
        self.made: dict[tuple[Value, ChannelLayout], Value] = {}

    def run(self) -> None:
        for value in self._tensors():
            self._connect(value)
        near = self.network.source_side()
        self.flipped = {node for node, place in self.places.items() if not near[place]}
        self._rebuild()

    # ---- layouts as the module has them

    def _labels(self) -> dict[Value, ChannelLayout]:
        """Returns the layout of every value that a transpose, or its neighbours, tell."""
        found: dict[Value, ChannelLayout] = {}
        pending: list[tuple[Value, ChannelLayout]] = []
        for node, (before, after) in self.moves.items():
            pending += [(node.operand(0), before), (node.output, after)]
        while pending:
            value, layout = pending.pop()
            if value in found:
                continue
            found[value] = layout
            near = [node for node, _ in value.users]
            near += [value.producer] if value.producer is not None else []
            for node in near:
                if node in self.followers:
                    around = [*_followed(node), *_given(node)]
                    if value in around:
                        pending += [(v, layout) for v in around]
        return found

    def _root(self, value: Value) -> Value:
        while value.producer in self.moves:
            value = value.producer.operand(0)
        return value

    def _tensors(self) -> list[Value]:
        """Returns the labelled values that are no result of a layout's transpose."""
        return [v for v in self.labels if v.producer not in self.moves and not v.is_constant]

    def _uses(self, value: Value) -> list[_Use]:
        """Returns who reads a tensor, directly or behind transposes, and in which layout."""
        found: list[_Use] = []
        for node in dict.fromkeys(node for node, _ in value.users):
            if node in self.moves:
                found += self._uses(node.output)
            else:
                found.append(_Use(node, self.labels[value]))
        if value in self.graph.outputs:
            found.append(_Use(None, self.labels[value]))
        return found

    def _place(self, node: Node | None, layout: ChannelLayout, value: Value) -> int:
        """Returns the network's node of a producer or reader of ``value``."""
        free = node in self.followers and layout is ChannelLayout.LAST
        free = free and node is not None and node.origin.variant != AS_WRITTEN
        if node is None or not free or value not in (*_followed(node), *_given(node)):
            return int(layout)
        if node not in self.places:
            self.places[node] = self.network.node()
            # The span says that an emitter made it channels-last, so that the file had it the other
            # way.
            if node.origin.variant == CONVERTED:
                self.network.edge(self.places[node], SINK, INFINITE)
        return self.places[node]

    def _connect(self, value: Value) -> None:
        producer = self._place(value.producer, self.labels[value], value)
        readers = {self._place(use.node, use.layout, self._read(use, value))
                   for use in self._uses(value)} - {producer}  # fmt: skip
        if not readers:
            return
        # However many readers disagree with the producer, they share one transpose: each edge of 1
        # is cut at most once, and no edge to a reader is.
        there, back = self.network.node(), self.network.node()
        self.network.edge(producer, there, 1)
        self.network.edge(back, producer, 1)
        for place in readers:
            self.network.edge(there, place, INFINITE)
            self.network.edge(place, back, INFINITE)

    def _read(self, use: _Use, value: Value) -> Value:
        """Returns the operand of a reader that is ``value`` or a transpose of it."""
        operands = [] if use.node is None else [v for v in use.node.inputs if v is not None]
        return next((v for v in operands if v is value or self._root(v) is value), value)

    # ---- the graph

    def _rebuild(self) -> None:
        for node in list(self.graph.nodes):
            if node in self.moves:
                continue
            flip = node in self.flipped
            followed = _followed(node) if flip else []
            operands = [
                self._operand(node, v, flip=flip and (v in followed or v is not None))
                for v in node.inputs
            ]
            if flip:
                self._replace(node, operands)
                continue
            for old, new in zip(list(node.inputs), operands, strict=True):
                if old is not new:
                    unlink(node)
                    node.inputs[:] = operands
                    link(node)
                    break
        outputs = [
            self._in(v, self.labels[v]) if v in self.labels else v for v in self.graph.outputs
        ]
        self.graph.outputs[:] = outputs
        Editor(self.graph).finish()

    def _operand(self, node: Node, value: Value | None, *, flip: bool) -> Value | None:
        if value is None:
            return None
        if flip and value in _followed(node):
            return self._in(value, ChannelLayout.FIRST)
        if flip and value.is_constant and value.rank:
            rank = node.output.rank or 0
            return _first(value, rank, self.ranks.get(value, rank))
        return self._in(value, self.labels[value]) if value in self.labels else value

    def _in(self, value: Value, layout: ChannelLayout) -> Value:
        """Returns a tensor in a layout; makes the transpose the first time it is asked for."""
        root = self._root(value)
        have = self.labels[root]
        if root.producer in self.flipped and root in _given(root.producer):
            have = ChannelLayout.FIRST
        if have is layout:
            return self.made.get((root, have), root)
        if (root, layout) not in self.made:
            source = self.made.get((root, have), root)
            rank = root.rank or 0
            perm = channels_first(rank) if layout is ChannelLayout.FIRST else channels_last(rank)
            permuted = Value(permuted_type(source.type, perm), root.name)
            link(Node(TRANSPOSE, TransposeAttrs(perm), [source], [permuted]))
            self.made[root, layout] = permuted
        return self.made[root, layout]

    def _replace(self, node: Node, operands: list[Value | None]) -> None:
        """Makes the channels-first form of a node."""
        rank = (node.operand(0) if _drops(node) else node.output).rank or 0
        given = _given(node)
        outputs: list[Value] = []
        for value in node.outputs:
            first = value in given
            type_ = permuted_type(value.type, channels_first(rank)) if first else value.type
            new = Value(type_, value.name)
            if first:
                self.made[value, ChannelLayout.FIRST] = new
            outputs.append(new)
        unlink(node)
        op, attributes = node.op, permuted_attributes(node.attributes, channels_first(rank))
        # Channels-first it covers all of space, which the canonical form calls a pool; a node that
        # was converted from a file's own is already what the file says.
        mean = op is REDUCE_MEAN and node.origin.variant != CONVERTED
        if mean and attributes == ReduceAttrs(tuple(range(2, rank))):
            op, attributes = GLOBAL_AVERAGE_POOL, NO_ATTRIBUTES
        made = Node(op, attributes, operands, outputs, node.origin)
        link(made)
        # Without the reduced axes it has no layout left: its readers read the new result as it is.
        if not given:
            editor = Editor(self.graph)
            for old, new in zip(node.outputs, outputs, strict=True):
                editor.replace_value(old, new)


def _first(value: Value, rank: int, axes: int) -> Value:
    """Returns a constant operand of a node whose operands are channels-first now.

    Args:
        value: The constant.
        rank: Rank of the node.
        axes: How many axes the constant shall have, if those in front have extent 1.
    """
    permuted = permuted_constant(widened(value, rank), channels_first(rank))
    data = permuted.constant
    assert data is not None
    if not broadcast_constant(value) or any(extent != 1 for extent in data.shape[: rank - axes]):
        return permuted
    shape = data.shape[rank - axes :]
    narrow = data.map(lambda array: array.reshape(shape), shape=shape)
    return Value(permuted.type.with_shape(shape), value.name, constant=narrow)


@rule("reshape-of-what-stays", RESHAPE, FLATTEN)
def reshape_of_unmoved(node: Node, context: RuleContext) -> Proposal:
    """``Reshape(Transpose(x)) -> Reshape(x)`` where the transpose moves no element."""
    del context
    turn = node.operand(0).producer
    move = None if turn is None else _layout_move(turn)
    if turn is None or move is None:
        return None
    first = turn.operand(0) if move[0] is ChannelLayout.FIRST else turn.output
    if not unmoved(first) or not _same_target(node):
        return None
    return Replace(operands={(node, 0): turn.operand(0)})


def _same_target(node: Node) -> bool:
    """True where the target does not copy extents of axes that a transpose renames."""
    attributes = node.attributes
    if isinstance(attributes, ReshapeAttrs):
        # A 0 copies the extent of the axis in its place, and places differ in front of the
        # transpose; the batch is axis 0 in both layouts.
        return attributes.shape is not None and 0 not in attributes.shape[1:]
    return node.attributes == type(node.attributes)(1)  # type: ignore[call-arg]


BEFORE_THE_CUT, BEHIND_THE_CUT = (reshape_as_transpose,), (reshape_of_unmoved,)
