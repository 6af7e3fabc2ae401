"""Quantized ONNX models in one canonical form: read, explain, run on TVM, write back.

Importing this package is cheap; onnx, onnxruntime and TVM are imported when a function needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbridge.app.hosting import compile, from_relax, load_executable, to_relax
from qdqbridge.app.judging import blame, open_engine
from qdqbridge.app.pipeline import (
    compare,
    evaluate,
    explain,
    load,
    load_adapter,
    parse,
    save,
    save_encodings,
    unquantize,
)
from qdqbridge.app.profiling import load_profile, merge_profiles, profile, save_profile
from qdqbridge.app.quantizing import quantize
from qdqbridge.app.viewing import view
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import QdqBridgeError

if TYPE_CHECKING:
    from qdqbridge.targets.comparison.compare import Comparison
    from qdqbridge.tvm.relax.executable import Executable

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Executable",
    "Graph",
    "QdqBridgeError",
    "blame",
    "compare",
    "compile",
    "evaluate",
    "explain",
    "from_relax",
    "load",
    "load_adapter",
    "load_executable",
    "load_profile",
    "merge_profiles",
    "open_engine",
    "parse",
    "profile",
    "quantize",
    "save",
    "save_encodings",
    "save_profile",
    "to_relax",
    "unquantize",
    "view",
]


def __getattr__(name: str) -> object:
    """Imports what is costly when somebody asks for it."""
    if name == "Executable":
        from qdqbridge.tvm.relax.executable import Executable

        return Executable
    if name == "Comparison":
        from qdqbridge.targets.comparison.compare import Comparison

        return Comparison
    raise AttributeError(f"module 'qdqbridge' has no attribute '{name}'")
