"""The canonical form: rules, the driver that applies them, and the reasons for what stays float."""

from qdqbridge.core.canonical.diagnostics import explanation, float_region_notes
from qdqbridge.core.canonical.form import RULES, canonicalize

__all__ = ["RULES", "canonicalize", "explanation", "float_region_notes"]
