"""Numbers as a report writes them."""

from __future__ import annotations

import math


def decibels(value: float | None) -> str:
    """Returns an SQNR, e.g. ``41.3 dB``; ``exact`` where nothing differs."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "exact" if value > 0 else "no signal left"
    return f"{value:.1f} dB"


def exact_decibels(value: float) -> str:
    """Returns an SQNR as every place tells it: ``41.28 dB``."""
    return f"{value:.2f} dB" if math.isfinite(value) else decibels(value)


def number(value: float) -> str:
    """Returns a real number with four significant digits."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    """Returns a share."""
    if value is None:
        return "–"
    return "under 0.01%" if 0 < value < 0.0001 else f"{value:.2%}"


def optional(value: int | None) -> str:
    """Returns a whole number, or a dash."""
    return "–" if value is None else f"{value}"
