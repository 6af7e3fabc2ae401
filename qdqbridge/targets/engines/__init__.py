"""Other people's engines as judges: what they take of a model, and what they compute from it.

An engine is opened on a model file (:func:`open_engine`) and has one small protocol
(:class:`~qdqbridge.targets.engines.kinds.Judge`). It runs in a process of its own with limits, so
that one that crashes or hangs takes nothing along. ``ENGINES`` lists them.
"""

from __future__ import annotations

from qdqbridge.targets.engines.kinds import (
    ENGINES,
    EngineKind,
    EngineVerdict,
    Judge,
    NodeTime,
    Placement,
    engine_kind,
)
from qdqbridge.targets.engines.process import ProcessLimits
from qdqbridge.targets.engines.vendor import VendorEngine, open_engine

__all__ = [
    "ENGINES",
    "EngineKind",
    "EngineVerdict",
    "Judge",
    "NodeTime",
    "Placement",
    "ProcessLimits",
    "VendorEngine",
    "engine_kind",
    "open_engine",
]
