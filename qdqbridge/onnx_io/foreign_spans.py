"""ONNX's own nodes, which a graph carries as they are, by what the spans of calls say of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from qdqbridge.graph.operator import Operator
from qdqbridge.onnx_io.foreign import ForeignAttrs, StoredNode, foreign_operator


def foreign_of_span(raw: Mapping[str, Any]) -> tuple[Operator, ForeignAttrs] | None:
    """Returns operator and attributes of the node that a claim holds; None where it holds none."""
    if "op_type" not in raw:
        return None
    node, captures = StoredNode(base64.b64decode(raw["node"])), tuple(raw["captures"])
    attributes = ForeignAttrs(raw["domain"], raw["op_type"], raw["version"], node, captures)
    return foreign_operator(raw["domain"], raw["op_type"]), attributes
