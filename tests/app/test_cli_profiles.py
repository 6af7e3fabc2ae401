"""``export --check``, the export profiles and ``diff`` on the command line."""

from __future__ import annotations

import json

import onnx
import pytest

import qdqbridge as qb
from qdqbridge.app import pipeline
from qdqbridge.app.cli.failures import MODEL, USAGE, run
from qdqbridge.targets.profiles import PROFILES
from tests.places import MODELS, ROOT

CNN = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")
SIGNED = str(MODELS / "digits_cnn_s8s8_per_tensor.onnx")
ATTENTION = str(MODELS / "digits_attention_u8s8_per_channel.onnx")


def test_check_of_a_file_that_fuses(capsys):
    assert run(["export", CNN, "--check"]) == 0
    out, err = capsys.readouterr()
    assert "pairs-fit" in out and "on some processors" in out
    assert err == ""
    assert run(["export", CNN, "--check", "--profile", "openvino"]) == 0
    rules = len(PROFILES["openvino"].rules)
    assert f"all {rules} rules of profile 'openvino' are kept" in capsys.readouterr().out


def test_check_of_a_file_that_does_not(capsys):
    assert run(["export", ATTENTION, "--check"]) == 1
    out = capsys.readouterr().out
    assert "LayerNormalization" in out
    assert "no kernel" in out
    assert f"{len(pipeline.check(ATTENTION))} findings: " in out


def test_equal_findings_are_counted(capsys):
    found = pipeline.check(CNN, "tensorrt")
    assert len(found) > 20
    assert run(["export", CNN, "--check", "--profile", "tensorrt"]) == 1
    out = capsys.readouterr().out
    assert f"{len(found)} findings: " in out
    assert "more (--json lists them)" in out.replace("│", "")
    assert len(out.splitlines()) < 2 * len(found)
    biases = [f for f in found if f.rule == "float-bias"]
    assert f"│ {len(biases):5} │" in out
    assert run(["export", CNN, "--check", "--profile", "tensorrt", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["findings"]) == len(found)


def test_an_invalid_file_is_not_checked(capsys):
    for name in ("nowhere.onnx", "manifest.json"):
        assert run(["export", str(ROOT / name), "--check"]) == MODEL
        assert name in capsys.readouterr().err


def test_check_for_programs(capsys):
    assert run(["export", SIGNED, "--check", "--profile", "tensorrt", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["profile"], found["met"]) == ("tensorrt", False)
    expected = pipeline.check(SIGNED, "tensorrt")
    assert [f["reason"] for f in found["findings"]] == [f.reason for f in expected]
    assert {f["rule"] for f in found["findings"]} == {"float-bias", "no-q-before-residual-add"}
    assert [r["name"] for r in found["rules"]] == [r.name for r in PROFILES["tensorrt"].rules]
    names = {node.name for node in onnx.load(SIGNED).graph.node}
    assert {f["node"] for f in found["findings"]} <= names


def test_check_writes_nothing(tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    run(["export", CNN, "--check"])
    assert sorted(tmp_path.iterdir()) == before
    capsys.readouterr()


def test_what_is_written_is_what_is_checked(tmp_path, capsys):
    path = tmp_path / "out.onnx"
    arguments = ["export", SIGNED, "-o", str(path), "--profile", "tensorrt", "--check", "--json"]
    assert run(arguments) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["output"] == str(path)
    assert {f["rule"] for f in found["findings"]} == {"no-q-before-residual-add"}
    assert qb.load(path).digest == qb.load(SIGNED).digest


def test_neither_output_nor_check_is_a_usage_error(capsys):
    assert run(["export", CNN]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--output" in err
    assert "--check" in err


def test_unknown_profile(capsys):
    assert run(["export", CNN, "--check", "--profile", "rot13"]) == USAGE
    assert 'Choose from: "ort", "portable", "tensorrt"' in capsys.readouterr().err


def test_what_a_profile_cannot_express_is_listed(tmp_path, capsys):
    path = tmp_path / "out.onnx"
    assert run(["export", CNN, "-o", str(path), "--profile", "tensorrt"]) == MODEL
    err = capsys.readouterr().err
    assert "TensorRT cannot take this graph" in err
    assert "is uint8, not int8" in err
    assert not path.exists()


@pytest.mark.parametrize("profile", ["portable", "qnn", "openvino", "qoperator"])
def test_profiles_write_the_same_network(profile, tmp_path, capsys):
    path = tmp_path / "out.onnx"
    assert run(["export", CNN, "-o", str(path), "--profile", profile]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    assert run(["diff", CNN, str(path)]) == 0
    assert "equal" in capsys.readouterr().out


def test_diff(capsys):
    assert run(["diff", CNN, SIGNED]) == 1
    out = capsys.readouterr().out
    assert "granularity per channel along axis 0 -> per tensor" in out
    assert f"{len(pipeline.diff(qb.load(CNN), qb.load(SIGNED)))} differences: " in out


def test_diff_for_programs(capsys):
    assert run(["diff", CNN, SIGNED, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    expected = pipeline.diff(qb.load(CNN), qb.load(SIGNED))
    assert found["equal"] is False
    assert [d["text"] for d in found["differences"]] == [d.text for d in expected]
    assert run(["diff", CNN, CNN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"equal": True, "differences": []}


def test_diff_of_a_file_that_is_not_there(capsys):
    assert run(["diff", CNN, "nowhere.onnx"]) == MODEL
    assert "nowhere.onnx" in capsys.readouterr().err
