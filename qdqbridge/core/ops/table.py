"""The operator table: every row, and the rows by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.core.graph.operator import Flow, Operator
from qdqbridge.core.ops import (
    attention,
    composition,
    conversion,
    convolution,
    data_movement,
    dynamic,
    elementwise,
    experts,
    group_query_attention,
    matmul,
    normalization,
    pooling,
    reduction,
    resize,
    run_time_parameters,
    selection,
    shape_values,
    unary,
)
from qdqbridge.core.ops.attributes import PoolAttrs

OPERATORS: tuple[Operator, ...] = (
    *convolution.OPERATORS,
    *matmul.OPERATORS,
    *dynamic.OPERATORS,
    *pooling.OPERATORS,
    *reduction.OPERATORS,
    *elementwise.OPERATORS,
    *unary.OPERATORS,
    *normalization.OPERATORS,
    *resize.OPERATORS,
    *data_movement.OPERATORS,
    *selection.OPERATORS,
    *conversion.OPERATORS,
    *run_time_parameters.OPERATORS,
    *composition.OPERATORS,
    *shape_values.OPERATORS,
    *group_query_attention.OPERATORS,
    *attention.OPERATORS,
    *experts.OPERATORS,
)

BY_NAME: Mapping[str, Operator] = MappingProxyType({row.name: row for row in OPERATORS})
PRODUCTS: tuple[Operator, ...] = tuple(row for row in OPERATORS if row.weight is not None)
"""Sums of products with a second operand, its weight."""
MOVED_ALIKE: tuple[Operator, ...] = tuple(
    row
    for row in OPERATORS
    if row.flow is Flow.MOVE
    and row.tvm
    and not reduction.reduces(row)
    and row.attributes is not PoolAttrs
)
"""Data-movement operators that hosts have too, with the same operands and attributes."""
