"""Sessions of onnxruntime whose integer products do not saturate, on any processor."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort

from qdqbridge.onnx_io.runtime.products import (
    keep_byte_products,
    keep_fused_products,
    saturates,
)


def exact_session(
    model: str | Path | onnx.ModelProto, options: ort.SessionOptions | None = None
) -> ort.InferenceSession:
    """Returns a session on the CPU.

    Args:
        model: A file, or what stands in it.
        options: Those of the session, to which those that keep products are added.
    """
    options = options or ort.SessionOptions()
    keep_fused_products(options)
    source: str | bytes
    if saturates():
        proto = onnx.ModelProto()
        proto.CopyFrom(model if isinstance(model, onnx.ModelProto) else onnx.load(model))
        keep_byte_products(proto.graph)
        source = proto.SerializeToString()
    elif isinstance(model, onnx.ModelProto):
        source = model.SerializeToString()
    else:
        source = str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
