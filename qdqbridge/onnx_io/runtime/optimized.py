"""What onnxruntime makes of a model before it runs it: other operators, fewer of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx


def optimized(source: Path | bytes, *, layouts: bool = True) -> onnx.ModelProto | None:
    """Returns the model that onnxruntime runs; None where it does not load the given one.

    Args:
        source: A file, or its bytes.
        layouts: Also what depends on the processor: blocks of channels, channels last.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not layouts:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        try:
            ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception:  # whatever a runtime raises of a file: who runs it will tell
            return None
        return onnx.load(options.optimized_model_filepath, load_external_data=False)
