"""Every node of a graph in turn, and everything that cannot be emitted in one error."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from qdqbridge.errors import GraphError, UnsupportedTargetError
from qdqbridge.graph.graph import Graph, Node, Value
from qdqbridge.graph.operator import Flow
from qdqbridge.ops.composition import COMPOSITION
from qdqbridge.ops.data_movement import (
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
from qdqbridge.ops.resize import RESIZE
from qdqbridge.ops.selection import GATHER, SLICE, SPLIT
from qdqbridge.qnn.emit.accumulate import quantized_accumulation
from qdqbridge.qnn.emit.conversions import CONVERSIONS
from qdqbridge.qnn.emit.data_movement import DATA_MOVEMENT
from qdqbridge.qnn.emit.floating import FLOATING
from qdqbridge.qnn.emit.resize import emit_resize
from qdqbridge.qnn.emit.rounded import quantized_result
from qdqbridge.qnn.emit.scope import EmissionScope, Expr, reason, unsupported

KNOWN = DATA_MOVEMENT.keys() | FLOATING.keys() | CONVERSIONS.keys() | {RESIZE, COMPOSITION}
"""Operators that have an emission function."""
LISTED = 8
Bind = Callable[[Value, Expr], Expr]
Foreign = Callable[[Node], Sequence[Expr]]
Form = Callable[[EmissionScope, Node, Foreign], Sequence[Expr]]
"""Emits one node: an expression for each of its results."""


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


_BYTE_MOVERS = frozenset((
    RESHAPE, EXPAND, TRANSPOSE, SQUEEZE, UNSQUEEZE, FLATTEN, TILE, IDENTITY,
    DEPTH_TO_SPACE, SPACE_TO_DEPTH, SLICE, GATHER, SPLIT,
))  # fmt: skip
"""Operators that neither compare nor make up the elements that they move."""


def computes_minifloats(node: Node) -> bool:
    """True where an operator works on 8- or 4-bit floats, whose bytes say nothing to it."""
    if node.op.flow in (Flow.CONVERT, Flow.REINTERPRET) or node.op in _BYTE_MOVERS:
        return False
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    return any(v.quant is not None and v.type.dtype.is_small_float for v in values)


def in_integers(scope: EmissionScope, node: Node, foreign: Foreign) -> Sequence[Expr]:
    """Emits a node in the QNN dialect, or as a float operator where that has no call for it."""
    if node.op.flow is Flow.FLOAT and node.op not in FLOATING:
        return foreign(node)
    own = scope.variant.rows.get(node.op) if node.output.quant is not None else None
    spelled = None if own is None else own(scope, node)
    if spelled is not None:
        return [spelled]
    if node.op in CONVERSIONS:
        return [CONVERSIONS[node.op](scope, node)]
    if node.op is RESIZE:
        return [emit_resize(scope, node)]
    if node.op in DATA_MOVEMENT:
        moved = DATA_MOVEMENT[node.op](scope, node, scope.value(node.operand(0)))
        return moved if isinstance(moved, list) else [moved]
    quantized = None
    if node.op.flow is Flow.ACCUMULATE:
        quantized = quantized_accumulation(scope, node)
    elif node.output.quant is not None:
        quantized = quantized_result(scope, node)
    return [float_form(scope, node) if quantized is None else quantized]


def emit_nodes(
    scope: EmissionScope,
    graph: Graph,
    bind: Bind,
    foreign: Foreign,
    begin: Callable[[Node], None] | None = None,
    *,
    form: Form = in_integers,
) -> list[UnsupportedTargetError]:
    """Emits every node whose operands are known; returns what could not be emitted.

    Args:
        scope: Where to; its ``exprs`` hold the graph's inputs.
        graph: What.
        bind: Gives the expression of a result its place in the host's function.
        foreign: Emits a node of an operator without a row.
        begin: Is told of every node before it is emitted.
        form: Emits a node.
    """
    problems: list[UnsupportedTargetError] = []
    exprs = scope.exprs
    for node in graph.nodes:
        if any(v.constant is None and v not in exprs for v in node.inputs if v is not None):
            continue  # it reads what could not be emitted
        scope.describe(node)
        if begin is not None:
            begin(node)
        try:
            for value, expr in zip(node.outputs, form(scope, node, foreign), strict=False):
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


def joined(problems: list[UnsupportedTargetError]) -> UnsupportedTargetError:
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


def float_form(scope: EmissionScope, node: Node) -> Expr:
    """Emits the float operator on dequantized operands, and the rounding of its result."""
    if node.op not in FLOATING:
        raise unsupported(node, "it has no counterpart of floats")
    args = [
        scope.real(value) if node.op.is_data(index) else scope.value(value)
        for index, value in enumerate(node.inputs)
        if value is not None
    ]
    result = FLOATING[node.op](scope, node, args)
    if node.output.quant is None:
        return result
    return scope.quantize(scope.emit(result), node.output.quant.params)
