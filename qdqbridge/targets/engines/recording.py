"""An engine of TFLite files in a process of its own that gives every tensor, not outputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from qdqbridge.targets.engines.kinds import engine_kind
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits

if TYPE_CHECKING:
    from qdqbridge.tflite_io.litert import Kernels

Array = NDArray[Any]


class ChildRecorder:
    """Runs TFLite files where a crash takes nothing along.

    The process starts when a file is to be run, and ends with this object.

    Args:
        name: The engine, ``litert`` or ``tosa``.
        limits: What the engine may take.

    Raises:
        UnsupportedTargetError: The engine is not installed.
    """

    def __init__(self, name: str = "litert", limits: ProcessLimits | None = None) -> None:
        self._kind, self._limits = engine_kind(name), limits or ProcessLimits()
        self._process: EngineProcess | None = None

    def __call__(
        self, data: bytes, kernels: Kernels, inputs: Mapping[int, Array], wanted: list[int]
    ) -> dict[int, Array]:
        """Runs a file once and returns tensors by index, those that it still has.

        Raises:
            UnsupportedTargetError: The engine refuses the file, crashes or hangs.
        """
        kind = self._kind
        if self._process is None or not self._process.alive:
            self._process = EngineProcess(kind.worker, kind.label, self._limits, kind.install)
        asked = (data, kernels.name, dict(inputs), wanted)
        return self._process.ask("run the model", "record", *asked)
