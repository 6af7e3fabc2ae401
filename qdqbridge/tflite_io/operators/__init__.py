"""TFLite's operators, a row each: what adds ONNX's nodes for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.tflite_io.conversion import Row
from qdqbridge.tflite_io.operators import (
    detection,
    elementwise,
    movement,
    products,
    recurrent,
    windows,
)

ROWS: Mapping[str, Row] = MappingProxyType({
    **elementwise.ROWS,
    **products.ROWS,
    **windows.ROWS,
    **movement.ROWS,
    **movement.SLICES_ROWS,
    **movement.BLOCKS_ROWS,
    **recurrent.ROWS,
    **detection.ROWS,
})  # fmt: skip
