"""Relax modules on the command line: wherever a model is wanted, one will do."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import MODELS, TESTS

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.app.cli.failures import DONE, MODEL, NOT_MET, run
from qdqbridge.app.hosting import export_tvm
from qdqbridge.tvm.byoc import canonical, partition

pytestmark = pytest.mark.relax

FOLDER = MODELS
CNN = FOLDER / "digits_cnn_u8s8_per_channel.onnx"
FLOAT = FOLDER / "digits_cnn_float.onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("modules")
    export_tvm(qb.load(CNN), made / "m.json")
    export_tvm(qb.load(CNN), made / "m.py")
    export_tvm(qb.load(FLOAT), made / "float.json", params=made / "p.npz")
    images: Any = np.load(FOLDER / "digits_test.npz")["x"][:16]
    save: Any = np.savez
    save(made / "d.npz", **{qb.load(CNN).inputs[0].name: images})
    return made


@pytest.mark.parametrize("name", ["m.json", "m.py"])
def test_modules_are_exported(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "again.onnx"
    assert run(["export", str(folder / name), "-o", str(path), "--check"]) == DONE
    assert qb.load(path).digest == qb.load(CNN).digest


def test_sources_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", str(CNN), str(folder / "m.json")]) == DONE
    assert run(["diff", str(folder / "m.py"), str(FLOAT)]) == NOT_MET
    assert run(["inspect", str(folder / "m.json"), "--json"]) == DONE
    found = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert found["digest"] == qb.load(CNN).digest
    assert "relax" in found["opsets"]


VERBS = {
    "canonicalize": [], "explain": [], "partition": [], "accumulators": [],
    "run": ["--data", "d.npz", "--engine", "onnxruntime"],
    "compare": ["--data", "d.npz", "--engine", "interpreter"],
    "to-tvm": ["-o", "other.json"],
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_other_verbs_take_modules(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.chdir(folder)
    results: list[str] = []
    for model in (str(CNN), "m.json"):
        Path("other.json").unlink(missing_ok=True)
        assert run([verb, model, *VERBS[verb], "--json"]) in (DONE, NOT_MET)
        results.append(capsys.readouterr().out)
    if verb != "explain":  # a module does not know which file its notes are about
        assert results[0] == results[1]


def test_float_modules_are_profiled_and_quantized(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    params = ["--params", "p.npz"] if Path("p.npz").exists() else []
    profiled = ["profile", "float.json", *params, "--data", "d.npz", "-o", "profile.json"]
    assert run(profiled) == DONE
    made = ["-o", "q.onnx", "--data", "d.npz", "--profile", "profile.json", "--repair", "none"]
    assert run(["quantize", "float.json", *params, *made]) == DONE
    assert run(["quantize", str(FLOAT), *made, "--force", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["integer"] > 5


def test_an_onnx_model_has_its_parameters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(CNN), "--params", str(folder / "d.npz")]) == MODEL
    assert "leave --params out" in capsys.readouterr().err


def test_tflite_files_are_models_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tflite", reason="TVM reads TFLite files through the package tflite")
    model = TESTS / "tflite_io" / "data" / "int8_network.tflite"
    path = tmp_path / "again.onnx"
    assert run(["export", str(model), "-o", str(path)]) == DONE
    assert run(["diff", str(model), str(path)]) == DONE
    capsys.readouterr()
    assert run(["inspect", str(model), "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["digest"] == qb.load(path).digest
    assert run(["inspect", str(CNN.with_suffix(".tflite"))]) == MODEL


TABLE = """
from qdqbridge.tvm.byoc import Table, canonical

TABLE = canonical("npu").only("conv2d", "dense")
NUMBER = 3


def made():
    return TABLE


conv = canonical().entry("conv2d").checked(lambda record: [] if record.misspelled else [])
FAILING = Table("npu", (conv,))
"""


@pytest.fixture
def npu(tmp_path: Path) -> Path:
    path = tmp_path / "npu.py"
    path.write_text(TABLE)
    return path


def test_partition_of_several_models_with_a_table_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], npu: Path
) -> None:
    models = sorted(MODELS.glob("digits_*8*.onnx"))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    names = [str(path) for path in (*models, broken)]
    assert run(["partition", *names, "--table", f"{npu}:made", "--csv"]) == 3
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [*dict.fromkeys(row["model"] for row in rows)] == names
    assert rows[-1]["kind"] == "error"
    table = canonical("npu").only("conv2d", "dense")
    for path in models:
        own = [row for row in rows if row["model"] == str(path)]
        _, coverage = partition(qb.to_relax(qb.load(path))[0], table)
        assert {row["operators"] for row in own} == {str(coverage.operators)}
        assert sum(int(row["count"]) for row in own) == len(coverage.left)
        assert {row["left"] for row in own} == {str(len(coverage.left))}
        assert all(row["reason"] for row in own)
    assert run(["partition", *names[:-1], "--table", f"{npu}:TABLE"]) == 1
    out = capsys.readouterr().out
    assert "left outside, in all models" in out
    assert "(in 3 of 3)" in out
    assert run(["partition", *names[:-1], "--table", f"{npu}:TABLE", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["model"] for each in found["models"]] == names[:-1]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("{npu}:NUMBER", "it is int"), ("{npu}:nothing", "it is not defined"),
        ("{npu}x.py:TABLE", "FileNotFoundError"), ("{bad}:TABLE", "ZeroDivisionError"),
        ("{npu}", "npu.py:TABLE, with the name"), ("{npu}:FAILING", "line 12\n  why    Attribute"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], npu: Path, table: str, why: str
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    model = str(MODELS / "digits_cnn_s8s8_per_tensor.onnx")
    assert run(["partition", model, "--table", table.format(npu=npu, bad=bad)]) == 3
    assert why in capsys.readouterr().err
