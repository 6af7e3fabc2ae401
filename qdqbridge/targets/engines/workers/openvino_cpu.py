"""OpenVINO on the CPU: which layer runs in which precision is in its runtime model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import openvino

from qdqbridge.targets.engines.workers import Array, Loaded, Row, TimeRow

_INTEGERS = ("i8", "u8", "i16", "u16", "i32", "i4", "u4", "i64", "boolean")
_MOVING = frozenset(
    {
        "Const", "Input", "Output", "Reorder", "Reshape", "Transpose", "Convert", "Concatenation",
        "Split", "Gather", "StridedSlice", "Pad", "Tile", "Broadcast", "ShapeOf",
    }
)  # fmt: skip
"""Layers that move or convert values."""
_PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})


_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Float32 where a model is float: no bfloat16, and no activations that it quantizes on its own."""


class OpenVinoWorker:
    """Compiles models for the CPU, in float32 where they are float."""

    def __init__(self) -> None:
        self._core = openvino.Core()
        self._compiled: dict[str, Any] = {}
        self._models: dict[str, Any] = {}

    def version(self) -> str:
        """Returns the versions that decide."""
        return f"OpenVINO {openvino.__version__.partition('-')[0]}, CPU"

    def load(self, key: str, file: str) -> Loaded:
        """Compiles a model."""
        model = self._core.read_model(file)
        compiled = self._core.compile_model(model, "CPU", _EXACT)
        self._compiled[key], self._models[key] = compiled, model
        layers = compiled.get_runtime_model().get_ordered_ops()
        return [_executed_layer_row(layer) for layer in layers], 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        compiled = self._compiled[key]
        found = compiled(dict(inputs))
        return {name: found[compiled.output(name)].copy() for name in names}

    def times(
        self, key: str, inputs: Mapping[str, Array], repeats: int, threads: int
    ) -> list[TimeRow]:
        """Returns what each layer takes, as its performance counters say; 0 threads are its own."""
        counted = {**_EXACT, "PERF_COUNT": "YES", "INFERENCE_NUM_THREADS": threads}
        compiled = self._core.compile_model(self._models[key], "CPU", counted)
        request, taken, kinds = compiled.create_infer_request(), dict[str, list[float]](), {}
        for _ in range(repeats):
            request.infer(dict(inputs))
            for layer in request.get_profiling_info():
                if layer.status == openvino.ProfilingInfo.Status.EXECUTED:
                    taken.setdefault(layer.node_name, []).append(layer.real_time.total_seconds())
                    kinds[layer.node_name] = f"{layer.node_type} {layer.exec_type}"
        made = {
            layer.friendly_name: _said(layer, "originalLayersNames").split(",")
            for layer in compiled.get_runtime_model().get_ordered_ops()
        }
        return [
            (name, kinds[name], min(times), (name, *filter(None, made.get(name, ()))))
            for name, times in taken.items()
        ]


def _said(layer: Any, name: str) -> str:
    value = layer.get_rt_info()[name]
    return str(value.value if hasattr(value, "value") else value)


def _executed_layer_row(layer: Any) -> Row:
    asked = ("layerType", "runtimePrecision", "primitiveType")
    kind, precision, primitive = (_said(layer, name) for name in asked)
    integers = precision in _INTEGERS
    if kind in _PRODUCTS:  # integer weights alone make no product of integers
        integers = primitive.lower().endswith(("i8", "u8"))
    taken = integers or kind in _MOVING
    why = "" if taken else f"it runs as {primitive}"
    return layer.friendly_name, kind, precision, taken, why


WORKER = OpenVinoWorker
