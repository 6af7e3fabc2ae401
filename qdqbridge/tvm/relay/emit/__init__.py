"""Graph -> Relay, in the variant and layout that the pattern tables of a backend match."""

from __future__ import annotations

from qdqbridge.tvm.relay.emit.module import emit

__all__ = ["emit"]
