"""Relax -> graph: modules of the QNN dialect as emission writes them."""

from __future__ import annotations

from qdqbridge.relax.read.layouts import channels_last
from qdqbridge.relax.read.module import from_relax, read_function

__all__ = ["channels_last", "from_relax", "read_function"]
