"""ONNX operators without a row as compositions of Relax operators, one file per family."""

from __future__ import annotations

from qdqbridge.tvm.relax.emit.compositions.table import composition_of

__all__ = ["composition_of"]
