"""Whose fault an error is: spoiled tensors are found, named and repaired; networks are aligned."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.attribution.correspondence import correspondence, share
from qdqbridge.attribution.simulation import FloatRuns
from qdqbridge.cli.failures import run
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.graph.numerics import dequantize
from qdqbridge.viewing import record
from tests.attribution.sabotage import named, quantized_by_onnxruntime, spoil

MODELS = Path(__file__).resolve().parents[2] / "models"
CNN, ATTENTION = (MODELS / f"digits_{name}_float.onnx" for name in ("cnn", "attention"))
PAIRS = [
    (CNN, MODELS / "digits_cnn_u8s8_per_channel.onnx"),
    (CNN, MODELS / "digits_cnn_s8s8_per_tensor.onnx"),
    (ATTENTION, MODELS / "digits_attention_u8s8_per_channel.onnx"),
]


def images(count: int = 32) -> NDArray[Any]:
    with np.load(MODELS / "digits_test.npz") as arrays:
        return arrays["x"][200 : 200 + count]


@pytest.mark.parametrize(("reference", "quantized"), PAIRS)
def test_every_node_corresponds_to_the_right_one(reference: Path, quantized: Path) -> None:
    """What a quantized value stands for is nearly what the float value holds."""
    original, theirs = qb.load(reference), qb.load(quantized)
    found = correspondence(original, theirs)
    assert share(found, theirs) == 1.0
    simulation = FloatRuns(original, {original.inputs[0].name: images()})
    held = record(theirs, {theirs.inputs[0].name: images()})
    checked = 0
    for each in found.rounded:
        if each.params is None:
            continue
        real = dequantize(held[each.theirs], each.params).ravel()
        clean = simulation.stored(each.value).ravel()
        # Noise of 8 bits leaves a correlation above 0.99; another tensor of the net has none.
        assert np.corrcoef(real, clean)[0, 1] > 0.99, each.name
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize(("reference", "quantized"), PAIRS)
def test_the_tensors_explain_the_whole_error(reference: Path, quantized: Path) -> None:
    original = qb.load(reference)
    found = qb.blame(original, quantized, {original.inputs[0].name: images()}, repairs=0)
    # Integer kernels round once where the simulation rounds a float sum: a quarter of a decibel.
    assert found.simulated_db == pytest.approx(found.quantized_db, abs=0.25)


@pytest.fixture(scope="module")
def quantized_cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logging.disable(logging.WARNING)
    out = tmp_path_factory.mktemp("quantized") / "cnn.onnx"
    with np.load(MODELS / "digits_test.npz") as arrays:
        data = arrays["x"][:64]
    return quantized_by_onnxruntime(CNN, out, "input", data, per_channel=True, signed=False)


@pytest.mark.parametrize("seed", range(9))
def test_a_spoiled_tensor_is_named_with_its_cause_and_repaired(
    quantized_cnn: Path, tmp_path: Path, seed: int
) -> None:
    """One of each kind of sabotage; scripts/blame_sabotage takes four networks."""
    made = spoil(quantized_cnn, tmp_path / "spoiled.onnx", seed)
    data = {"input": images()}
    unspoiled = qb.blame(CNN, quantized_cnn, data, repairs=0).quantized_db
    found = qb.blame(CNN, tmp_path / "spoiled.onnx", data)
    assert named(found.tensors[0], made), (made, found.tensors[0])
    assert found.tensors[0].cause in made.causes
    assert found.quantized_db < unspoiled - 3
    assert found.repaired_db >= unspoiled - 1


def test_other_models_are_refused() -> None:
    data = {"input": images()}
    with pytest.raises(UnsupportedModelError, match="nothing of the second model is quantized"):
        qb.blame(CNN, CNN, data)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", input=images(8))
    page = tmp_path / "page.html"
    asked = ["blame", CNN, PAIRS[1][1], "--data", tmp_path / "x.npz", "--page", page]
    assert run([str(each) for each in asked]) == 0
    said = capsys.readouterr().out
    assert "weight rounding" in said
    assert "aligned: 100.0%" in said
    assert run([*[str(each) for each in asked], "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["aligned"] == 1.0
    worst = [each["alone_db"] for each in found["tensors"]]
    assert worst == sorted(worst)
    assert '"damage"' in page.read_text("utf-8")
