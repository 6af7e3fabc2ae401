"""Operators that onnxruntime has under every opset, some by another name than ONNX's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import link, unlink
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType
from qdqbridge.core.ops.normalization import LAYER_NORMALIZATION, RMS_NORMALIZATION
from qdqbridge.core.ops.unary import GELU, SWISH
from qdqbridge.onnx_io.lowering.context import MICROSOFT
from qdqbridge.onnx_io.lowering.elementwise import BIAS_GELU, DATA, WITH_BIAS
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes
from qdqbridge.onnx_io.opaque.operators import opaque_operator

BEFORE = "before 17"
"""The variant of a LayerNormalization of an opset that does not have it."""
OWN_GELU = "com.microsoft::Gelu"
"""The variant of the Gelu that is older than ONNX's."""


@dataclass(frozen=True, slots=True)
class RuntimeOperator:
    """What onnxruntime has.

    Attributes:
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


# ---- An LSTM that quantizes while it runs, as onnxruntime has it: DynamicQuantizeLSTM ------------
# Its weights lie the other way round, ``[directions, terms, elements of gates]``, with a scale for
# every element of every gate of every direction. It rounds what it reads and what it carries by
# their own extremes (onnxruntime 1.32, ``contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc``).


_DOMAIN, _DYNAMIC = "com.microsoft", "DynamicQuantizeLSTM"
_OWN = 8
"""Operands of an LSTM; scales and zero points come behind them."""


def is_lstm(node: Node) -> bool:
    """True for an LSTM of ONNX's whose sequences lie along axis 0."""
    record = node.attributes
    if not isinstance(record, OpaqueAttrs) or (record.domain, record.op_type) != ("", "LSTM"):
        return False
    return not record.node.integers().get("layout", 0)


def read_dynamically(
    node: Node,
    weights: tuple[NDArray[Any], NDArray[Any]],
    scales: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    """Makes a linked LSTM one that quantizes while it runs.

    Args:
        node: The LSTM; it is changed.
        weights: Its two weights, int8 around zero, as it has them.
        scales: Of each, one for every element of every gate.
    """
    old = node.record(OpaqueAttrs).node.proto()
    operands: list[Value | None] = [*node.inputs, *[None] * (_OWN - len(node.inputs))]
    directions = weights[0].shape[0]
    for index, weight, scale in zip((1, 2), weights, scales, strict=True):
        each = np.tile(scale.astype(np.float32), (directions, 1))
        names = [f"{node.name}_{'WR'[index - 1]}{end}" for end in ("", "_scale", "_zero_point")]
        turned = np.ascontiguousarray(weight.transpose(0, 2, 1))
        operands[index] = _graph_constant_value(turned, names[0])
        operands += [
            _graph_constant_value(each, names[1]),
            _graph_constant_value(np.zeros_like(each, np.int8), names[2]),
        ]
    new = NodeProto(op_type=_DYNAMIC, domain=_DOMAIN, output=old.output)
    new.input.extend("" if v is None else f"in_{i}" for i, v in enumerate(operands))
    new.attribute.extend(a for a in old.attribute if a.name != "layout")
    unlink(node)
    node.op = opaque_operator(_DOMAIN, _DYNAMIC)
    node.attributes, node.inputs = opaque_attributes(new, 1), operands
    link(node)


def _graph_constant_value(array: NDArray[Any], name: str) -> Value:
    data = Constant.of(array)
    return Value(TensorType(data.dtype, data.shape), name, constant=data)
