"""Operators that onnxruntime has under every opset, some by another name than ONNX's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION
from qdqbridge.core.ops.unary import GELU, SWISH
from qdqbridge.onnx_io.lowering.context import MICROSOFT
from qdqbridge.onnx_io.lowering.normalization import BIAS_GELU, DATA, WITH_BIAS

BEFORE = "before 17"
"""The variant of a LayerNormalization of an opset that does not have it."""
OWN_GELU = "com.microsoft::Gelu"
"""The variant of the Gelu that is older than ONNX's."""


@dataclass(frozen=True, slots=True)
class RuntimeOperator:
    """What onnxruntime has.

    Attributes:
        name: Its name.
        domain: Its domain.
        implied: Attributes of the row that the name stands for, and that it does not have.
    """

    name: str
    domain: str = ""
    implied: tuple[str, ...] = ()

    def stated(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of ONNX's operator that this one has."""
        return {name: value for name, value in attributes.items() if name not in self.implied}


_NORM = RuntimeOperator("LayerNormalization")
_QUICK_GELU = RuntimeOperator("QuickGelu", MICROSOFT)
_SIMPLIFIED = RuntimeOperator("SimplifiedLayerNormalization")
_APPROXIMATE = ("approximate",)
_OPERATORS = {
    LAYER_NORMALIZATION: {"SkipLayerNormalization": _NORM, BEFORE: _NORM},
    RMS_NORMALIZATION: {
        "SkipSimplifiedLayerNormalization": _SIMPLIFIED,
        "SimplifiedLayerNormalization": _SIMPLIFIED,
    },
    SWISH: {"QuickGelu": _QUICK_GELU},
    GELU: {
        "FastGelu": RuntimeOperator("FastGelu", MICROSOFT, _APPROXIMATE),
        OWN_GELU: RuntimeOperator("Gelu", MICROSOFT, _APPROXIMATE),
        BIAS_GELU: RuntimeOperator("Gelu", MICROSOFT, _APPROXIMATE),
    },
}
"""By row and variant of the node, which says how its file had it. Half floats are computed by steps
that differ from those of ONNX's operator (1.32)."""


def runtime_operator(node: Node) -> RuntimeOperator | None:
    """Returns what a file had where that was onnxruntime's own, or its opset did not have it.

    A Swish of float32 is always onnxruntime's: the same bits under any opset, where ONNX's is of
    opset 24, and onnxruntime 1.32 does not take it in files of opset 25 and later.
    """
    return _QUICK_GELU if renamed(node) else _of_file(node)


def renamed(node: Node) -> bool:
    """True where the file has ONNX's operator, and onnxruntime's is written."""
    return node.op is SWISH and _of_file(node) is None and _in_float32(node)


def _of_file(node: Node) -> RuntimeOperator | None:
    variants = _OPERATORS.get(node.op)  # pyright: ignore[reportArgumentType, reportCallIssue]
    variant = node.origin.variant.partition(DATA)[0].removesuffix(WITH_BIAS)
    return variants.get(variant) if variants else None


def _in_float32(node: Node) -> bool:
    return node.origin.computed in (None, DType.FLOAT32) and all(
        (value.quant.params.expressed_dtype if value.quant else value.type.dtype) is DType.FLOAT32
        for value in (node.operand(0), node.output)
    )
