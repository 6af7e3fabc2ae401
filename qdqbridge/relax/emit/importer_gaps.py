"""What TVM's ONNX importer takes and computes as something else.

Found by running ONNX's backend node tests through TVM 0.27 and comparing with onnxruntime. What it
refuses itself needs no row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqbridge.graph.graph import Node
from qdqbridge.onnx_io.foreign import ForeignAttrs

_SCORE_THRESHOLD = 4
"""Which operand of NonMaxSuppression it is."""


def gap(node: Node) -> str | None:
    """Returns why a carried node must not go through TVM's importer; None where it may."""
    attributes = node.attributes
    if not isinstance(attributes, ForeignAttrs) or attributes.domain:
        return None
    found = _GAPS.get(attributes.op_type)
    return None if found is None else found(node, attributes)


def _resize(node: Node, attributes: ForeignAttrs) -> str | None:
    del node
    return "it leaves antialias out" if attributes.node.integers().get("antialias") else None


def _is_inf(node: Node, attributes: ForeignAttrs) -> str | None:
    del node
    given = attributes.node.integers()
    both = given.get("detect_negative", 1) and given.get("detect_positive", 1)
    return None if both else "it finds infinities of both signs, whichever is asked for"


def _layer_normalization(node: Node, attributes: ForeignAttrs) -> str | None:
    del attributes
    return "it makes up the mean and the deviation" if len(node.outputs) > 1 else None


def _suppression(node: Node, attributes: ForeignAttrs) -> str | None:
    del attributes
    limit = node.inputs[_SCORE_THRESHOLD] if len(node.inputs) > _SCORE_THRESHOLD else None
    if limit is None or (limit.constant is not None and not limit.constant.numpy().any()):
        return None
    return "it returns more boxes than score_threshold leaves"


_GAPS: Mapping[str, Callable[[Node, ForeignAttrs], str | None]] = {
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "NonMaxSuppression": _suppression,
    "Resize": _resize,
}
