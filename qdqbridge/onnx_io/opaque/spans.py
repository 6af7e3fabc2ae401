"""ONNX's own nodes, which a graph keeps as they are, by what the spans of calls say of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from qdqbridge.core.graph.operator import Operator
from qdqbridge.errors import InvalidModelError
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, StoredNode
from qdqbridge.onnx_io.opaque.operators import opaque_operator


def opaque_of_span(raw: Mapping[str, Any]) -> tuple[Operator, OpaqueAttrs] | None:
    """Returns operator and attributes of the node in a record of provenance; None without one."""
    if "op_type" not in raw:
        return None
    data = base64.b64decode(raw["node"])
    try:
        onnx.NodeProto.FromString(data)
    except DecodeError as error:
        raise InvalidModelError(
            f"the node {raw['op_type']!r} that a span carries is damaged",
            why=" ".join(str(error).split()),
            fix="save the module anew",
        ) from error
    node, captures = StoredNode(data), tuple(raw["captures"])
    attributes = OpaqueAttrs(raw["domain"], raw["op_type"], raw["version"], node, captures)
    return opaque_operator(raw["domain"], raw["op_type"]), attributes
