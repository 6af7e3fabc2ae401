"""Extents that operators want to be equal, and a graph in which they are one.

A file may give several names to an extent, or a name to one that a weight decides. An engine that
compiles loops has to know, or it would read past the end of an operand that is fed otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqbridge.graph.copying import with_each_extent
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.types import Dim, Shape
from qdqbridge.ops.attributes import AxisAttrs, ConvAttrs, ConvTransposeAttrs, GemmAttrs, NormAttrs
from qdqbridge.ops.elementwise import CONCAT
from qdqbridge.ops.matmul import DENSE, MATMUL
from qdqbridge.ops.normalization import (
    BATCH_NORMALIZATION,
    GROUP_NORMALIZATION,
    INSTANCE_NORMALIZATION,
)

Pair = tuple["Dim | None", "Dim | None"]
_PER_CHANNEL = (BATCH_NORMALIZATION, INSTANCE_NORMALIZATION, GROUP_NORMALIZATION)


def agreed(graph: Graph) -> Graph:
    """Returns a graph in which extents that must be equal have one name, or are a number.

    Inputs are checked against these, so that what is fed is refused where operators could not take
    it. The graph itself is returned where nothing changes.

    Args:
        graph: The graph; it is not changed.
    """
    if not any(isinstance(d, str) for value in graph.inputs for d in value.type.shape or ()):
        return graph
    same = _EqualExtents()
    for value in graph.inputs:  # their names are the ones that stay
        for dim in value.type.shape or ():
            same.of(dim)
    for value in graph.values():
        same.join(*_channels(value))
    for node in graph.nodes:
        for pair in pairs(node):
            same.join(*pair)
    if not same.changed:
        return graph
    return with_each_extent(graph, same.of)


class _EqualExtents:
    """Sets of equal extents; the representative is a number, or the name that came first."""

    def __init__(self) -> None:
        self.changed = False
        self._next: dict[str, Dim] = {}
        self._order: dict[str, int] = {}

    def of(self, dim: Dim) -> Dim:
        """Returns the representative of an extent."""
        while isinstance(dim, str):
            self._order.setdefault(dim, len(self._order))
            if dim not in self._next:
                return dim
            dim = self._next[dim]
        return dim

    def join(self, a: Dim | None, b: Dim | None) -> None:
        """Makes two extents equal; numbers that differ are left for the run to refuse."""
        if a is None or b is None:
            return
        a, b = self.of(a), self.of(b)
        if a == b or (isinstance(a, int) and isinstance(b, int)):
            return
        if isinstance(a, int) or (isinstance(b, str) and self._order[a] < self._order[b]):
            a, b = b, a
        assert isinstance(a, str)
        self._next[a], self.changed = b, True


def pairs(node: Node) -> Iterator[Pair]:
    """Yields pairs of extents that are equal wherever the node can be computed."""
    attributes, op = node.attributes, node.op
    if isinstance(attributes, ConvAttrs):
        channels = _dim(node.operand(1), 1)
        if isinstance(channels, int):
            yield _dim(node.operand(0), 1), channels * attributes.group
    elif isinstance(attributes, ConvTransposeAttrs):
        yield _dim(node.operand(0), 1), _dim(node.operand(1), 0)
    elif isinstance(attributes, GemmAttrs):
        left, right = (0 if attributes.trans_a else 1), (1 if attributes.trans_b else 0)
        yield _dim(node.operand(0), left), _dim(node.operand(1), right)
    elif op is DENSE:
        yield _dim(node.operand(0), -1), _dim(node.operand(1), 1)
    elif op is MATMUL or op.name == "MatMulInteger":
        inner = 0 if node.operand(1).rank == 1 else -2
        yield _dim(node.operand(0), -1), _dim(node.operand(1), inner)
    elif op is CONCAT and isinstance(attributes, AxisAttrs):
        yield from _beside(node, attributes.axis)
    elif op in _PER_CHANNEL:
        for value in node.inputs[1:]:
            yield _dim(node.operand(0), 1), _dim(value, 0)
    elif isinstance(attributes, NormAttrs):
        for value in node.inputs[1:]:
            for axis in range(1, 1 + len(_shape(value))):
                extent = _dim(value, -axis)
                if isinstance(extent, int) and extent > 1:
                    yield _dim(node.operand(0), -axis), extent


def _beside(node: Node, axis: int) -> Iterator[Pair]:
    """Yields the extents of joined operands along the axes on which they are not joined."""
    first = node.operand(0)
    for value in node.inputs[1:]:
        for other in range(first.rank or 0):
            if other != axis:
                yield _dim(first, other), _dim(value, other)


def _channels(value: Value) -> Pair:
    """Returns the extent of the axis that has parameters of its own, and their number."""
    params = None if value.quant is None else value.quant.params
    if params is None or params.axis is None or params.blocked or value.type.shape is None:
        return None, None
    return value.type.shape[params.axis], int(params.scale.size)


def _shape(value: Value | None) -> tuple[Dim, ...]:
    shape: Shape = None if value is None else value.type.shape
    return shape or ()


def _dim(value: Value | None, axis: int) -> Dim | None:
    """Returns an extent; None where it is not known that there is one."""
    shape = _shape(value)
    return shape[axis] if -len(shape) <= axis < len(shape) else None
