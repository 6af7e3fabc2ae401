"""A float model to integers, plainly and with repair: ``python examples/quantize_and_repair.py``.

A folder for the file and the picture may be given.
"""

# %% A float model, samples to calibrate with, and others to judge by
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import bars
import numpy as np

import qdqbridge as qb

MODELS = Path(__file__).resolve().parent.parent / "models"
MODEL, FOLDER = MODELS / "digits_mlp_float.onnx", bars.folder()

with np.load(MODELS / "digits_test.npz") as data:
    images, labels = data["x"], data["labels"]
calibration, others = {"input": images[:120]}, {"input": images[120:]}
wanted: Any = qb.evaluate(qb.load(MODEL), others)["logits"]

# %% Three ways: the extremes alone, ranges that are chosen, and everything that helps
repaired = qb.quantize(MODEL, calibration)
ways = {
    "extremes": qb.quantize(MODEL, calibration, chooser="minmax", repair=()),
    "ranges chosen": qb.quantize(MODEL, calibration, repair=()),
    "and repaired": repaired,
}
decibels: dict[str, float] = {}
for name, graph in ways.items():
    logits: Any = qb.evaluate(graph, others)["logits"]
    noise, signal = ((logits - wanted) ** 2).mean(), (wanted**2).mean()
    decibels[name] = 10 * math.log10(signal / noise)
    right = (logits.argmax(axis=1) == labels[120:]).mean()
    print(f"{name}: {decibels[name]:.1f} dB, right on {right:.1%}")

# %% The last one, as a file for onnxruntime
qb.save(repaired, FOLDER / "quantized.onnx", overwrite=True)
same = qb.load(FOLDER / "quantized.onnx").digest == repaired.digest
print(f"quantized.onnx: the same digest when it is read again: {same}")
bars.draw(
    FOLDER / "quantize_and_repair.svg", "outputs on other samples, 8 bits: SQNR", decibels, "dB"
)
