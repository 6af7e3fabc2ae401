"""Hexagon of v73 and later: the same backend, which computes products of 16 bits otherwise then."""

from __future__ import annotations

from types import MappingProxyType

from qdqbridge.targets.engines.workers.qnn_htp import HexagonWorker


class HexagonV73Worker(HexagonWorker):
    """Loads models for v73; those of v75, v79 and v81 had the same numbers."""

    options = MappingProxyType({"htp_arch": "73"})


WORKER = HexagonV73Worker
