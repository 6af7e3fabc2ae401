"""onnxruntime on the CPU with its graph optimizations."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from qdqbridge.engines.workers.rows import Array, Loaded, Row
from qdqbridge.onnx_io.ort_values import run


class OnnxRuntimeWorker:
    """Loads models with all optimizations and says which operators became of their nodes."""

    def __init__(self) -> None:
        self._sessions: dict[str, Any] = {}

    def version(self) -> str:
        """Returns the versions that decide."""
        return f"onnxruntime {ort.__version__}"

    def load(self, key: str, file: str) -> Loaded:
        """Loads a model."""
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.optimized_model_filepath = str(optimized)
            self._sessions[key] = ort.InferenceSession(
                file, options, providers=["CPUExecutionProvider"]
            )
            return _rows(optimized), 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        return dict(zip(names, run(self._sessions[key], inputs, names), strict=True))


def _rows(optimized: Path) -> list[Row]:
    from qdqbridge.onnx_io.prepared import optimized_view
    from qdqbridge.onnx_io.profiles.islands import islands

    view = optimized_view(optimized)
    real = set(islands(view))
    why = "it stayed in float between DequantizeLinear and QuantizeLinear"
    return [
        (node.name, node.op, "float" if node in real else "CPU", node not in real,
         why if node in real else "")
        for node in view.nodes
    ]  # fmt: skip


WORKER = OnnxRuntimeWorker
