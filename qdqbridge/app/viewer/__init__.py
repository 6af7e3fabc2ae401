"""Pages that show a graph, or two beside each other, in a browser."""

from qdqbridge.app.viewer.document import (
    Document,
    document,
    document_of_quantization,
    document_of_two,
    with_metadata,
)
from qdqbridge.app.viewer.model_explorer import model_explorer_text, node_data_texts
from qdqbridge.app.viewer.page import page
from qdqbridge.app.viewer.paint import Paint

__all__ = [
    "Document",
    "Paint",
    "document",
    "document_of_quantization",
    "document_of_two",
    "model_explorer_text",
    "node_data_texts",
    "page",
    "with_metadata",
]
