"""TFLite's operators, a row each: what adds ONNX's nodes for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.tflite_io.conversion import Row
from qdqbridge.tflite_io.operators import (
    blocks,
    control,
    detection,
    elementwise,
    indices,
    movement,
    products,
    recurrent,
    signal,
    slices,
    windows,
)

ROWS: Mapping[str, Row] = MappingProxyType({
    **elementwise.ROWS,
    **products.ROWS,
    **windows.ROWS,
    **movement.ROWS,
    **slices.ROWS,
    **indices.ROWS,
    **blocks.ROWS,
    **recurrent.ROWS,
    **signal.ROWS,
    **detection.ROWS,
    **control.ROWS,
})  # fmt: skip
