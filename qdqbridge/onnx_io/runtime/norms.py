"""Norms that onnxruntime has in ONNX's own domain under every opset, one by another name."""

from __future__ import annotations

from qdqbridge.graph.graph import Node
from qdqbridge.onnx_io.lowering.normalization import DATA, WITH_BIAS
from qdqbridge.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION

_NAMES = {
    LAYER_NORMALIZATION: ("LayerNormalization", ("SkipLayerNormalization", "before 17")),
    RMS_NORMALIZATION: (
        "SimplifiedLayerNormalization",
        ("SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
    ),
}  # fmt: skip
BEFORE = "before 17"
"""The variant of a LayerNormalization of an opset that does not have it."""


def runtime_name(node: Node) -> str:
    """Returns the name under which a file had a norm that its opset did not have; else nothing."""
    name, variants = _NAMES.get(node.op, ("", ()))  # pyright: ignore[reportArgumentType, reportCallIssue]
    variant = node.origin.variant.partition(DATA)[0].removesuffix(WITH_BIAS)
    return name if variant in variants else ""
