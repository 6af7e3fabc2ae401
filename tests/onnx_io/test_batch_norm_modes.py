"""A BatchNormalization in training mode normalizes by its batch, whoever reads its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qdqbridge as qb
from tests.onnx_models import Builder

CHANNELS = 3
OFF = 1e-5
"""Results of up to 4, from sums of float32 in another order."""
RESULTS = ("y", "mean", "var", "saved_mean", "saved_var")


@pytest.mark.parametrize("read", [1, 3])
@pytest.mark.parametrize("opset", [7, 8, 9, 14, 15])
def test_training_mode_is_kept(opset: int, read: int, tmp_path: Path) -> None:
    """Before opset 14 the results say it. onnxruntime's optimizer loses it: it is run without."""
    b = Builder(opset)
    x = b.input("x", ["n", CHANNELS, 4, 4])
    scale, bias, mean, var = (
        b.init(np.array(numbers, np.float32))
        for numbers in ([1, 2, 0.5], [0, 1, 2], [0.1, 0.2, 0.3], [1, 2, 3])
    )
    results = list(RESULTS[: 5 if opset < 14 else 3])
    given: dict[str, Any] = {} if opset < 14 else {"training_mode": 1}
    b.nodes.append(
        onnx.helper.make_node("BatchNormalization", [x, scale, bias, mean, var], results, **given)
    )
    for name in results[:read]:
        b.output(name, ["n", CHANNELS, 4, 4] if name == "y" else [CHANNELS])
    path = tmp_path / "model.onnx"
    onnx.save(b.model(), path)
    rows = np.random.default_rng(0).random((2, CHANNELS, 4, 4)).astype(np.float32)
    axes = (0, 2, 3)
    centred = rows - rows.mean(axes, keepdims=True)
    factor, addend = (np.array(n)[:, None, None] for n in ([1, 2, 0.5], [0, 1, 2]))
    want = centred / np.sqrt(rows.var(axes, keepdims=True) + 1e-5) * factor + addend
    graph = qb.load(path)
    np.testing.assert_allclose(qb.evaluate(graph, {"x": rows})["y"], want, atol=OFF)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for profile in ("ort", "portable"):
        saved = tmp_path / f"{profile}.onnx"
        qb.save(graph, saved, profile=profile)
        session = ort.InferenceSession(saved, options, providers=["CPUExecutionProvider"])
        got = np.asarray(session.run(["y"], {"x": rows})[0])
        np.testing.assert_allclose(got, want, atol=OFF)
        assert qb.load(saved).digest == graph.digest
