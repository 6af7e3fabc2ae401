"""One file on several engines: ``python examples/compare_engines.py [FOLDER]``."""

# %% The interpreter computes what every path has to compute, bit for bit
from __future__ import annotations

from pathlib import Path
from typing import Any

import bars
import numpy as np

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
MODEL, FOLDER = MODELS / "digits_cnn_u8s8_per_channel.onnx", bars.folder()

with np.load(MODELS / "digits_test.npz") as data:
    images, labels = {"input": data["x"]}, data["labels"]
graph = qb.load(MODEL)
contract = qb.evaluate(graph, images)["logits"]

# %% TVM, onnxruntime as users run it, and onnxruntime on x86 without VNNI, which is predicted
executable = qb.compile(graph)
with qb.open_engine("onnxruntime-optimized", MODEL) as engine:
    optimized = engine.run(images, engine.outputs)["logits"]
results: dict[str, Any] = {
    "TVM": executable.run(images)["logits"],
    "onnxruntime, optimized": optimized,
    "onnxruntime without VNNI": qb.evaluate(graph, images, pairs=True)["logits"],
}
for name, logits in results.items():
    right = (logits.argmax(axis=1) == labels).mean()
    print(f"{name}: right on {right:.1%}, equal to the interpreter: {(logits == contract).all()}")

# %% Which node differs, and why
print(qb.compare(graph, MODEL, images, local=True))
differ = {name: 100 * (logits != contract).mean() for name, logits in results.items()}
bars.draw(
    FOLDER / "compare_engines.svg", "outputs that differ from the numeric contract", differ, "%"
)
