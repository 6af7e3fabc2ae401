"""Nodes that are functions: a call of an imported function whose span holds the ONNX node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.onnx_io.opaque.spans import opaque_of_span
from qdqbridge.tvm.qnn.origin import Provenance, constants_of, dtype_of
from qdqbridge.tvm.qnn.read import Call, Entry, Reading
from qdqbridge.tvm.relax.read.calls import results_of


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
