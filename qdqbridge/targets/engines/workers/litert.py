"""LiteRT on the CPU, its own kernels: no delegate changes what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ai_edge_litert.interpreter import Interpreter, OpResolverType

from qdqbridge.targets.engines.workers import Array, Loaded
from qdqbridge.tflite_io.litert import Kernels, recorded_here


class LiteRTWorker:
    """Runs TFLite models; it takes every operator of a file or refuses the file."""

    def __init__(self) -> None:
        self._interpreters: dict[str, Any] = {}

    def version(self) -> str:
        """Returns the versions that decide."""
        return f"LiteRT {version('ai-edge-litert')}"

    def load(self, key: str, file: str) -> Loaded:
        """Loads a model."""
        resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        interpreter = Interpreter(file, experimental_op_resolver_type=resolver)
        interpreter.allocate_tensors()
        self._interpreters[key] = interpreter
        details = interpreter._get_ops_details()
        return [(str(op["index"]), str(op["op_name"]), "CPU", True, "") for op in details], 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        interpreter = self._interpreters[key]
        details = interpreter.get_input_details()
        for detail, array in zip(details, inputs.values(), strict=True):
            if tuple(detail["shape"]) != array.shape:
                interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for detail, array in zip(details, inputs.values(), strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        found = interpreter.get_output_details()
        arrays = [interpreter.get_tensor(detail["index"]).copy() for detail in found]
        return dict(zip(names, arrays, strict=True))

    def record(
        self, data: bytes, kernels: str, inputs: Mapping[int, Array], wanted: list[int]
    ) -> dict[int, Array]:
        """Runs a file once and returns tensors by index, those that it still has."""
        return recorded_here(data, Kernels[kernels], inputs, wanted)


WORKER = LiteRTWorker
