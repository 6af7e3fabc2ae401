"""Adapters for the pattern tables that ship with TVM or a vendor.

``qdqbridge partition MODEL --dialect relay --table ethos-u`` uses them. Each says how its table
wants a model written, hands out the table's own patterns and checks, puts a guard in front of
checks that take what their code generator would miscompile, and finds words for refusals.

Adding one: a file with an :class:`~qdqbridge.tvm.relay.tables.adapter.Adapter`, and its name here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.tvm.relay.tables.adapter import Adapter
from qdqbridge.tvm.relay.tables.arm import ARM_COMPUTE_LIB, CMSIS_NN, ETHOS_N, ETHOS_U
from qdqbridge.tvm.relay.tables.dnnl import DNNL
from qdqbridge.tvm.relay.tables.forks import MRVL, VSI_NPU

__all__ = ["TABLES", "Adapter"]

_ALL = (ETHOS_U, CMSIS_NN, ETHOS_N, ARM_COMPUTE_LIB, DNNL, VSI_NPU, MRVL)
TABLES: Mapping[str, Adapter] = MappingProxyType({table.name: table for table in _ALL})
"""By the name of the code generator."""
