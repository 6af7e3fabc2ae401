"""Operators of ONNX without a row in the table, made by readers of other formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from onnx import helper

from qdqbridge.core.graph.operator import Operator
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import opaque_operator

OPSET = 17
"""The opset at which these operators are written: the oldest that has all of those used."""

Attribute = int | float | str | Sequence[int] | Sequence[float]


def standard_operator(
    op_type: str,
    operands: int,
    results: int = 1,
    *,
    opset: int = OPSET,
    attributes: Mapping[str, Attribute] = MappingProxyType({}),
) -> tuple[Operator, OpaqueAttrs]:
    """Returns an operator of ONNX, and the attributes of its node.

    Args:
        op_type: Its name in ONNX's own domain.
        operands: How many operands it gets.
        results: How many results it gives.
        opset: The opset whose meaning it has.
        attributes: ONNX's attributes.
    """
    names = [f"in_{i}" for i in range(operands)], [f"out_{i}" for i in range(results)]
    node = helper.make_node(op_type, *names)
    node.attribute.extend(helper.make_attribute(name, attributes[name]) for name in attributes)
    record = opaque_attributes(node, opset)
    return opaque_operator(record.domain, record.op_type), record
