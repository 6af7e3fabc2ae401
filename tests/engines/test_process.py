"""An engine that refuses, crashes, hangs or eats memory is named, and takes nothing along."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

import qdqbridge
from qdqbridge.cli.failures import run
from qdqbridge.engines.process import EngineProcess, ProcessLimits
from qdqbridge.errors import InputDataError, UnsupportedTargetError

MODELS = Path(__file__).parents[2] / "models"
CNN = MODELS / "digits_cnn_u8s8_per_channel.onnx"

WORKER = """
import os, signal, time

class WORKER:
    def version(self):
        return "bad 1.0"

    def load(self, key, file):
        raise ValueError("layer 7 is too wide")

    def crash(self):
        print("about to fail", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self):
        os._exit(3)

    def hang(self):
        time.sleep(3600)

    def eat(self):
        return len(bytearray(1 << 34))

    def echo(self, value):
        return value
"""


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a worker that can misbehave, importable by the engine's process."""
    package = tmp_path / "qdqbridge_bad_worker.py"
    package.write_text(WORKER)
    loader = tmp_path / "sitecustomize.py"
    loader.write_text(
        "import sys, qdqbridge_bad_worker\n"
        "sys.modules['qdqbridge.engines.workers.bad'] = qdqbridge_bad_worker\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "bad"


def process(worker: str, seconds: float = 60, memory: int = 1 << 33) -> EngineProcess:
    return EngineProcess(worker, "The engine", ProcessLimits(seconds, memory))


def test_it_answers(bad: str) -> None:
    engine = process(bad)
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    np.testing.assert_array_equal(engine.ask("echo", "echo", array), array)
    assert engine.version == "bad 1.0"
    engine.close()
    assert not engine.alive


def test_a_refusal_keeps_the_process(bad: str) -> None:
    engine = process(bad)
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("load the model", "load", "key", "file")
    assert caught.value.what == "The engine cannot load the model"
    assert caught.value.why == "ValueError: layer 7 is too wide"
    assert engine.ask("echo", "echo", 3) == 3
    engine.close()


@pytest.mark.parametrize(
    ("request_", "said"), [("crash", "SIGSEGV"), ("crash", "about to fail"), ("leave", "code 3")]
)
def test_a_crash_is_named(bad: str, request_: str, said: str) -> None:
    engine = process(bad)
    with pytest.raises(UnsupportedTargetError, match="The engine cannot run the model") as caught:
        engine.ask("run the model", request_)
    assert said in caught.value.why
    assert not engine.alive


def test_a_hang_ends(bad: str) -> None:
    engine = process(bad)
    start = time.monotonic()
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "hang", seconds=0.5)
    assert time.monotonic() - start < 10
    assert "did not answer within 0.5 s" in caught.value.why
    assert not engine.alive


@pytest.mark.parametrize(
    ("request_", "said"), [("crash", "its process crashed (SIGSEGV)"), ("hang", "within 2 s")]
)
def test_an_engine_that_fails_on_a_model_is_reported_by_name(
    bad: str, request_: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from qdqbridge.engines import kinds

    worker = (tmp_path / "qdqbridge_bad_worker.py").read_text()
    failing = worker.replace('raise ValueError("layer 7 is too wide")', f"self.{request_}()")
    (tmp_path / "qdqbridge_bad_worker.py").write_text(failing)
    kind = kinds.EngineKind(bad, "The Bad Engine", "numpy", "pip install numpy", bad, "ort")
    monkeypatch.setattr(kinds, "ENGINES", {bad: kind})
    with (
        qdqbridge.open_engine(bad, CNN, limits=ProcessLimits(seconds=2)) as engine,
        pytest.raises(UnsupportedTargetError, match="The Bad Engine cannot load") as caught,
    ):
        engine.taken()
    assert said in caught.value.why


def test_memory_is_bounded(bad: str) -> None:
    engine = process(bad)
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "eat")
    assert "MemoryError" in caught.value.why
    engine.close()


def test_an_engine_that_cannot_be_imported() -> None:
    with pytest.raises(UnsupportedTargetError) as caught:
        process("nobody")
    assert "ModuleNotFoundError" in caught.value.why


@pytest.mark.parametrize("name", ["qnn-htp", "openvino", "litert", "onnxruntime-optimized"])
def test_a_missing_engine_is_named_with_its_pip_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdqbridge.engines import kinds

    monkeypatch.setattr(kinds, "find_spec", lambda package: None)
    with pytest.raises(UnsupportedTargetError) as caught:
        qdqbridge.open_engine(name, CNN)
    assert f"'{name}' is not installed" in caught.value.what
    assert f"pip install {kinds.ENGINES[name].package.replace('_', '-')}" in caught.value.fix


def test_an_engine_that_nobody_knows() -> None:
    with pytest.raises(UnsupportedTargetError, match="there is no engine 'hexagon'") as caught:
        qdqbridge.open_engine("hexagon", CNN)
    assert "qnn-htp" in caught.value.why


# ---- onnxruntime with its optimizations, which is always here --------------------------------


def test_it_says_what_became_of_the_nodes_and_computes() -> None:
    graph = qdqbridge.load(CNN)
    images = np.load(MODELS / "digits_test.npz")["x"][:8]
    with qdqbridge.open_engine("onnxruntime-optimized", CNN, extents={"batch": 8}) as engine:
        verdict = engine.taken()
        found = engine.run({"input": images}, engine.outputs)
    assert verdict.takes_all
    assert {"QLinearConv", "QGemm"} <= {p.operator.rpartition("::")[2] for p in verdict.placements}
    expected = qdqbridge.evaluate(graph, {"input": images})["logits"]
    steps = np.abs(found["logits"] - expected) / np.ptp(expected)
    assert steps.max() < 0.01


def test_a_graph_is_written_as_its_profile_says() -> None:
    graph = qdqbridge.load(CNN)
    images = np.load(MODELS / "digits_test.npz")["x"][:4]
    with qdqbridge.open_engine("onnxruntime-optimized", graph) as engine:
        found = qdqbridge.compare(engine, graph, {"input": images})
    assert found.max_lsb <= 1
    assert any(value.name == "logits" for value in found.outputs)


def test_a_missing_input_is_named() -> None:
    with (
        qdqbridge.open_engine("onnxruntime-optimized", CNN) as engine,
        pytest.raises(InputDataError, match="no data for input 'input'"),
    ):
        engine.run({}, engine.outputs)


def test_an_engine_of_tflite_files_refuses_others() -> None:
    from qdqbridge.engines import open_engine

    with pytest.raises(UnsupportedTargetError, match=r"reads \.tflite files only"):
        open_engine("litert", CNN, qdqbridge.load(CNN))


# ---- the command line ------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> str:
    file = tmp_path / "images.npz"
    np.savez(file, input=np.load(MODELS / "digits_test.npz")["x"][:4])
    return str(file)


def test_run_and_compare_take_an_engine(images: str, capfd: pytest.CaptureFixture[str]) -> None:
    engine = ["--engine", "onnxruntime-optimized", "--data", images]
    assert run(["run", str(CNN), *engine]) == 0
    assert run(["compare", str(CNN), *engine, "--max-lsb", "1"]) == 0
    assert "onnxruntime with its graph optimizations against onnxruntime" in capfd.readouterr().out
    assert run(["compare", str(CNN), *engine, "--local", "--max-lsb", "1"]) == 0
    out = capfd.readouterr().out
    assert "interpreter against onnxruntime with its graph optimizations" in out


def test_export_check_asks_the_engine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "written.onnx"
    model = str(MODELS / "digits_cnn_s8s8_per_tensor.onnx")
    asked = ["--check", "--engine", "onnxruntime-optimized"]
    assert run(["export", model, "-o", str(written), "--extent", "batch=1", *asked]) in (0, 1)
    caught = capfd.readouterr()
    assert "graph optimizations (onnxruntime " in caught.out
    assert "batch×1×8×8" in caught.err
    assert "1×1×8×8" in caught.err
    assert qdqbridge.load(written).inputs[0].type.shape == (1, 1, 8, 8)


def test_an_engine_is_asked_by_check_only(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(CNN), "-o", "x.onnx", "--engine", "openvino"]) == 2
    assert "--check" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
def test_the_process_is_gone_when_the_engine_is_closed() -> None:
    with qdqbridge.open_engine("onnxruntime-optimized", CNN) as engine:
        number = engine._process._process.pid
        assert Path(f"/proc/{number}").exists()
    assert not Path(f"/proc/{number}").exists()
