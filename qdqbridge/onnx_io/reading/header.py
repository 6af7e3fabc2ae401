"""What an ONNX file says about itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from qdqbridge.core.graph.graph import Header
from qdqbridge.onnx_io.reading.model_file import read_model


def header(path: Path) -> Header:
    """Returns versions, producer and operator counts of a model file.

    Raises:
        ModelFileError: The file cannot be read.
        InvalidModelError: Its header makes no sense.
    """
    model = read_model(path)
    names = (f"{node.domain}.{node.op_type}".removeprefix("ai.onnx") for node in model.graph.node)
    return Header(
        file=path.name,
        ir_version=model.ir_version,
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        operators=dict(Counter(name.lstrip(".") for name in names).most_common()),
    )
