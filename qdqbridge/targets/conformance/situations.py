"""Every situation, and every case of it."""

from __future__ import annotations

from functools import cache

from qdqbridge.targets.conformance import (
    dequantize_rows,
    network_rows,
    open_rows,
    product_rows,
    quantize_rows,
)
from qdqbridge.targets.conformance.case import ConformanceCase, ConformanceSituation

SITUATIONS: tuple[ConformanceSituation, ...] = (
    *quantize_rows.ROWS,
    *dequantize_rows.ROWS,
    *network_rows.ROWS,
    *product_rows.ROWS,
    *open_rows.ROWS,
)
"""All of them; those of ``open_rows`` are those in which the text leaves a choice."""


@cache
def cases() -> tuple[ConformanceCase, ...]:
    """Returns all cases, the situations' one after the other."""
    return tuple(ConformanceCase(each, made) for each in SITUATIONS for made in each.bodies())
