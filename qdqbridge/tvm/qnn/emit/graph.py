"""A whole graph for a host: extents that agree, steps of products, then node by node.

What a host cannot be given is one error that lists everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from qdqbridge.core.graph.copying import copied, with_each_extent
from qdqbridge.core.graph.edit import link, unlink
from qdqbridge.core.graph.graph import Graph, Node, Value, Whole
from qdqbridge.core.graph.operator import Attributes, Flow, Operator
from qdqbridge.core.graph.types import Dim, Shape, ValueType, static_shape
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ConvAttrs,
    ConvTransposeAttrs,
    GemmAttrs,
    NormAttrs,
)
from qdqbridge.core.ops.bodies import LETTERS, body_of, folded, trimmed
from qdqbridge.core.ops.elementwise import CONCAT
from qdqbridge.core.ops.matmul import DENSE, MATMUL, is_by_steps, moved_type, no_number
from qdqbridge.core.ops.normalization import OVER_CHANNELS
from qdqbridge.errors import GraphError, UnsupportedTargetError
from qdqbridge.tvm.qnn.emit.accumulate import need_fitting_windows
from qdqbridge.tvm.qnn.emit.emitter import Expr, FunctionEmitter, reason, unsupported
from qdqbridge.tvm.qnn.emit.nodes import KNOWN, EmitOpaque, Form, in_integers

LISTED = 8
Bind = Callable[[Value, Expr], Expr]
Pair = tuple["Dim | None", "Dim | None"]


# ---- extents that operators want to be equal


def agreed(graph: Graph) -> Graph:
    """Returns a graph in which extents that must be equal have one name, or are a number.

    A file may give several names to an extent, or a name to one that a weight decides. An engine
    that compiles loops has to know, or it would read past the end of an operand that is fed
    otherwise. Inputs are checked against these, so that what is fed is refused where operators
    could not take it. The graph itself is returned where nothing changes.

    Args:
        graph: The graph; it is not changed.
    """
    if not any(isinstance(d, str) for value in graph.inputs for d in value.type.shape or ()):
        return graph
    same = _EqualExtents()
    for value in graph.inputs:  # their names are the ones that stay
        for dim in value.type.shape or ():
            same.of(dim)
    results = [value for node in graph.nodes for value in node.outputs]
    for value in (*graph.inputs, *results):
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
    elif op in OVER_CHANNELS:
        for value in node.inputs[1:]:
            yield _dim(node.operand(0), 1), _dim(value, 0)
    elif isinstance(attributes, NormAttrs):
        for value in node.inputs[1:]:
            for axis in range(1, 1 + len(_shape_or_empty(value))):
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


def _shape_or_empty(value: Value | None) -> tuple[Dim, ...]:
    shape: Shape = None if value is None else value.type.shape
    return shape or ()


def _dim(value: Value | None, axis: int) -> Dim | None:
    """Returns an extent; None where it is not known that there is one."""
    shape = _shape_or_empty(value)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


# ---- steps of products


def expanded(graph: Graph) -> Graph:
    """Returns a graph in which the steps of products that others stand for are nodes.

    Each says which operator it is a part of (``Origin.whole``), so that
    :mod:`qdqbridge.tvm.qnn.read.rules.products` can make that of them again. The graph itself is
    returned where it has none; it is not changed.
    """
    if not any(is_by_steps(node.op) for node in graph.nodes):
        return graph
    copy = copied(graph)
    nodes: list[Node] = []
    for node in copy.graph.nodes:
        nodes += _decompose_node(node) if is_by_steps(node.op) else [node]
    copy.graph.nodes = nodes
    return copy.graph


def _decompose_node(node: Node) -> list[Node]:
    """Returns the steps of a node in the place of it; the node where a type is not known."""
    shapes = tuple(
        None if v is None or v.constant is None else v.constant.shape for v in node.inputs
    )
    origin = replace(node.origin, whole=Whole(node.op.name, node.attributes, shapes))
    steps: list[Node] = []
    whole = True

    def step(row: Operator, attributes: Attributes, values: list[Value | None]) -> Value | None:
        nonlocal whole
        first, moves = values[0], row.flow is Flow.MOVE
        type_: ValueType | None = node.output.type.with_shape(None)
        if moves:
            type_ = None if first is None else moved_type(row, attributes, first.type)
        if type_ is None:
            whole = False
            return None
        if moves and first is not None and first.constant is not None:
            return _moved_constant(row, attributes, first, type_)
        result = Value(type_)
        steps.append(Node(row, attributes, trimmed(values), [result], origin))
        return result

    body = body_of(node.op, node.attributes, node.operand(0).type.shape, len(node.inputs))
    folded(body, [*node.inputs, *[None] * len(LETTERS)], step, no_number)
    if not whole or not steps:
        return [node]
    unlink(node)
    steps[-1].outputs = [node.output]
    node.output.producer = steps[-1]
    for made in steps:
        link(made)
    return steps


def _moved_constant(row: Operator, attributes: Attributes, value: Value, type_: ValueType) -> Value:
    data, shape = value.constant, static_shape(type_.shape)
    assert data is not None and shape is not None
    moved = data.map(lambda array: row.compute(attributes, (array,))[0], shape=shape)
    return Value(type_, value.name, constant=moved)


# ---- node by node


def check_known(graph: Graph) -> None:
    """Refuses a graph with operators of no counterpart, before anything is emitted.

    Raises:
        UnsupportedTargetError: Lists them.
    """
    bad = [n for n in graph.nodes if n.op.flow is not Flow.FLOAT and n.op not in KNOWN]
    if bad:
        listed = "; ".join(f"{n.op.name} '{n.name}'" for n in bad[:LISTED])
        raise UnsupportedTargetError(
            f"{len(bad)} node(s) have no counterpart in TVM",
            why=listed,
            fix="run the model with onnxruntime, or export it without them",
        )


def emit_nodes(
    emitter: FunctionEmitter,
    graph: Graph,
    bind: Bind,
    emit_opaque: EmitOpaque,
    begin: Callable[[Node], None] | None = None,
    *,
    form: Form = in_integers,
) -> list[UnsupportedTargetError]:
    """Emits every node whose operands are known; returns what could not be emitted.

    Args:
        emitter: Where to; its ``exprs`` hold the graph's inputs.
        graph: What.
        bind: Gives the expression of a result its place in the host's function.
        emit_opaque: Emits a node of an operator without a row.
        begin: Is told of every node before it is emitted.
        form: Emits a node.
    """
    problems: list[UnsupportedTargetError] = []
    exprs = emitter.exprs
    for node in graph.nodes:
        if any(v.constant is None and v not in exprs for v in node.inputs if v is not None):
            continue  # it reads what could not be emitted
        emitter.describe(node)
        if begin is not None:
            begin(node)
        try:
            need_fitting_windows(emitter, node)
            for value, expr in zip(node.outputs, form(emitter, node, emit_opaque), strict=False):
                exprs[value] = bind(value, expr)
        except UnsupportedTargetError as error:
            error.where = error.where or f"node '{node.name}'"
            problems.append(error)
        except (GraphError, RuntimeError, TypeError, ValueError) as error:
            # TVM refuses calls when it infers their types: its own errors are RuntimeErrors.
            refused = unsupported(node, f"TVM refuses it: {reason(error)}")
            refused.__cause__ = error
            problems.append(refused)
    return problems


def merge_errors(problems: list[UnsupportedTargetError]) -> UnsupportedTargetError:
    """Returns one error for all of them."""
    if len(problems) == 1:
        return problems[0]
    listed = "; ".join(f"{e.what}, {e.where}: {e.why}" for e in problems[:LISTED])
    more = f" (and {len(problems) - LISTED} more)" if len(problems) > LISTED else ""
    return UnsupportedTargetError(
        f"{len(problems)} nodes cannot be emitted for TVM", why=listed + more, fix=problems[0].fix
    )


def unique_identifier(name: str, taken: set[str]) -> str:
    """Returns a name as an identifier that is none of ``taken``, and adds it to them."""
    base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "v"
    base = base if not base[0].isdigit() else f"v{base}"
    unique, count = base, 1
    while unique in taken:
        count += 1
        unique = f"{base}_{count}"
    taken.add(unique)
    return unique
