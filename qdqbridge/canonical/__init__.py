"""The canonical form: rules, the driver that applies them, and the reasons for what stays float."""

from qdqbridge.canonical.driver import canonicalize
from qdqbridge.canonical.islands import explanation, islands
from qdqbridge.canonical.rules import RULES

__all__ = ["RULES", "canonicalize", "explanation", "islands"]
