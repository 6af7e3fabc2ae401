"""A float model quantized and saved as QDQ: ``python examples/quantize_and_save.py [OUT.onnx]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
MODEL = MODELS / "digits_mlp_float.onnx"

with np.load(MODELS / "digits_test.npz") as data:
    images, labels = data["x"], data["labels"]
calibration, held_out = {"input": images[:120]}, {"input": images[120:]}

graph = qb.quantize(MODEL, calibration)
for note in qb.explain(graph):  # what stayed float and why, and what somebody should know
    print(f"{note.rule}: {note.reason}")

# On images that were not calibrated with.
for name, model in (("float", qb.load(MODEL)), ("quantized", graph)):
    logits = qb.evaluate(model, held_out)["logits"]
    print(f"{name}: right on {np.mean(logits.argmax(axis=1) == labels[120:]):.1%}")

out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "quantized.onnx"
qb.save(graph, out)
print(f"{out.name}: the same digest when it is read again: {qb.load(out).digest == graph.digest}")
