"""``qdqbridge run --profile-kernels``."""

from __future__ import annotations

import json

import pytest

from qdqbridge.app.cli.failures import run
from tests.places import MODELS

RUN = [
    "run", str(MODELS / "digits_cnn_u8s8_per_channel.onnx"), "--data",
    str(MODELS / "digits_test.npz"), "--batch-size", "8", "--profile-kernels",
]  # fmt: skip


def test_kernels_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["limit_gops"] > 1
    assert len(found["kernels"]) > 3
    assert all(entry["us"] > 0 and entry["calls"] > 0 for entry in found["kernels"])
    assert list(found["outputs"])


def test_only_what_tvm_compiled_has_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*RUN, "--engine", "interpreter"]) == 3
    assert "no kernels to profile" in capsys.readouterr().err
