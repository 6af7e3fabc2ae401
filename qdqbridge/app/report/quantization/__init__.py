"""The report on a quantization: a record of plain data, and an article of a page made of it."""

from __future__ import annotations

from qdqbridge.app.report.quantization.sections import quantization_article
from qdqbridge.autoquant.record import (
    AccumulatorRow,
    Culprit,
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
    "Culprit",
    "FallbackRow",
    "FloatNode",
    "LayerError",
    "Output",
    "QuantizationRecord",
    "RepairRow",
    "TensorReport",
    "WeightError",
    "quantization_article",
]
