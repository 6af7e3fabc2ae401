"""onnxruntime as the reference: no graph optimizations, every node computed as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession
from qdqbridge.targets.engines.workers import Array, Loaded


class OnnxRuntimeReferenceWorker:
    """Loads models as they are: Q and DQ run, and what stands between them runs in float."""

    def __init__(self) -> None:
        self._sessions: dict[str, OnnxRuntimeSession] = {}

    def version(self) -> str:
        """Returns the version that decides."""
        return f"onnxruntime {ort.__version__}, graph optimizations off"

    def load(self, key: str, file: str) -> Loaded:
        """Loads a model."""
        from qdqbridge.targets.engines.workers.onnxruntime_cpu import ort_node_placement

        session = self._sessions[key] = OnnxRuntimeSession(Path(file))
        session.load(session.outputs)
        return ort_node_placement(Path(file)), 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        return self._sessions[key].run(inputs, names)


WORKER = OnnxRuntimeReferenceWorker
