"""Operators that onnxruntime has under every opset, some by another name than ONNX's."""

from __future__ import annotations

from qdqbridge.graph.graph import Node
from qdqbridge.onnx_io.lowering.normalization import DATA, WITH_BIAS
from qdqbridge.onnx_io.lowering.site import MICROSOFT
from qdqbridge.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION
from qdqbridge.ops.unary import SWISH

_NAMES = {
    LAYER_NORMALIZATION: ("LayerNormalization", "", ("SkipLayerNormalization", "before 17")),
    RMS_NORMALIZATION: (
        "SimplifiedLayerNormalization", "",
        ("SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
    ),
    SWISH: ("QuickGelu", MICROSOFT, ("QuickGelu",)),
}  # fmt: skip
"""By row: name, domain, and the variants of nodes that files had so."""
BEFORE = "before 17"
"""The variant of a LayerNormalization of an opset that does not have it."""


def runtime_name(node: Node) -> tuple[str, str]:
    """Returns name and domain under which a file had what its opset did not have; else nothing."""
    name, domain, variants = _NAMES.get(node.op, ("", "", ()))  # pyright: ignore[reportArgumentType, reportCallIssue]
    variant = node.origin.variant.partition(DATA)[0].removesuffix(WITH_BIAS)
    return (name, domain) if variant in variants else ("", "")
