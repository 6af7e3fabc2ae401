"""Pages that show a graph, or two beside each other, in a browser."""

from qdqbridge.viewer.document import Document, document, document_of_two
from qdqbridge.viewer.model_explorer import model_explorer_text
from qdqbridge.viewer.page import page
from qdqbridge.viewer.paint import Paint

__all__ = ["Document", "Paint", "document", "document_of_two", "model_explorer_text", "page"]
