"""Every verb: what it prints, where, what it exits with, and what it refuses to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.app.cli import failures
from qdqbridge.app.cli.failures import run
from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession
from tests.places import MODELS, ROOT

MODEL = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")


@pytest.fixture
def data(tmp_path):
    with np.load(MODELS / "digits_test.npz") as arrays:
        path = tmp_path / "data.npz"
        np.savez(path, input=arrays["x"][:6])
    return str(path)


@pytest.fixture
def fixed(tmp_path):
    """A float model that takes exactly four examples of three numbers."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 3]) for name in ("x", "y/z")
    ]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y/z"])], "g", ports[:1], ports[1:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="test"
    )
    path = tmp_path / "fixed.onnx"
    onnx.save(model, path)
    return str(path)


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_inspect_shows_the_model(capsys):
    assert run(["inspect", MODEL]) == 0
    out, err = capsys.readouterr()
    assert qb.load(MODEL).digest in out
    assert "12 uint8 per tensor" in out
    assert "input: float32 [batch, 1, 8, 8]" in out
    assert err == ""


def test_inspect_for_programs(capsys):
    assert run(["inspect", MODEL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["digest"] == qb.load(MODEL).digest
    assert found["opsets"]["ai.onnx"] == 17
    assert found["onnx_nodes"]["DequantizeLinear"] == 24
    assert sum(found["onnx_nodes"].values()) == len(onnx.load(MODEL).graph.node)
    assert sum(found["canonical_nodes"].values()) == len(qb.load(MODEL).nodes)
    assert found["inputs"] == [
        {"name": "input", "type": {"dtype": "float32", "shape": ["batch", 1, 8, 8]}}
    ]


def test_canonicalize_prints_the_text_form(capsys, tmp_path):
    assert run(["canonicalize", MODEL]) == 0
    text = capsys.readouterr().out
    assert text == qb.load(MODEL).text()
    path = tmp_path / "out.txt"
    assert run(["canonicalize", MODEL, "-o", str(path)]) == 0
    assert path.read_text("utf-8") == text
    assert run(["canonicalize", MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["text"] == text


def test_explain(capsys):
    attention = str(MODELS / "digits_attention_u8s8_per_channel.onnx")
    assert run(["explain", attention]) == 0
    assert "clamp-in-range" in capsys.readouterr().out
    assert run(["explain", attention, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert {"rule", "node", "reason", "culprits"} == set(notes[0])
    assert run(["explain", MODEL]) == 0
    assert "clamp-in-range" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["interpreter", "onnxruntime"])
def test_run_writes_the_outputs(engine, data, tmp_path, capsys):
    path = tmp_path / "out.npz"
    assert run(["run", MODEL, "--data", data, "-o", str(path), "--engine", engine, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outputs"]["logits"]["shape"] == [6, 10]
    with np.load(path) as arrays:
        assert arrays["logits"].shape == (6, 10)


@pytest.mark.parametrize("engine", ["interpreter", "onnxruntime"])
def test_tensors_of_a_sequence_are_outputs_of_their_own(engine, tmp_path, capsys):
    model, data, path = (tmp_path / name for name in ("m.onnx", "d.npz", "out.npz"))
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["z"], axis=0),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "xyz"]
    results = [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None), infos[2]]
    graph = helper.make_graph(nodes, "g", infos[:2], results)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), model)
    x, y = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    np.savez(data, x=x, y=y)
    wanted = ["run", str(model), "--data", str(data), "-o", str(path), "--engine", engine]
    assert run(wanted) == 0
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["s[0]"], x)
        np.testing.assert_array_equal(arrays["s[1]"], y)
        assert set(arrays) == {"s[0]", "s[1]", "z"}
    capsys.readouterr()
    assert run(["compare", str(model), "--data", str(data), "--local"]) == 0
    assert "all 1 values are equal" in capsys.readouterr().out


@pytest.mark.relax
def test_run_and_compare_on_tvm(data, capsys):
    pytest.importorskip("tvm")
    assert run(["run", MODEL, "--data", data]) == 0
    assert "logits" in capsys.readouterr().out
    arguments = ["compare", MODEL, "--data", data, "--reference", "interpreter", "--json"]
    assert run([*arguments, "--max-lsb", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["a"], found["b"], found["equal"]) == ("TVM", "interpreter", True)
    assert len(found["values"]) == len(qb.load(MODEL).nodes)


def test_run_feeds_a_fixed_batch_in_pieces(fixed, tmp_path, capsys):
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    data, path = saved(tmp_path / "x.npz", x=x), tmp_path / "y.npz"
    arguments = ["run", fixed, "--data", data, "-o", str(path), "--engine", "interpreter"]
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 3
    with np.load(path) as arrays:
        assert np.array_equal(arrays["y/z"], -x)


def test_compare_finds_and_explains(data, capsys):
    arguments = ["compare", MODEL, "--data", data, "--engine", "interpreter"]
    assert run([*arguments, "--local", "--max-lsb", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["local"]
    assert found["unexplained"] == 0
    assert {value["name"] for value in found["values"]} >= {"logits"}
    assert run([*arguments, "--all"]) == 0
    assert "interpreter against onnxruntime" in capsys.readouterr().out


def test_a_threshold_that_is_not_kept_exits_with_1(data, capsys):
    assert run(["compare", MODEL, "--data", data, "--engine", "interpreter", "--max-lsb", "0"]) == 1
    out, err = capsys.readouterr()
    assert "LSB" in out
    assert "--max-lsb 0 is exceeded" in err


def test_compare_with_another_file(data, tmp_path, capsys):
    path = str(tmp_path / "copy.onnx")
    assert run(["export", MODEL, "-o", path]) == 0
    assert capsys.readouterr().out.strip() == path
    assert run(["compare", path, "--data", data, "--engine", "interpreter",
                "--reference", MODEL, "--json"]) == 0  # fmt: skip
    names = {value["name"] for value in json.loads(capsys.readouterr().out)["values"]}
    assert "logits" in names


@pytest.mark.relax
def test_to_tvm_writes_what_the_suffix_says(tmp_path, capsys):
    tvm = pytest.importorskip("tvm")
    for suffix in ("json", "py"):
        assert run(["to-tvm", MODEL, "-o", str(tmp_path / f"m.{suffix}")]) == 0
    module = tvm.ir.load_json((tmp_path / "m.json").read_text("utf-8"))
    assert "qnn.conv2d" in module.script()
    assert "qnn.conv2d" in (tmp_path / "m.py").read_text("utf-8")
    assert run(["to-tvm", MODEL, "-o", str(tmp_path / "m.onnx")]) == 3
    assert "end it in .json, .py, .so or .relay" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["canonicalize", MODEL], ["export", MODEL], ["to-tvm", MODEL], ["run", MODEL]],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_overwritten_without_force(arguments, tmp_path, data, capsys):
    suffix = {"export": ".onnx", "run": ".npz"}.get(arguments[0], ".py")
    path = tmp_path / f"there{suffix}"
    path.write_text("mine")
    more = ["--data", data, "--engine", "interpreter"] if arguments[0] == "run" else []
    assert run([*arguments, "-o", str(path), *more]) == 3
    assert path.read_text() == "mine"
    assert "exists" in capsys.readouterr().err
    if arguments[0] != "to-tvm":
        assert run([*arguments, "-o", str(path), "--force", *more]) == 0
        assert path.read_bytes() != b"mine"


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert run(["export", MODEL, "-o", str(tmp_path / "no" / "m.onnx")]) == 3
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["run", MODEL], ["inspect"], ["inspect", MODEL, "--nope"],
     ["run", MODEL, "--data", "x.npz", "--engine", "abacus"],
     ["compare", MODEL, "--data", "x.npz", "--max-lsb", "some"]],
    ids=["command", "no data", "no model", "option", "choice", "number"],
)  # fmt: skip
def test_wrong_usage_exits_with_2(arguments, capsys):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "--help" in err


def test_a_missing_model_exits_with_3_and_says_what_where_why_and_how_to_fix(capsys):
    assert run(["inspect", "nowhere.onnx"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: cannot read the model file"
    assert [line.split()[0] for line in lines[1:]] == ["where", "why", "fix"]
    assert all(line.startswith("  ") for line in lines[1:])


def test_our_bugs_exit_with_70_without_a_traceback(monkeypatch, capsys):
    def broken(path, **options):
        raise ZeroDivisionError("[red]oops")

    monkeypatch.delenv("QDQBRIDGE_DEBUG", raising=False)
    monkeypatch.setattr("qdqbridge.app.cli.files.inspect_model", broken)
    assert run(["inspect", MODEL]) == 70
    err = capsys.readouterr().err
    assert "a bug in qdqbridge" in err
    assert "ZeroDivisionError: [red]oops" in err
    assert "Traceback" not in err
    monkeypatch.setenv("QDQBRIDGE_DEBUG", "1")
    assert run(["inspect", MODEL]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_with_130(monkeypatch, capsys):
    def interrupted(path, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("qdqbridge.app.cli.files.inspect_model", interrupted)
    assert run(["inspect", MODEL]) == failures.INTERRUPTED == 130
    assert "interrupted" in capsys.readouterr().err


def test_every_verb_prints_json(capsys):
    for verb in ("inspect", "canonicalize", "explain", "run", "compare", "export", "to-tvm"):
        assert run([verb, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def command(*arguments, **environment):
    code = "from qdqbridge.app.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}, check=False,
        timeout=240,
    )  # fmt: skip


def test_a_process_exits_with_the_code_and_without_colour():
    done = command("inspect", "nowhere.onnx", NO_COLOR="1", FORCE_COLOR="1")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "\x1b[31m" not in done.stderr
    assert "\x1b[1;31m" not in done.stderr


def test_help_and_version():
    assert command("--version").stdout.strip() == qb.__version__
    assert "canonicalize" in command("--help").stdout


def test_a_reader_that_stops_reading_is_no_bug():
    code = "from qdqbridge.app.cli import main; main()"
    attention = str(MODELS / "digits_attention_u8s8_per_channel.onnx")
    with subprocess.Popen(
        [sys.executable, "-c", code, "canonicalize", attention],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"bug" not in process.stderr.read()
        assert process.wait(timeout=240) == failures.NO_READER


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_export_with_integer_inputs_and_outputs(tmp_path, capsys, data, suffix):
    path = tmp_path / f"m.{suffix}"
    assert run(["export", MODEL, "--io", "int8", "-o", str(path)]) == 0
    assert "input 'input': int8, scale 0.0039" in capsys.readouterr().err
    record = json.loads((tmp_path / "m.io.json").read_text())
    found = {each["name"]: each for side in ("inputs", "outputs") for each in record[side]}
    graph = qb.load(path)
    assert str(graph.inputs[0].type.dtype) == str(graph.outputs[0].type.dtype) == "int8"
    real = np.load(data)["input"].astype(np.float32)
    own = found["input"]
    codes = np.clip(np.rint(real / np.float32(own["scale"])) + own["zero_point"], -128, 127)
    feed = {"input": codes.astype(np.int8)}
    pairs = [(qb.evaluate(graph, feed), qb.evaluate(qb.load(MODEL), {"input": real}))]
    if suffix == "onnx":
        sessions = OnnxRuntimeSession(path), OnnxRuntimeSession(MODELS / Path(MODEL).name)
        pairs.append(
            (sessions[0].run(feed, ["logits"]), sessions[1].run({"input": real}, ["logits"]))
        )
        assert json.loads(graph.metadata["qdqbridge.interface"]) == record
    for result, expected in pairs:
        (name,) = result
        codes = result[name].astype(np.float32) - found[name]["zero_point"]
        assert np.array_equal(codes * np.float32(found[name]["scale"]), expected["logits"])


def test_an_interface_file_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "m.io.json").write_text("mine")
    assert run(["export", MODEL, "--io", "int8", "-o", str(tmp_path / "m.onnx")]) != 0
    assert "m.io.json" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["m.io.json"]
    assert (tmp_path / "m.io.json").read_text() == "mine"


def test_encodings_are_written_and_read_by_every_verb(tmp_path, capsys):
    floats, file = str(tmp_path / "f.onnx"), str(tmp_path / "e.json")
    write = ["export", MODEL, "-o", floats, "--encodings-to", file]
    assert run([*write, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["digest"], found["otherwise"]) == (qb.load(MODEL).digest, [])
    assert run(["inspect", floats, "--encodings", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == found["digest"]
    again = tmp_path / "again.onnx"
    assert run(["export", floats, "--encodings", file, "-o", str(again)]) == 0
    assert qb.load(again).digest == found["digest"]
    capsys.readouterr()
    assert run([*write, "--force", "--encodings-format", "tensorrt"]) == 3
    assert "zero point 0 only" in capsys.readouterr().err
    for more in (["--io", "int8"], ["--float"], ["--check"], ["--recenter"]):
        assert run([*write, *more]) == 2
    assert run(["export", MODEL, "--encodings-to", file]) == 2
    assert run(["export", MODEL, "-o", floats, "--encodings-to", floats, "--force"]) == 3


def test_the_float_model_is_written_and_quantized_again(tmp_path, capsys, data):
    floats, again = tmp_path / "f.onnx", tmp_path / "again.onnx"
    assert run(["export", MODEL, "--float", "-o", str(floats)]) == 0
    assert {n.op_type for n in onnx.load(floats).graph.node}.isdisjoint(
        {"QuantizeLinear", "DequantizeLinear"}
    )
    capsys.readouterr()
    assert run(["quantize", MODEL, "--data", data, "--repair", "none", "-o", str(again)]) == 0
    assert "quantized already" in capsys.readouterr().err
    assert qb.load(again).digest != qb.load(MODEL).digest
    assert run(["export", MODEL, "--float", "--io", "int8", "-o", str(tmp_path / "z.onnx")]) == 2
    assert run(["export", MODEL, "--float", "--check"]) == 2
