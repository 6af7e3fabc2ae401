"""``If`` whose condition is known at run time only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.onnx_io.control_flow.conditional import conditional
from qdqbridge.tvm.qnn.read import Entry

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.read.module import FunctionReader


def chosen(reader: FunctionReader, expr: Any, condition: Value, type_: Any) -> Entry:
    """Returns the results of an If: of either branch where both are one graph, else of ONNX's If.

    Args:
        reader: Reads the function that has it.
        expr: The If.
        condition: Its condition.
        type_: The type of its result where it is bound to a variable.
    """
    bodies = (expr.true_branch, expr.false_branch)
    captured: dict[Any, Value] = {}
    for body in bodies:
        captured |= reader.captured(body)
    if len({_digest(reader.inside(body, captured)) for body in bodies}) == 1:
        return reader.sequence(expr.true_branch)
    return _if(reader, [reader.inside(body, captured) for body in bodies], condition, captured)


def _digest(graph: Graph) -> str:
    return canonicalize(graph).digest


def _if(
    reader: FunctionReader, branches: list[Graph], condition: Value, captured: Mapping[Any, Value]
) -> Entry:
    given = [value for value in captured.values() if not value.is_constant]
    op, attributes, order = conditional(*branches)
    plain = [reader.reading.plain(value) for value in given]
    operands = [reader.reading.plain(condition), *(plain[i] for i in order)]
    types = [value.type for value in branches[0].outputs]
    values = reader.reading.several(op, attributes, operands, types)
    return values[0] if len(values) == 1 else values
