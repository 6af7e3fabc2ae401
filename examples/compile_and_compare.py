"""A quantized ONNX model on TVM, beside onnxruntime: ``python examples/compile_and_compare.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
MODEL = MODELS / "digits_cnn_u8s8_per_channel.onnx"

with np.load(MODELS / "digits_test.npz") as data:
    images = {"input": data["x"]}
    labels = data["labels"]

graph = qb.load(MODEL)
print(f"{len(graph.nodes)} nodes, digest {graph.digest[:16]}")

executable = qb.compile(graph)
logits = executable.run(images)["logits"]
print(f"right on {np.mean(logits.argmax(axis=1) == labels):.1%} of {len(labels)} images")

# The interpreter computes what every path has to compute, bit for bit.
meaning = qb.evaluate(graph, images)["logits"]
print(f"equal to the interpreter: {np.array_equal(logits, meaning)}")

print(qb.compare(executable, MODEL, images))
