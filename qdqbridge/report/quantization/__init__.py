"""The report on a quantization: a record of plain data, and one HTML page made of it."""

from __future__ import annotations

from qdqbridge.report.quantization.page import quantization_html
from qdqbridge.report.quantization.record import (
    AccumulatorRow,
    FallbackRow,
    FloatNode,
    LayerError,
    Output,
    QuantizationRecord,
    RepairRow,
    TensorReport,
    WeightError,
)

__all__ = [
    "AccumulatorRow",
    "FallbackRow",
    "FloatNode",
    "LayerError",
    "Output",
    "QuantizationRecord",
    "RepairRow",
    "TensorReport",
    "WeightError",
    "quantization_html",
]
