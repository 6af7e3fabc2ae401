"""Graphs written as TFLite files."""

from qdqbridge.tflite_io.writer.writer import LAYOUTS, TFLiteModel, converted, legalized, write

__all__ = ["LAYOUTS", "TFLiteModel", "converted", "legalized", "write"]
