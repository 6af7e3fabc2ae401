"""The canonical table: every operator that the emitters write, in one entry each.

A vendor's table is a choice of it under constraints::

    NPU = canonical("npu", constraints=Constraints(Limits(activations=("int8",))))
    NPU = canonical("npu").only("conv2d", "dense", "add")
"""

from __future__ import annotations

from qdqbridge.tvm.byoc.constraints import Constraints
from qdqbridge.tvm.byoc.table import Table
from qdqbridge.tvm.byoc.tables.accumulations import CONVOLUTIONS, DENSE, DYNAMIC, MATMUL
from qdqbridge.tvm.byoc.tables.data_movement import CONCATS, CONVERSIONS, DATA_MOVEMENT
from qdqbridge.tvm.byoc.tables.elementwise import BINARY, ROWS, UNARY
from qdqbridge.tvm.byoc.tables.windows import POOLS, REDUCTIONS, RESIZES

CANONICAL = (
    *CONVOLUTIONS, *DENSE, *DYNAMIC, *MATMUL, *BINARY, *UNARY, *ROWS, *POOLS, *REDUCTIONS,
    *RESIZES, *CONCATS, *DATA_MOVEMENT, *CONVERSIONS,
)  # fmt: skip
"""Entries in order of preference: whole chains before the conversions that end them."""


def canonical(name: str = "canonical", constraints: Constraints | None = None) -> Table:
    """Returns the canonical table under a backend's name and constraints."""
    return Table(name, CANONICAL, constraints or Constraints())
