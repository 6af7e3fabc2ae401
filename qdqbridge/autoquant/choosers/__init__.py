"""Choosers: from what was seen of a tensor to the parameters that it shall have.

A chooser is any ``chooser(stats, format, context) -> QuantParams``; those here are ranges in
disguise, ``range(stats, format) -> (low, high)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqbridge.autoquant.choosers.chooser import Chooser, Context, RangeChooser
from qdqbridge.autoquant.choosers.hqq import HQQ
from qdqbridge.autoquant.choosers.kl import KL
from qdqbridge.autoquant.choosers.mse import MSE
from qdqbridge.autoquant.choosers.simple import Extrapolated, MeanOfMaxima, MinMax, Percentile

CHOOSERS: Mapping[str, Chooser] = MappingProxyType(
    {
        "mse": MSE(),
        "minmax": MinMax(),
        "percentile": Percentile(),
        "extrapolated": Extrapolated(),
        "mean-of-maxima": MeanOfMaxima(),
        "kl": KL(),
        "hqq": HQQ(),
    }
)
"""The choosers that have a name."""

__all__ = [
    "CHOOSERS",
    "HQQ",
    "KL",
    "MSE",
    "Chooser",
    "Context",
    "Extrapolated",
    "MeanOfMaxima",
    "MinMax",
    "Percentile",
    "RangeChooser",
]
