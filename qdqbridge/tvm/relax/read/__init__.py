"""Relax -> graph: modules of TVM's frontends and of the QNN dialect."""

from __future__ import annotations

from qdqbridge.tvm.relax.read.calls import channels_last
from qdqbridge.tvm.relax.read.module import entry_name, from_relax, read_function

__all__ = ["channels_last", "entry_name", "from_relax", "read_function"]
