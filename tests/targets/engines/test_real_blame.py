"""What blame charges to the kernels of vendors' engines, on the project's own models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqbridge.app.cli.failures import run
from tests.places import MODELS

FLOAT = MODELS / "digits_cnn_float.onnx"
INT8 = MODELS / "digits_cnn_u8s8_per_channel.onnx"
ENGINES = pytest.mark.parametrize("engine", ["openvino", "qnn-htp", "litert"])


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    file = tmp_path / "images.npz"
    np.savez(file, input=np.load(MODELS / "digits_test.npz")["x"][200:216])
    return ["--data", str(file), "--extent", "batch=1", "--json"]


def asked(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capfd.readouterr()
    assert run(["blame", *arguments]) == 0
    return json.loads(capfd.readouterr().out)


@ENGINES
def test_the_kernels_of_an_engine_explain_what_it_does_otherwise(
    engine: str, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Two runtimes of one file: kernel errors put into the contract's run give the engine's."""
    found = asked([str(INT8), "--engine", engine, *data], capfd)
    assert found["engine"]
    assert found["unseen"] == []
    assert found["tensors"]
    assert {each["kind"] for each in found["tensors"]} == {"kernel"}
    assert all(each["cause"].startswith("kernel: ") for each in found["tensors"])
    worst = [each["alone_db"] for each in found["tensors"]]
    assert worst == sorted(worst)
    # Each is at most one step of 8 bits: tens of decibels, and what they explain is as much.
    assert found["quantized_db"] > 25
    assert found["simulated_db"] > 25


@ENGINES
def test_an_engines_own_share_stands_among_the_tensors(
    engine: str, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    found = asked([str(FLOAT), str(INT8), "--engine", engine, *data], capfd)
    assert found["aligned"] == 1.0
    kinds = {each["kind"] for each in found["tensors"]}
    assert {"activation", "weight", "kernel"} <= kinds
    # The engine adds little to what the file's roundings do: they are the larger part.
    assert found["tensors"][0]["kind"] != "kernel"
    assert found["quantized_db"] == pytest.approx(found["simulated_db"], abs=3)


def test_what_an_engine_does_not_take_is_said(
    data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    fixed = [each for each in data if each not in ("--extent", "batch=1")]
    assert run(["blame", str(INT8), "--engine", "qnn-htp", *fixed]) == 3
    said = capfd.readouterr().err
    assert "takes fixed shapes only" in said
    assert "--extent batch=1" in said
