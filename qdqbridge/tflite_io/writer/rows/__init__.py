"""What nodes are in TFLite, a row each by the name of the graph's operator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.tflite_io.writer.emission import WriterRow
from qdqbridge.tflite_io.writer.rows import elementwise, movement, products, windows

ROWS: Mapping[str, WriterRow] = MappingProxyType({
    **elementwise.ROWS,
    **products.ROWS,
    **windows.ROWS,
    **movement.ROWS,
})  # fmt: skip
