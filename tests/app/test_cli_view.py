"""The verb ``view``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from tests.places import MODELS

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


def test_node_data_that_exists_is_told_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "graph.bits.json").write_text("kept")
    asked = [
        "view",
        INT8,
        "-o",
        tmp_path / "page.html",
        "--model-explorer",
        tmp_path / "graph.json",
    ]
    assert run([str(each) for each in asked]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["graph.bits.json"]


def test_files_for_netron_and_model_explorer_say_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, graph = tmp_path / "page.html", tmp_path / "graph.json"
    annotated = tmp_path / "annotated.onnx"
    asked = [
        "view", INT8, "-o", page, "--data", DATA, "--reference", "onnxruntime",
        "--model-explorer", graph, "--netron", annotated, "--json",
    ]  # fmt: skip
    assert run([str(each) for each in asked]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["netron"] == str(annotated)
    assert qb.load(annotated).digest == qb.load(INT8).digest
    onnx.checker.check_model(onnx.load(annotated), full_check=True)
    (document,) = shown(page)["graphs"]
    told = {
        node.name: {row.key: row.value for row in node.metadata_props}
        for node in onnx.load(annotated).graph.node
        if node.metadata_props
    }
    assert len(told) == len(document["nodes"])
    for node in document["nodes"]:
        rows = told[node["name"]]
        result = document["values"][node["outs"][0]]
        assert result["type"] in rows["qdqbridge.result"]
        assert result.get("scale", "") in rows["qdqbridge.result"]
        assert {"qdqbridge.quantization", "qdqbridge.bits"} <= rows.keys()
    assert any("dB" in rows.get("qdqbridge.error", "") for rows in told.values())
    # Written again, what was said before is replaced and not said twice.
    again = ["view", annotated, "-o", page, "--netron", tmp_path / "again.onnx", "--force"]
    assert run([str(each) for each in again]) == 0
    for node in onnx.load(tmp_path / "again.onnx").graph.node:
        keys = [row.key for row in node.metadata_props]
        assert len(keys) == len(set(keys))
        assert "qdqbridge.error" not in keys

    ids = {node["id"] for node in json.loads(graph.read_text())["graphs"][0]["nodes"]}
    assert len(said["node_data"]) == len(document["paints"])
    for file, paint in zip(said["node_data"], document["paints"], strict=True):
        (data,) = json.loads(Path(file).read_text()).values()
        assert data["name"] == paint["title"]
        assert set(data["results"]) <= ids
        known = [value for value in paint["of"] if value is not None]
        values = [result["value"] for result in data["results"].values()]
        assert values == [paint["classes"][v] for v in known] if "classes" in paint else known
    assert run(["view", str(INT8), str(OTHER), "-o", str(page), "--force", "--netron", "x.onnx"])
    assert "two models are no one .onnx file" in capsys.readouterr().err
