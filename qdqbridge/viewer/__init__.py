"""Pages that show a graph, or two beside each other, in a browser."""

from qdqbridge.viewer.document import Document, document, document_of_two
from qdqbridge.viewer.metadata import with_metadata
from qdqbridge.viewer.model_explorer import model_explorer_text, node_data_texts
from qdqbridge.viewer.page import page
from qdqbridge.viewer.paint import Paint
from qdqbridge.viewer.quantization import document_of_quantization

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
