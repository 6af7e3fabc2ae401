"""The verb ``partition``: a page, JSON, exit codes, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.places import MODELS

pytest.importorskip("tvm")

from qdqbridge.app.cli.failures import run
from qdqbridge.tvm.byoc import model as byoc_model

pytestmark = pytest.mark.relax

CNN = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")


def test_a_model_that_is_taken_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", CNN]) == 0
    out, err = capsys.readouterr()
    assert "canonical: 13 composites in 1 region(s) hold 25 of 25 operators, 0 left" in out
    assert "conv2d" in out and err == ""


def test_what_is_left_is_explained_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", CNN, "--table", "per-tensor"]) == 1
    out, _ = capsys.readouterr()
    assert "the weight has 24 scales along axis 0, one scale for the tensor is taken" in out


def test_rewrites_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", CNN, "--table", "int8"]) == 1
    capsys.readouterr()
    assert run(["partition", CNN, "--table", "int8", "--rewrite"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("rewrote activations (8-bit type, exact): 12 values from uint8 to int8")


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", CNN, "--table", "int8", "--rewrite", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dialect"] == "relax" and found["complete"] and found["composites"] == 13
    assert found["rewrites"][0]["exactness"] == "exact"


def test_unknown_tables_and_extents_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["partition", CNN, "--table", "tpu"]) == 3
    assert "there are canonical, int8, per-tensor" in capsys.readouterr().err
    assert run(["partition", CNN, "--extent", "batch"]) == 3
    assert "write it as batch=1" in capsys.readouterr().err
    assert run(["partition", CNN, "--dialect", "mlir"]) == 2


@pytest.mark.parametrize(
    ("extent", "words"),
    [
        ("batch=0", ("'batch' must be a number from 1", "it is 0", "batch=1")),
        ("batch=2147483648", ("'batch' must be a number from 1", "it is 2147483648")),
        ("time=2", ("no symbolic extent 'time'", "its inputs have batch")),
    ],
)
def test_extents_that_the_model_does_not_have_are_refused(
    extent: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["partition", CNN, "--extent", extent]) == 3
    out, err = capsys.readouterr()
    assert out == "" and all(word in err for word in words)


def test_extents_become_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["partition", CNN, "--table", "int8", "--json"]
    shapes: dict[str, set[str]] = {}
    for extent in ("", "batch=3"):
        assert run([*options, *(["--extent", extent] if extent else [])]) == 1
        left = json.loads(capsys.readouterr().out)["left"]
        shapes[extent] = {item["result"].partition("[")[2].partition(",")[0] for item in left}
    assert shapes == {"": {"batch"}, "batch=3": {"3"}}


def test_relay_is_asked_for_where_it_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = byoc_model.find_spec
    monkeypatch.setattr(
        byoc_model, "find_spec", lambda name: None if name == "tvm.relay" else real(name)
    )
    assert run(["partition", CNN, "--dialect", "relay"]) == 3
    assert "pip install --no-deps hhb-tvm" in capsys.readouterr().err
