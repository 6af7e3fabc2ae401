"""The verb ``quantize``, as a process would be called."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.app.quantizing import Quantization, quantization
from qdqbridge.app.verdict import goal_met
from qdqbridge.autoquant.simulation.user_metric import MetricScore
from tests.places import MODELS

FLOAT, MLP = (MODELS / f"digits_{name}_float.onnx" for name in ("cnn", "mlp"))
DATA = MODELS / "digits_test.npz"


def call(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


def outputs_of(file: Path, images: NDArray[Any]) -> NDArray[Any]:
    """Returns what a default session of onnxruntime gives."""
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input": images})[0])


def scores_of(made: Quantization) -> tuple[MetricScore, MetricScore]:
    every, few = made.scores() or (None, None)
    assert every is not None and few is not None
    return every, few


def test_a_float_model_becomes_a_quantized_file(tmp_path, capsys) -> None:
    out, page = tmp_path / "out.onnx", tmp_path / "page.html"
    code = call(
        "quantize", FLOAT, "--data", DATA, "-o", out, "--report", page, "--chooser", "minmax",
        "--repair", "bias", "--exclude", "/classifier/*", "--json",
    )  # fmt: skip
    assert code == 0
    told = json.loads(capsys.readouterr().out)
    graph = qb.load(out)
    assert told["digest"] == graph.digest and told["samples"] + len(told["left_out"]) == 360
    assert told["float"] == 1 and "/classifier/Gemm" in told["reasons"]
    assert [step["step"] for step in told["repairs"]] == ["pairs", "bias"]
    (low, high), data = told["inputs"]["input"], np.load(DATA)
    assert (low, high) == (data["x"].min(), data["x"].max())
    assert told["sqnr"] > 25 and told["top1"] > 0.95
    assert page.read_text("utf-8").lstrip().lower().startswith("<!doctype html")
    convs = [node for node in graph.nodes if node.op.name == "Conv"]
    assert all(node.output.quant is not None for node in convs)


def test_a_profile_is_enough(tmp_path) -> None:
    profile, out = tmp_path / "p.json", tmp_path / "out.onnx"
    assert call("profile", FLOAT, "--data", DATA, "-o", profile) == 0
    assert call("quantize", FLOAT, "--profile", profile, "-o", out, "--target", "tensorrt") == 0
    assert call("export", out, "--check", "--profile", "tensorrt") == 0


def test_a_goal_is_met(tmp_path, capsys) -> None:
    out = tmp_path / "out.onnx"
    arguments = ("--repair", "none", "--chooser", "minmax", "--min-sqnr", 38, "--json")
    assert call("quantize", FLOAT, "--data", DATA, "-o", out, *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reverted"] and told["sqnr"] >= 38
    assert call("quantize", FLOAT, "--data", DATA, "-o", out, "--force", *arguments[:-1]) == 0
    said = capsys.readouterr().out
    assert f"{told['sqnr']:.2f} dB SQNR" in said and " to uint16: " not in said


def test_the_verdict_comes_first_and_the_next_command_last(tmp_path, capsys, monkeypatch) -> None:
    out, data = tmp_path / "out.onnx", tmp_path / "data.npz"
    np.savez(data, input=np.load(DATA)["x"][:24])
    arguments = ("quantize", FLOAT, "--data", data, "-o", out, "--repair", "round", "--force")
    assert call(*arguments) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip()]
    names = [row[0] for row in rows]
    assert names[:2] == ["verdict", "outputs"] and rows[0][1].startswith("good: ")
    assert 0 < names.index("size") < names.index("operators") < names.index("digest")
    said = " ".join(" ".join(row) for row in rows)
    assert f"size {out.stat().st_size:,} bytes" in said and f"{FLOAT.stat().st_size:,}" in said
    assert "not kept" not in said and said.index(" next qdqbridge compare ") > said.index(
        " digest "
    )
    monkeypatch.setattr("qdqbridge.app.cli.verbs_environment.has_host", lambda host: False)
    assert call(*arguments, "-v") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"compare {out} --data {data} --engine interpreter" in told.replace("- ", "-")
    assert "not kept: no weight has 4 bits or fewer" in told


def test_accuracy_on_left_out_samples_comes_first_then_whether_the_goal_is_met(tmp_path, capsys):
    """The figures are those of default sessions of onnxruntime."""
    out, page, labels = (tmp_path / name for name in ("out.onnx", "page.html", "y.npy"))
    images, right = (np.load(DATA)[name] for name in ("x", "labels"))
    np.save(labels, right)
    arguments = ("quantize", MLP, "--data", DATA, "--labels", labels, "-o", out, "--max-drop",
                 "0.5%", "--repair", "none", "--chooser", "minmax", "--force")  # fmt: skip
    assert call(*arguments, "--report", page) == 0
    rows = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert call(*arguments, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    hits, wanted = (outputs_of(file, images).argmax(axis=1) == right for file in (out, MLP))
    rest = told["left_out"]
    share, real = (f"{100 * np.mean(each[rest]):.2f} %" for each in (hits, wanted))
    first = f"top-1 accuracy {share}, float {real}, on 45 left-out samples (one is 2.22 %)"
    assert rows[0] == f"verdict     {first}" and first in page.read_text("utf-8")
    share, real = (f"{100 * np.mean(each):.2f} %" for each in (hits, wanted))
    assert rows[1].startswith(f"top-1 accuracy {share}, float {real}, on all 360 samples")
    lost = 100 * (np.mean(wanted[rest]) - np.mean(hits[rest]))
    assert rows[2].startswith("goal        met: at most 0.5 % of top-1 accuracy lost: ")
    assert f"{max(lost, 0):.3g} % on 45 left-out samples" in rows[2] and told["goal_met"] is True
    assert "45 left-out samples resolve 2.22 %, and cannot show 0.5 %" in rows[3]


def test_a_largest_drop_holds_on_left_out_samples_alone(tmp_path, capsys):
    """Those that choices were made by may hide what the others lose."""
    images, right = (np.load(DATA)[name].copy() for name in ("x", "labels"))
    rough = quantization(MLP, {"input": images}, weights="int2", repair=(), tune=False,
                         chooser="minmax", labels=right)  # fmt: skip
    every, few = scores_of(rough)
    assert few.score < few.reference
    # A drop that all samples together keep, and those left out do not.
    lost = every.reference - every.score
    wanted = rough.meeting(max_drop=max(lost, 0.0) + 1e-6)
    kept = scores_of(wanted)[1]
    assert kept.reference - kept.score <= max(lost, 0.0) + 1e-6
    assert goal_met(wanted) and not goal_met(replace(wanted, fallback=None))


def test_what_is_done_is_said_from_the_start(tmp_path, capsys):
    arguments = ("--data", DATA, "--repair", "none", "--chooser", "minmax")
    assert call("quantize", MLP, *arguments, "-o", tmp_path / "out.onnx") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("quantizing: reading digits_mlp_float.onnx")
    assert lines[-1] == "writing: measuring the outputs"


def test_where_tensorrt_has_no_16_bits_layers_stay_float_for_a_goal(tmp_path, capsys):
    out = tmp_path / "out.onnx"
    arguments = ("--target", "tensorrt", "--repair", "none", "--chooser", "minmax")
    assert call("quantize", MLP, "--data", DATA, "-o", out, *arguments, "--min-sqnr", 42) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "goal met: at least 42 dB: " in said and ": float for at least 42 dB" in said
    assert "int16" not in said and "tensorrt does not run here" in said
    assert "--check --profile tensorrt" in said


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--data", DATA, "--exclude", "nothing*"), "nothing*"),
        (("--data", DATA, "--repair", "magic"), "magic"),
        (("--data", DATA, "--repair", "none", "--chooser", "minmax", "--min-sqnr", 500), "500"),
        (("--profile", DATA), "it is not text"),
        (("--data", DATA, "--min-sqnr", "nan"), "says nothing"),
        (("--data", DATA, "--min-sqnr", "inf"), "says nothing"),
        (("--data", DATA, "--max-drop", "nan"), "says nothing"),
        (("--data", DATA, "--max-drop", "5%%"), "is not a share"),
        (("--data", DATA, "--max-drop", "5"), "write 5%"),
        (("--data", DATA, "--max-drop", "500%"), "is all there is"),
        (("--data", DATA, "--labels", "none.npy"), "none.npy"),
        (("--data", DATA, "--max-drop", -1), "says nothing"),
    ],
)
def test_what_cannot_be_is_said(arguments, word, tmp_path, capsys) -> None:
    out = tmp_path / "out.onnx"
    assert call("quantize", FLOAT, "-o", out, *arguments) == 3
    assert word in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("option", ["--target", "--export-profile"])
def test_words_that_an_option_does_not_have(option, tmp_path, capsys) -> None:
    assert call("quantize", FLOAT, "-o", tmp_path / "o.onnx", "--data", DATA, option, "abacus") == 2
    assert 'Choose from: "ort"' in capsys.readouterr().err


@pytest.mark.parametrize(("name", "word"), [("q.txt", ".onnx"), ("q.relay", "Relay is not here")])
def test_what_cannot_be_written_is_said_first(name, word, tmp_path, capsys) -> None:
    if name == "q.relay" and find_spec("tvm") and find_spec("tvm.relay"):
        pytest.skip("Relay is here")
    assert call("quantize", FLOAT, "--data", tmp_path / "none.npz", "-o", tmp_path / name) == 3
    said = capsys.readouterr().err
    assert word in said and "none.npz" not in said
