"""Nodes that are functions: a call of an imported function whose span holds the ONNX node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.onnx_io.control_flow.conditional import conditional
from qdqbridge.onnx_io.opaque.spans import opaque_of_span
from qdqbridge.tvm.qnn.origin import Provenance, constants_of, dtype_of
from qdqbridge.tvm.qnn.read import Call, Entry, Reading
from qdqbridge.tvm.relax.read.calls import results_of

if TYPE_CHECKING:
    from qdqbridge.tvm.relax.read.module import FunctionReader


# ---- ``If`` whose condition is known at run time only --------------------------------------------


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


# --------------------------------------------------------------------------------------------------


def opaque_node(
    reading: Reading, provenance: Provenance, arguments: Sequence[Entry], expr: Any
) -> list[Value] | Value | None:
    """Returns the results of the node that a span holds; None where it does not hold all of it."""
    row = BY_NAME.get(provenance.op)
    found = opaque_of_span(provenance.raw)
    if row is not None and provenance.attributes is not None:
        found = row, provenance.attributes
    constants = constants_of(provenance)
    if constants is None or found is None:
        return None
    given = iter(arguments)
    operands: list[Value | None] = []
    for index in range(len(provenance.operands)):
        if index in provenance.more["absent"]:
            operands.append(None)
        elif index in constants:
            operands.append(reading.constant(constants[index]))
        else:
            operands.append(reading.plain(next(given)))
    results = tuple(results_of(expr.ty))
    types = [
        TensorType(dtype_of(name), result.shape)
        for name, result in zip(provenance.more["types"], results, strict=False)
    ]
    call = Call(provenance.op, tuple(arguments), {}, results, provenance)
    values = reading.several(*found, operands, types, call)
    return values[0] if len(values) == 1 else values
