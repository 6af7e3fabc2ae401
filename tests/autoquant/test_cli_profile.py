import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqbridge.app.cli.failures import run
from qdqbridge.app.profiling import load_profile
from tests.control_flow_models import nested_network
from tests.places import MODELS, ROOT

MODEL = str(MODELS / "digits_cnn_float.onnx")
IMAGES = np.load(MODELS / "digits_test.npz")["x"][:120]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, input=IMAGES)
    return str(path)


def command(data, output, *more, model=MODEL):
    threads = () if "--threads" in more else ("--threads", "1")
    return ["profile", model, "--data", data, "-o", str(output), *threads, *more]


def killed(arguments, partial, seconds):
    """Runs the verb and kills it some time after it has saved something."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "qdqbridge", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    saved = partial.stat().st_mtime_ns if partial.exists() else 0
    while process.poll() is None and not (partial.exists() and partial.stat().st_mtime_ns != saved):
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    return process.wait(timeout=240)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal")
@pytest.mark.parametrize("loops", [pytest.param(False, marks=pytest.mark.slow), True])
def test_killed_at_any_sample_it_goes_on_to_the_same_bytes(data, tmp_path, loops):
    """With loops the tensors inside a Loop's body are among what is saved."""
    chance, model = random.Random(0), MODEL
    if loops:
        onnx.save(nested_network(), model := str(tmp_path / "loop.onnx"))
        np.savez(data, x=IMAGES[:60, 0])
    output, partial = tmp_path / "p.json", tmp_path / "p.json.partial"
    arguments = command(data, output, "--save-every", "0", model=model)
    ended = [killed(arguments, partial, chance.uniform(0, 0.3))]
    ended.append(killed([*arguments, "--resume"], partial, chance.uniform(0, 0.3)))
    assert ended == [-signal.SIGKILL] * 2
    assert 0 < load_profile(partial).samples < (60 if loops else len(IMAGES))
    assert not output.exists()
    assert run([*arguments, "--resume"]) == 0
    assert not partial.exists()
    whole = tmp_path / "whole.json"
    assert run(command(data, whole, model=model)) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert loops == ("recurrence/body/which/then_branch/" in whole.read_text())


def test_a_partial_profile_of_other_data_is_refused(data, tmp_path, capsys):
    output = tmp_path / "p.json"
    assert run(command(data, output)) == 0
    output.rename(tmp_path / "q.json.partial")
    np.savez(data, input=IMAGES * 2)
    assert run(command(data, tmp_path / "q.json", "--resume")) == 3
    assert "other data" in capsys.readouterr().err
    assert (tmp_path / "q.json.partial").exists()


def test_nothing_to_go_on_from(data, tmp_path, capsys):
    assert run(command(data, tmp_path / "p.json", "--resume", "--min-max-only")) == 0
    assert "starting with the first sample" in capsys.readouterr().err


def test_merge(data, tmp_path, capsys):
    whole, parts = tmp_path / "whole.json", []
    assert run(command(data, whole)) == 0
    for index, part in enumerate((slice(50, 120), slice(0, 50))):
        np.savez(data, input=IMAGES[part])
        parts.append(str(tmp_path / f"{index}.json"))
        assert run(command(data, Path(parts[-1]))) == 0
    merged = tmp_path / "m.json"
    capsys.readouterr()
    assert run(["profile", "merge", *parts, "-o", str(merged), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 120
    assert merged.read_bytes() == whole.read_bytes()
    assert run(["profile", "merge", parts[0], parts[0], "-o", str(merged), "--force"]) == 0
    assert "the same data" in capsys.readouterr().err
    assert run(["profile", "merge", "-o", str(merged), "--force"]) == 2


def test_shards_by_processes(data, tmp_path):
    alone, shared = tmp_path / "a.json", tmp_path / "b.json"
    assert run(command(data, alone)) == 0
    assert run(command(data, shared, "--engine-workers", "2")) == 0
    assert alone.read_bytes() == shared.read_bytes()
    assert run(command(data, shared, "--force", "--engine-workers", "many")) == 3


def test_what_exists_stays(data, tmp_path, capsys):
    (tmp_path / "p.json").write_text("mine")
    assert run(command(data, tmp_path / "p.json")) == 3
    assert (tmp_path / "p.json").read_text() == "mine"
    assert run(command(data, tmp_path / "p.txt")) == 3


@pytest.mark.parametrize(
    "options", [("--threads", "-3"), ("--save-every", "-1"), ("--save-every", "nan")]
)
def test_numbers_that_say_nothing(options, data, tmp_path, capsys):
    assert run(command(data, tmp_path / "p.json", *options)) == 3
    assert options[1] in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


def test_values_that_are_not_finite_are_named(tmp_path, capsys):
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], "g", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.array([[-1, 4], [9, np.inf]], np.float32))
    arguments = ["profile", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    arguments += ["-o", str(tmp_path / "p.json"), "--force"]
    assert run(arguments) == 0
    said = capsys.readouterr().err
    assert "'x' (input) holds 0 NaN and 1 infinities among 4 values" in said
    assert "'y' (Sqrt) holds 1 NaN and 1 infinities among 4 values" in said
    assert run([*arguments, "--fail-on-nonfinite"]) == 1
    stats = load_profile(tmp_path / "p.json").by_name()["y"]
    assert (stats.minimum, stats.maximum) == (2, 3)


@pytest.mark.relax
@pytest.mark.parametrize("stage", ["emitted", "legalized", "fused"])
def test_lookup(stage, data, tmp_path, capsys):
    pytest.importorskip("tvm_ffi")
    output = tmp_path / "p.json"
    assert run(command(data, output)) == 0
    capsys.readouterr()
    arguments = ["profile", "lookup", str(output), MODEL]
    assert run([*arguments, "--stage", stage, "--json"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    assert {tensor for place in places for tensor in place["tensors"]} >= {"input", "logits"}
    assert run([*arguments, "logits", "--stage", stage]) == 0
    assert "logits" in capsys.readouterr().out
    assert run([*arguments, "nobody", "--stage", stage]) == 3
    other = str(MODELS / "digits_attention_float.onnx")
    assert run(["profile", "lookup", str(output), other]) == 3
