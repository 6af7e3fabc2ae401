"""onnxruntime on x86 with AVX2 and without VNNI, whose pairs of byte products saturate."""

from __future__ import annotations

from qdqbridge.targets.engines.processors import processor
from qdqbridge.targets.engines.workers.onnxruntime_cpu import OnnxRuntimeWorker


class OnnxRuntimeAvx2Worker(OnnxRuntimeWorker):
    """The same engine; it starts on such a processor only, and tells which."""

    def __init__(self) -> None:
        super().__init__()
        self._processor = processor()
        if not self._processor.avx2 or self._processor.vnni:
            raise RuntimeError(f"{self._processor} is not x86 with AVX2 and without VNNI")

    def version(self) -> str:
        """Returns the versions that decide, and the processor."""
        return f"{super().version()} on {self._processor.brand}"


WORKER = OnnxRuntimeAvx2Worker
