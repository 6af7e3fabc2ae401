"""What TFLite requires of a graph: rules that rewrite it until TFLite can say it.

They are written as the canonical rules are, and run before the layout is planned. Most change no
number; those that round once more say so in their notes, which ``export`` shows.
"""

from __future__ import annotations

from qdqbridge.core.canonical.linear import parts_of_one_product
from qdqbridge.core.rewrite import Rule
from qdqbridge.tflite_io.writer.rules import scales, windows

RULES: tuple[Rule, ...] = (
    parts_of_one_product,
    *windows.SHAPES,
    *scales.WEIGHT_RULES,
    *windows.RULES,
    *windows.RESIZES_RULES,
    *scales.RULES,
)
"""In this order: sequences become images first, and scales are looked at last."""
