"""The verb ``view``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdqbridge.cli.failures import run

MODELS = Path(__file__).resolve().parents[1] / "models"
INT8, OTHER = (
    MODELS / "digits_cnn_u8s8_per_channel.onnx",
    MODELS / "digits_cnn_s8s8_per_tensor.onnx",
)
DATA = MODELS / "digits_test.npz"


def shown(path: Path) -> dict[str, Any]:
    """Returns what a page was made from."""
    text = path.read_text("utf-8").partition('id="model">')[2].partition("</script>")[0]
    return json.loads(text)


def test_a_page_coloured_by_a_run_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm")
    page, explorer = tmp_path / "page.html", tmp_path / "graph.json"
    asked = [
        "view", INT8, "-o", page, "--data", DATA, "--reference", "onnxruntime",
        "--table", "canonical", "--model-explorer", explorer, "--json",
    ]  # fmt: skip
    assert run([str(each) for each in asked]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["colours"] == ["quantization", "bits", "error", "table"]
    assert said["nodes"] == [13]
    document = shown(page)
    assert document["paint"] == "error"
    graph = document["graphs"][0]  # pyright: ignore[reportIndexIssue, reportUnknownVariableType]
    by_name = {paint["name"]: paint for paint in graph["paints"]}  # pyright: ignore[reportUnknownVariableType]
    assert set(by_name["table"]["of"]) == {0}  # the canonical table takes everything
    assert max(db for db in by_name["error"]["of"] if db is not None) == 150.0  # equal bit for bit
    assert json.loads(explorer.read_text("utf-8"))["graphs"][0]["nodes"]


def test_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(["view", str(INT8), str(OTHER), "-o", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] > 0
    assert len(shown(page)["graphs"]) == 2  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "page.txt"], "does not end in .html"),
        (["-o", "page.html", "--reference", "onnxruntime"], "needs data"),
        ([str(OTHER), "-o", "page.html", "--table", "canonical"], "coloured by what differs"),
        (["-o", "nowhere/page.html"], "there is no folder"),
    ],
)
def test_what_cannot_be_shown_is_said_and_nothing_is_written(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["view", str(INT8), *arguments]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_page_coloured_by_the_time_of_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm")
    page = tmp_path / "page.html"
    asked = ["view", INT8, "-o", page, "--profile-kernels"]
    assert run([str(each) for each in asked]) != 0
    assert "needs data" in capsys.readouterr().err
    assert run([str(each) for each in [*asked, "--data", DATA]]) == 0
    document = shown(page)
    (graph,) = document["graphs"]
    (paint,) = (each for each in graph["paints"] if each["name"] == "time")
    timed = {
        node["op"]: (micros, words)
        for node, micros, words in zip(graph["nodes"], paint["of"], paint["words"], strict=True)
        if micros is not None
    }
    assert {"Conv", "Dense", "MaxPool", "quantize", "dequantize"} <= set(timed)
    assert all(micros > 0 for micros, _ in timed.values())
    assert timed["Dense"][1].startswith("dense_1x64x10: ")
