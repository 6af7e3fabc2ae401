"""The report on a quantization: an article of a page made of a record of plain data."""

from qdqbridge.app.report.quantization.sections import quantization_article

__all__ = ["quantization_article"]
