"""Graph -> Relax: one emission function per operator of the table."""

from __future__ import annotations

from qdqbridge.tvm.relax.emit.module import emit

__all__ = ["emit"]
