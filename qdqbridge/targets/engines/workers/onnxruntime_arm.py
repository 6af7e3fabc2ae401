"""onnxruntime on 64-bit Arm, whose products of bytes are exact in 32 bits."""

from __future__ import annotations

import platform

from qdqbridge.targets.engines.workers.onnxruntime_cpu import OnnxRuntimeWorker


class OnnxRuntimeArmWorker(OnnxRuntimeWorker):
    """The same engine; it starts on such a processor only, and tells it."""

    def __init__(self) -> None:
        super().__init__()
        if platform.machine() not in ("aarch64", "arm64"):
            raise RuntimeError(f"this Python runs on {platform.machine()}, not on 64-bit Arm")

    def version(self) -> str:
        """Returns the versions that decide, and the processor."""
        return f"{super().version()} on {platform.machine()}"


WORKER = OnnxRuntimeArmWorker
