"""A TFLite file as QDQ ONNX: ``python examples/tflite_to_onnx.py [OUT.onnx]``.

Needs the ``tflite`` extra, which knows the schema of such files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import qdqbridge as qb

MODEL = Path(__file__).resolve().parent.parent / "tests/tflite_io/data/int8_network.tflite"

graph = qb.load(MODEL)
for value in graph.inputs:
    print(f"input {value.name}: {value.type.dtype}{value.type.shape}")
print(f"{len(graph.nodes)} nodes; first {graph.nodes[0].op.name}, last {graph.nodes[-1].op.name}")

out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "network.onnx"
qb.save(graph, out)
print(f"{out.name}: the same digest when it is read again: {qb.load(out).digest == graph.digest}")

# onnxruntime runs the written file; the interpreter says what the graph means.
rng = np.random.default_rng(0)
inputs = {
    value.name: rng.integers(
        -128, 128, [n if isinstance(n, int) else 1 for n in value.type.shape]
    ).astype(value.type.dtype.numpy)
    for value in graph.inputs
    if value.type.shape is not None
}
print(qb.compare(graph, out, inputs))
