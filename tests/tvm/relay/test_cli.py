"""The verbs that write Relay modules, as a process would be called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.tvm.relay import build, load
from tests.places import MODELS

FLOAT, DATA = MODELS / "digits_mlp_float.onnx", MODELS / "digits_test.npz"
IMAGES = np.load(DATA)["x"][:4]


def call(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


def test_a_float_model_becomes_a_quantized_relay_module(tmp_path: Path) -> None:
    module, file = tmp_path / "q.relay", tmp_path / "q.onnx"
    options = ("--data", DATA, "--chooser", "minmax", "--repair", "none")
    assert call("quantize", FLOAT, "-o", module, "--extent", "batch=4", *options) == 0
    assert call("quantize", FLOAT, "-o", file, *options) == 0
    graph = qb.load(file)
    (name,) = (value.name for value in graph.inputs)
    found = build(*load(module)).run({name: IMAGES})
    for key, array in qb.evaluate(graph, {name: IMAGES}).items():
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize("verb", [("to-tvm",), ("quantize", "--data", DATA)])
def test_numbers_are_wanted_for_symbolic_extents(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = verb
    assert call(name, FLOAT, "-o", tmp_path / "q.relay", *options) == 3
    assert "--extent batch=1" in capsys.readouterr().err
    assert call(name, FLOAT, "-o", tmp_path / "q.relay", "--extent", "batch", *options) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_spelling_is_written(tmp_path: Path) -> None:
    quantized = MODELS / "digits_cnn_s8s8_per_tensor.onnx"
    for variant in ("canonical", "tflite"):
        path = tmp_path / f"{variant}.relay"
        options = ("--extent", "batch=1", "--variant", variant)
        assert call("to-tvm", quantized, "-o", path, *options) == 0
    texts = {str(load(path)[0]) for path in tmp_path.iterdir()}
    assert len(texts) == 2
