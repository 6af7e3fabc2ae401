"""LiteRT from the command line, on the project's own models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qdqbridge
from qdqbridge.app.cli.failures import run
from tests.places import MODELS

CNN = MODELS / "digits_cnn_u8s8_per_channel.onnx"
ATTENTION = MODELS / "digits_attention_u8s8_per_channel.onnx"
BOTH = pytest.mark.parametrize("model", [CNN, ATTENTION], ids=lambda path: path.stem)
ENGINE = ["--engine", "litert"]


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    file = tmp_path / "images.npz"
    np.savez(file, input=np.load(MODELS / "digits_test.npz")["x"][:4])
    return ["--data", str(file)]


def written(model: Path, folder: Path) -> Path:
    path = folder / "model.tflite"
    assert run(["export", str(model), "-o", str(path), "--extent", "batch=1"]) == 0
    return path


@BOTH
def test_it_runs_models_of_both_formats(model: Path, data: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    expected = qdqbridge.evaluate(
        qdqbridge.load(model), {"input": np.load(MODELS / "digits_test.npz")["x"][:4]}
    )["logits"]
    for file in (model, written(model, tmp_path)):
        assert run(["run", str(file), *data, *ENGINE, "-o", str(out), "--force"]) == 0
        found = np.load(out)["logits"]
        np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))
        assert np.abs(found - expected).max() < 0.05 * np.ptp(expected)


@BOTH
def test_it_is_a_side_of_comparisons(
    model: Path, data: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(model), *data, *ENGINE, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [value["name"] for value in found["values"]] == ["logits"]
    for file in (model, written(model, tmp_path)):
        capfd.readouterr()
        local = ["compare", str(file), *data, *ENGINE, "--local", "--max-lsb", "1", "--json"]
        assert run(local) == 0
        found = json.loads(capfd.readouterr().out)
        assert len(found["values"]) > 10  # every value of the file, not its outputs alone
        assert found["unexplained"] == 0
        assert found["max_lsb"] == 1


def test_a_local_comparison_takes_nothing_along_when_litert_crashes(
    data: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqbridge.targets.engines.vendor.ProcessLimits", _tight)
    assert run(["compare", str(CNN), *data, *ENGINE, "--local"]) == 3
    said = capfd.readouterr().err
    assert "LiteRT, CPU cannot" in said
    assert "Traceback" not in said


def _tight() -> object:
    from qdqbridge.targets.engines.process import ProcessLimits

    return ProcessLimits(memory=96 << 20)


@BOTH
def test_it_checks_what_is_written_for_it(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checked.tflite"
    asked = ["--extent", "batch=1", "--check", *ENGINE]
    assert run(["export", str(model), "-o", str(path), *asked]) == 0
    said = capfd.readouterr().out
    assert "LiteRT, CPU (LiteRT 2." in said
    assert "1 partition" in said
    assert run(["export", str(path), "--check", *ENGINE, "--json"]) == 0
    verdict = json.loads(capfd.readouterr().out)["engine"]
    assert verdict["whole"]
    assert all(placement["taken"] for placement in verdict["placements"])
    assert run(["export", str(model), *asked]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["-o", "x.onnx", "--check", *ENGINE], 3, "does not end in .tflite"),
        (["-o", "x.tflite", "--check", "--engine", "openvino"], 2, "give --engine litert"),
        (["-o", "x.tflite", "--check"], 2, "give --engine litert, or --profile ethos-u"),
        (["-o", "x.tflite", *ENGINE], 2, "--check"),
        (["--check", "--profile", "qnn", *ENGINE], 2, "no profile of ONNX files"),
    ],
)
def test_what_does_not_go_together_is_named(
    arguments: list[str], code: int, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(["export", str(CNN), *arguments]) == code
    assert said in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
