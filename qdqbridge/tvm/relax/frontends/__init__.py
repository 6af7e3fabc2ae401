"""TVM's PyTorch frontend, completed: its modules as graphs."""

from __future__ import annotations

from qdqbridge.tvm.relax.frontends.pytorch import from_torch
from qdqbridge.tvm.relax.frontends.tflite import from_tflite

__all__ = ["from_tflite", "from_torch"]
