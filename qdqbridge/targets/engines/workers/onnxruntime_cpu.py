"""onnxruntime on the CPU with its graph optimizations."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from qdqbridge.onnx_io.runtime.products import MARKS
from qdqbridge.onnx_io.runtime.session import run
from qdqbridge.targets.engines.workers import Array, Loaded, Row, TimeRow

_OPTIMIZED = "optimized.onnx"
_KERNEL = "_kernel_time"
_BY_THREADS = frozenset({"com.microsoft::DynamicQuantizeLSTM", "com.microsoft::QMoE"})
"""Operators whose results depend on the number of threads: one computes what the contract says."""


class OnnxRuntimeWorker:
    """Loads models with all optimizations and says which operators became of their nodes."""

    def __init__(self) -> None:
        self._sessions: dict[str, Any] = {}
        self._files: dict[str, str] = {}

    def version(self) -> str:
        """Returns the versions that decide."""
        return f"onnxruntime {ort.__version__}"

    def load(self, key: str, file: str) -> Loaded:
        """Loads a model."""
        with tempfile.TemporaryDirectory() as folder:
            options, optimized = _options(folder)
            session, self._files[key] = _session(file, options), file
            placed = ort_node_placement(optimized)
            if any(operator in _BY_THREADS for _, operator, *_ in placed):
                options.intra_op_num_threads = 1
                session = _session(file, options)
            self._sessions[key] = session
            return placed, 1

    def run(self, key: str, inputs: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """Runs a model."""
        return dict(zip(names, run(self._sessions[key], inputs, names), strict=True))

    def times(
        self, key: str, inputs: Mapping[str, Array], repeats: int, threads: int
    ) -> list[TimeRow]:
        """Returns what each node takes, as onnxruntime's profiler says; 0 threads are its own."""
        with tempfile.TemporaryDirectory() as folder:
            options, optimized = _options(folder)
            options.enable_profiling = True
            options.intra_op_num_threads = threads
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = _session(self._files[key], options)
            names = [output.name for output in session.get_outputs()]
            for _ in range(repeats):
                run(session, inputs, names)
            events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
            return _times(events, optimized)


def _options(folder: str) -> tuple[Any, Path]:
    """Returns options with all optimizations, and where the optimized model will be."""
    options, optimized = ort.SessionOptions(), Path(folder) / _OPTIMIZED
    options.log_severity_level = 4
    options.optimized_model_filepath = str(optimized)
    return options, optimized


def _session(file: str, options: Any) -> Any:
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _times(events: Sequence[Mapping[str, Any]], optimized: Path) -> list[TimeRow]:
    """Returns the shortest of each node's events in a profile."""
    from qdqbridge.targets.profiles.finding import optimized_view

    results = {node.name: node.outputs for node in optimized_view(optimized).nodes}
    taken: dict[str, list[float]] = {}
    operators: dict[str, str] = {}
    for event in events:
        name = str(event["name"])
        if event["cat"] == "Node" and name.endswith(_KERNEL):
            node = name.removesuffix(_KERNEL)
            taken.setdefault(node, []).append(event["dur"] * 1e-6)
            operators[node] = str(event["args"]["op_name"])
    return [
        (node, operators[node], min(seconds), _names(node, results.get(node, ())))
        for node, seconds in taken.items()
    ]


def _names(node: str, results: Sequence[str]) -> tuple[str, ...]:
    plain = [MARKS.sub("", name) for name in (node, *results)]
    return tuple(dict.fromkeys(name for name in plain if name))


def ort_node_placement(model: Path) -> list[Row]:
    """Returns what onnxruntime makes of each node of a model that it runs as it is."""
    from qdqbridge.targets.profiles.finding import optimized_view
    from qdqbridge.targets.profiles.shared_rules import float_region_nodes

    view = optimized_view(model)
    real = set(float_region_nodes(view))
    why = "it stayed in float between DequantizeLinear and QuantizeLinear"
    return [
        (node.name, node.op, "float" if node in real else "CPU", node not in real,
         why if node in real else "")
        for node in view.nodes
    ]  # fmt: skip


WORKER = OnnxRuntimeWorker
