"""The canonical form: rules, the driver that applies them, and the reasons for what stays float."""

from qdqbridge.core.canonical.float_regions import explanation, islands
from qdqbridge.core.canonical.form import canonicalize
from qdqbridge.core.canonical.rules import RULES

__all__ = ["RULES", "canonicalize", "explanation", "islands"]
