"""QOperator, QONNX, packed and fused encodings, as Q/DQ nodes around ONNX's operators."""

from qdqbridge.onnx_io.lowering.lower import Lowered, Refusal, lower, refusal
from qdqbridge.onnx_io.lowering.table import LOWERINGS, Lowering, is_microsoft, lowering_of

__all__ = [
    "LOWERINGS",
    "Lowered",
    "Lowering",
    "Refusal",
    "is_microsoft",
    "lower",
    "lowering_of",
    "refusal",
]
