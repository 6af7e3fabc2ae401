"""The canonical table: every operator that the emitters write, in one entry each.

A vendor's table is a choice of it under constraints::

    NPU = canonical("npu", constraints=Constraints(Limits(activations=("int8",))))
    NPU = canonical("npu").only("conv2d", "dense", "add")
"""

from __future__ import annotations

from qdqbridge.byoc.constraints import Constraints
from qdqbridge.byoc.table import Table
from qdqbridge.byoc.tables.accumulations import CONVOLUTIONS, DENSE, DYNAMIC, MATMUL
from qdqbridge.byoc.tables.data_movement import CONCATS, CONVERSIONS, DATA_MOVEMENT
from qdqbridge.byoc.tables.elementwise import BINARY, ROWS, UNARY
from qdqbridge.byoc.tables.windows import POOLS, REDUCTIONS, RESIZES

CANONICAL = (
    *CONVOLUTIONS, *DENSE, *DYNAMIC, *MATMUL, *BINARY, *UNARY, *ROWS, *POOLS, *REDUCTIONS,
    *RESIZES, *CONCATS, *DATA_MOVEMENT, *CONVERSIONS,
)  # fmt: skip
"""Entries in order of preference: whole chains before the conversions that end them."""


def canonical(name: str = "canonical", constraints: Constraints | None = None) -> Table:
    """Returns the canonical table under a backend's name and constraints."""
    return Table(name, CANONICAL, constraints or Constraints())
