"""What somebody new to the command line runs into, and what it says then."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from tests.places import MODELS, ROOT

MODEL = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")
FLOAT = str(MODELS / "digits_cnn_float.onnx")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, input=np.zeros((2, 1, 8, 8), np.float32))
    return str(path)


def weight_only(path, scale=0.1, shape=(), rows: int | str = "n"):
    """Saves a MatMul of a float input and a quantized weight."""
    arrays = {
        "w": np.ones((3, 4), np.int8),
        "s": np.full(shape, scale, np.float32),
        "z": np.zeros((4,) if shape else (), np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], name="dq"),
        helper.make_node("MatMul", ["x", "real"], ["y"], name="dense"),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, extent])
        for name, extent in (("x", 3), ("y", 4))
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return str(path)


@pytest.mark.relax
def test_tvmscript_holds_its_constants(tmp_path, capfd):
    tvm = pytest.importorskip("tvm")
    model, path = weight_only(tmp_path / "m.onnx", rows=2), tmp_path / "m.py"
    assert run(["to-tvm", model, "-o", str(path)]) == 0
    read = tvm.script.from_source(path.read_text("utf-8"))
    module, _ = qb.to_relax(qb.load(model))
    tvm.ir.assert_structural_equal(read, module)
    capfd.readouterr()


@pytest.mark.relax
def test_small_constants_make_no_archive(tmp_path, capsys):
    pytest.importorskip("tvm")
    model, path = weight_only(tmp_path / "m.onnx"), tmp_path / "p.npz"
    arguments = ["to-tvm", model, "-o", str(tmp_path / "m.json"), "--params", str(path), "--json"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["params"] is None
    assert "no constant reaches 64 KiB" in err
    assert not path.exists()
    assert run(["to-tvm", "--help"]) == 0
    assert "64 KiB" in capsys.readouterr().out


@pytest.mark.relax
def test_compiled_code_is_written_without_noise(tmp_path, capfd):
    pytest.importorskip("tvm")
    path = tmp_path / "m.so"
    assert run(["to-tvm", MODEL, "-o", str(path)]) == 0
    assert path.exists()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [["compare"], ["compare", "--local"], ["compare", "--engine", "interpreter"],
     ["compare", "--reference", "interpreter", "--engine", "interpreter"],
     ["run", "--engine", "interpreter"], ["run", "--engine", "onnxruntime"]],
    ids=" ".join,
)  # fmt: skip
def test_no_samples_are_refused(arguments, tmp_path, capsys):
    if arguments == ["compare"]:
        pytest.importorskip("tvm")
    path = tmp_path / "none.npz"
    np.savez(path, input=np.zeros((0, 1, 8, 8), np.float32))
    verb, *options = arguments
    assert run([verb, MODEL, "--data", str(path), *options]) == 3
    assert "no samples" in capsys.readouterr().err


def test_local_is_not_about_tvm(data, capsys):
    arguments = ["compare", MODEL, "--data", data, "--local"]
    assert run([*arguments, "--engine", "tvm"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "in the interpreter, not on TVM" in err
    assert run(arguments) == 0


def test_what_is_read_is_not_overwritten(tmp_path, data, capsys):
    model = tmp_path / "m.onnx"
    shutil.copy(MODEL, model)
    before = model.read_bytes()
    for verb in (["export"], ["canonicalize"], ["to-tvm"]):
        assert run([*verb, str(model), "-o", f"{tmp_path}/./m.onnx", "--force"]) == 3
        assert "would overwrite the model that is read" in capsys.readouterr().err
    assert run(["run", str(model), "--data", data, "-o", data, "--force"]) == 3
    assert "would overwrite the data that is read" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_outputs_have_the_suffix_of_what_they_are(tmp_path, data, capsys):
    assert run(["run", MODEL, "--data", data, "-o", str(tmp_path / "y.csv")]) == 3
    assert "end it in .npz" in capsys.readouterr().err
    assert run(["export", MODEL, "-o", str(tmp_path / "y.npz")]) == 3
    assert "end it in .onnx" in capsys.readouterr().err
    assert run(["canonicalize", MODEL, "-o", str(tmp_path / "y")]) == 0


def test_explain_says_what_a_weight_alone_is(tmp_path, capsys):
    assert run(["explain", weight_only(tmp_path / "m.onnx")]) == 0
    assert "its input is float, only its weight is quantized" in capsys.readouterr().out


def test_explain_says_once_that_nothing_is_quantized(capsys):
    assert run(["explain", FLOAT, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert [note["reason"] for note in notes] == ["the file has no quantization"]


def test_check_says_that_nothing_is_quantized(capsys):
    assert run(["export", FLOAT, "--check", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["reason"] == "the file has no quantization"
    assert run(["export", FLOAT, "--check"]) == 1
    assert "1 finding: 1 float" in capsys.readouterr().out


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "qdqbridge", "--version"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.strip() == qb.__version__


def test_the_table_names_causes_and_nothing_else(capsys, tmp_path):
    with np.load(MODELS / "digits_test.npz") as arrays:
        np.savez(tmp_path / "d.npz", input=arrays["x"][:64])
    assert run(["compare", MODEL, "--data", str(tmp_path / "d.npz"), "--local", "--all"]) == 0
    out = capsys.readouterr().out
    assert "moved" not in out


@pytest.mark.parametrize(
    ("scale", "shape", "why"),
    [(float("nan"), (), "it is nan:"), (0.1, (2, 2, 3), "the scale has shape (2, 2, 3)")],
    ids=["nan", "rank 3"],
)
def test_messages_about_scales(scale, shape, why, tmp_path, capsys):
    path = weight_only(tmp_path / "m.onnx", scale, shape)
    assert run(["inspect", path]) == 3
    err = capsys.readouterr().err
    assert why in err
    assert "np.float" not in err
    assert path in err  # as it was given


def test_params_need_a_file_of_their_own(tmp_path, capsys):
    for name in ("same.json", "params.json"):
        arguments = ["to-tvm", MODEL, "-o", str(tmp_path / "same.json")]
        assert run([*arguments, "--params", str(tmp_path / name)]) == 3
        assert "a file of its own" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_names_every_export_profile_and_groups_the_options_of_quantize(capsys):
    from qdqbridge.targets.profiles import PROFILES

    assert run(["export", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").replace(".", " ").split()
    assert {*PROFILES, "tflite", "ethos-u"} <= {*words}
    assert run(["quantize", "--help-all"]) == 0
    said = capsys.readouterr().out
    for group in ("Formats", "Sizes and times", "Hardware arithmetic", "How the model is read"):
        assert f"─ {group}" in said


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_an_unknown_engine_is_told_which_there_are(verb, data, capsys):
    assert run([verb, MODEL, "--data", data, "--engine", "nnpi"]) == 2
    said = capsys.readouterr().err
    assert '"interpreter"' in said and '"qnn-htp"' in said and "Literal" not in said


def test_what_stays_float_is_told_once_for_each_reason(data, tmp_path, capsys):
    out = str(tmp_path / "out.onnx")
    options = ["--target", "weight-only", "--repair", "none"]
    assert run(["quantize", FLOAT, "--data", data, "-o", out, *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "/widen/widen.2/Relu: target weight-only leaves Relu in float" in said
    assert said.count("leaves Relu in float") == 1 and "6 quantized, 8 left float" in said


@pytest.mark.relax
def test_a_table_that_is_for_relay_says_so_on_relax(capsys):
    pytest.importorskip("tvm")
    assert run(["partition", MODEL, "--table", "ethos-u"]) == 3
    said = capsys.readouterr().err
    assert "canonical, int8, per-tensor" in said and "need the dialect relay" in said
