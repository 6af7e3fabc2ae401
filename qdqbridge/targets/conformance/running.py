"""onnxruntime and ONNX's reference implementation on a case, in this process."""

from __future__ import annotations

from typing import Any

from qdqbridge.targets.conformance.exact import Array

LEVELS = {
    "onnxruntime": "ORT_DISABLE_ALL",
    "onnxruntime-basic": "ORT_ENABLE_BASIC",
    "onnxruntime-optimized": "ORT_ENABLE_ALL",
}
"""Engines that are a session of onnxruntime, and its level of optimizations."""
REFERENCE = "onnx.reference"


def run_directly(engine: str, model: bytes, inputs: dict[str, Array]) -> list[Any]:
    """Returns what a session, or the reference implementation, computes.

    Args:
        engine: A key of ``LEVELS``, or ``REFERENCE``.
        model: The bytes of a file.
        inputs: Of the model.
    """
    if engine == REFERENCE:
        from onnx.reference import ReferenceEvaluator

        found: Any = ReferenceEvaluator(proto_of(model)).run(None, dict(inputs))
        return list(found)
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[engine])
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def proto_of(model: bytes) -> Any:
    """Returns a file as ONNX's own record of it."""
    import onnx

    return onnx.load_from_string(model)
