"""An engine that refuses, crashes, hangs or eats memory is named, and takes nothing along."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import which
from typing import Any, Literal, cast

import numpy as np
import pytest

import qdqbridge
from qdqbridge.app import pipeline
from qdqbridge.app.cli.failures import run
from qdqbridge.app.quantizing import quantization
from qdqbridge.errors import InputDataError, UnsupportedTargetError
from qdqbridge.onnx_io.runtime.products import saturates
from qdqbridge.options import EngineName
from qdqbridge.targets.engines import kinds, processors
from qdqbridge.targets.engines.process import EngineProcess, ProcessLimits
from tests.places import MODELS, ROOT

CNN = MODELS / "digits_cnn_u8s8_per_channel.onnx"

WORKER = """
import gc, os, signal, subprocess, sys, time
from multiprocessing.connection import Connection

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

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def block(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        time.sleep(3600)

    def leave_the_pipe(self):
        for end in [o for o in gc.get_objects() if isinstance(o, Connection)]:
            os.close(end.fileno())
        time.sleep(3600)

    def scribble(self, data):
        answers = next(o for o in gc.get_objects() if isinstance(o, Connection) and o.writable)
        answers.send_bytes(data)
        time.sleep(3600)

    def scribble_without_end(self, size):
        answers = next(o for o in gc.get_objects() if isinstance(o, Connection) and o.writable)
        os.write(answers.fileno(), b"\\xff\\xff\\xff\\xff" + size.to_bytes(8, "big"))
        while True:
            os.write(answers.fileno(), bytes(1 << 20))

    def odd_answer(self, value):
        import pickle
        answers = next(o for o in gc.get_objects() if isinstance(o, Connection) and o.writable)
        answers.send_bytes(pickle.dumps(value))
        time.sleep(3600)

    def flood(self, count):
        line = b"\\x1b[31mnoise\\x07" * (1 << 16)
        for _ in range(count):
            sys.stdout.buffer.write(line)
        sys.stdout.flush()
        os.abort()

    def start(self):
        child = subprocess.Popen(["sleep", "3600"])
        return child.pid

    def start_and_crash(self):
        subprocess.Popen(["sleep", "3600"])
        os.abort()

    def odd(self):
        return lambda: None

    def say(self, count):
        raise RuntimeError("x" * count + "\\x1b[2J")

    def exit(self):
        raise SystemExit(7)

    def inherited(self):
        return [os.get_inheritable(o.fileno()) for o in gc.get_objects()
                if isinstance(o, Connection)]

    def priority(self):
        return int(open("/proc/self/oom_score_adj").read())

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
        "sys.modules['qdqbridge.targets.engines.workers.bad'] = qdqbridge_bad_worker\n"
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
    bad: str, request_: str, said: str, tmp_path: Path
) -> None:
    from qdqbridge.targets.engines import kinds

    worker = (tmp_path / "qdqbridge_bad_worker.py").read_text()
    failing = worker.replace('raise ValueError("layer 7 is too wide")', f"self.{request_}()")
    (tmp_path / "qdqbridge_bad_worker.py").write_text(failing)
    kind = kinds.EngineKind(bad, "The Bad Engine", "numpy", "pip install numpy", bad, "ort")
    with (
        qdqbridge.open_engine(kind, CNN, limits=ProcessLimits(seconds=2)) as engine,
        pytest.raises(UnsupportedTargetError, match="The Bad Engine cannot load") as caught,
    ):
        engine.taken()
    assert said in caught.value.why


@pytest.mark.parametrize("request_", ["stop", "block", "leave_the_pipe"])
def test_what_answers_no_more_is_ended(bad: str, request_: str) -> None:
    engine = process(bad)
    number, start = engine._process.pid, time.monotonic()
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", request_, seconds=1)
    assert time.monotonic() - start < 20
    said = "answers no more" if request_ == "leave_the_pipe" else "did not answer within 1 s"
    assert said in caught.value.why
    assert not engine.alive
    assert not Path(f"/proc/{number}").exists()


def test_a_request_that_nobody_reads_ends(bad: str) -> None:
    engine = process(bad)
    os.kill(engine._process.pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(UnsupportedTargetError, match="cannot run the model"):
        engine.ask("run the model", "echo", np.zeros(1 << 20), seconds=1)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("data", [b"", b"no pickle", b"\x80\x05K\x01.", b"\x80\x05]."])
def test_an_answer_that_is_none_is_named(bad: str, data: bytes) -> None:
    engine = process(bad)
    with pytest.raises(UnsupportedTargetError, match="cannot run the model") as caught:
        engine.ask("run the model", "scribble", data)
    assert "its answer cannot be read" in caught.value.why
    assert not engine.alive


def test_an_answer_without_end_takes_no_memory(bad: str) -> None:
    engine = process(bad, memory=1 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "scribble_without_end", 1 << 62)
    assert "more than it may hold" in caught.value.why
    assert not engine.alive
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


@pytest.mark.parametrize("value", [None, 7, ("answer",), ("what", 3), ("error", 3), [1, 2, 3]])
def test_an_answer_of_another_form_is_named(bad: str, value: object) -> None:
    engine = process(bad)
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "odd_answer", value)
    assert "cannot be read" in caught.value.why
    assert not engine.alive


@pytest.fixture(scope="module")
def fitting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose pairs of products fit in 16 bits, where x86 without VNNI adds them."""
    path = tmp_path_factory.mktemp("fitting") / "model.onnx"
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:32]}
    float_ = MODELS / "digits_cnn_float.onnx"
    made = quantization(float_, data, repair=(), tune=False, avoid_pairs=True)
    qdqbridge.save(made.graph, path)
    return path


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP, signal.SIGABRT])
def test_an_engine_that_ends_in_the_middle_of_compare_is_named(
    sign: int, monkeypatch: pytest.MonkeyPatch, fitting: Path
) -> None:
    graph = qdqbridge.load(fitting)
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:4]}
    with qdqbridge.open_engine(
        "onnxruntime-optimized", fitting, extents={"batch": 1}, limits=ProcessLimits(seconds=5)
    ) as engine:
        runs, whole = [0], engine.run

        def third_fails(*arguments: Any) -> Any:
            runs[0] += 1
            if runs[0] == 3:
                os.kill(engine._process._process.pid, sign)
            return whole(*arguments)

        monkeypatch.setattr(engine, "run", third_fails)
        with pytest.raises(UnsupportedTargetError) as caught:
            qdqbridge.compare(engine, graph, data)
        assert caught.value.what.startswith("onnxruntime with its graph optimizations cannot run")
        assert ("5 s" if sign == signal.SIGSTOP else "crashed") in caught.value.why
        assert qdqbridge.compare(engine, graph, data).max_lsb <= 1


@pytest.mark.parametrize("form", ["shape", "missing", "list"])
def test_results_that_are_not_those_of_the_model_are_named(
    form: str, bad: str, tmp_path: Path
) -> None:
    from qdqbridge.targets.engines import kinds

    given = {"shape": "{'logits': numpy.zeros((3, 3))}", "missing": "{}", "list": "[1]"}[form]
    path = tmp_path / "qdqbridge_bad_worker.py"
    worker = path.read_text().replace('raise ValueError("layer 7 is too wide")', "return [], 1")
    path.write_text(
        f"import numpy\n{worker}\n    def run(self, *arguments):\n        return {given}\n"
    )
    kind = kinds.EngineKind(bad, "The Bad Engine", "numpy", "pip install numpy", bad, "ort")
    data = {"input": np.load(MODELS / "digits_test.npz")["x"][:1]}
    with (
        qdqbridge.open_engine(kind, CNN, extents={"batch": 1}) as engine,
        pytest.raises(UnsupportedTargetError, match="The Bad Engine does not compute") as caught,
    ):
        engine.run(data, engine.outputs)
    assert "'logits'" in caught.value.why


def test_output_without_end_takes_no_memory_and_reaches_no_terminal(bad: str) -> None:
    engine = process(bad)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "flood", 500)  # 360 MB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # in KiB
    assert "SIGABRT" in caught.value.why
    assert "noise" in caught.value.why
    assert caught.value.why.isprintable()


def test_what_an_engine_has_started_ends_with_it(bad: str) -> None:
    engine = process(bad)
    number = engine.ask("run the model", "start")
    assert Path(f"/proc/{number}").exists()
    engine.close()
    start = time.monotonic()
    while _runs(number) and time.monotonic() - start < 10:
        time.sleep(0.05)
    assert not _runs(number)


def _runs(number: int) -> bool:
    """Returns whether a process runs; one that nobody has waited for is there, and does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_crash_is_seen_though_its_children_live(bad: str) -> None:
    engine = process(bad)
    start = time.monotonic()
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "start_and_crash")
    assert time.monotonic() - start < 10
    assert "SIGABRT" in caught.value.why


def test_results_that_cannot_be_sent_and_long_words(bad: str) -> None:
    engine = process(bad)
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "odd")
    assert "pickle" in caught.value.why
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "say", 100_000_000)
    assert len(caught.value.why) < 700
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "say", 3)
    assert caught.value.why == "RuntimeError: xxx [2J"
    assert engine.ask("echo", "echo", 3) == 3
    with pytest.raises(UnsupportedTargetError) as caught:
        engine.ask("run the model", "exit")
    assert "exit code 7" in caught.value.why


def test_the_kernel_ends_it_first_and_its_pipes_are_its_own(bad: str) -> None:
    engine = process(bad)
    assert engine.ask("say", "priority") == 1000
    assert engine.ask("say", "inherited") == [False, False]
    number = engine._process.pid
    del engine
    gc.collect()
    assert not Path(f"/proc/{number}").exists()


def test_a_hang_ends_though_nobody_is_left_to_wait(bad: str, tmp_path: Path) -> None:
    script = tmp_path / "gone.py"
    script.write_text(
        "import os, threading, time\n"
        "from qdqbridge.targets.engines import process\n"
        f"e = process.EngineProcess({bad!r}, 'it', process.ProcessLimits(0.5))\n"
        "print(e._process.pid, flush=True)\n"
        "e._requests.send(('hang', (), 0.5))\n"
        "time.sleep(0.5)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    number, start = int(found.stdout), time.monotonic()
    while _runs(number) and time.monotonic() - start < 30:
        time.sleep(0.2)
    assert not _runs(number)


def test_no_file_of_the_working_directory_is_taken_for_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ValueError('not the engine')\n")
    monkeypatch.chdir(tmp_path)
    engine = process("onnxruntime_cpu")
    assert engine.version.startswith("onnxruntime 1.")
    engine.close()


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
    assert "install it again" in caught.value.fix


@pytest.mark.parametrize("name", ["qnn-htp", "openvino", "litert", "onnxruntime-optimized"])
def test_a_missing_engine_is_named_with_its_pip_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdqbridge.targets.engines import kinds

    monkeypatch.setattr(kinds, "find_spec", lambda package: None)
    with pytest.raises(UnsupportedTargetError) as caught:
        qdqbridge.open_engine(cast("Any", name), CNN)
    assert f"'{name}' is not installed" in caught.value.what
    assert f"pip install {kinds.ENGINES[name].package.replace('_', '-')}" in caught.value.fix


def test_an_engine_that_nobody_knows() -> None:
    with pytest.raises(InputDataError, match="what name is given") as caught:
        qdqbridge.open_engine("hexagon", CNN)  # pyright: ignore[reportArgumentType]
    assert "'qnn-htp'" in caught.value.fix


# ---- onnxruntime with its optimizations, which is always here --------------------------------


def test_it_says_what_became_of_the_nodes_and_computes(fitting: Path) -> None:
    graph = qdqbridge.load(fitting)
    images = np.load(MODELS / "digits_test.npz")["x"][:8]
    with qdqbridge.open_engine("onnxruntime-optimized", fitting, extents={"batch": 8}) as engine:
        verdict = engine.taken()
        found = engine.run({"input": images}, engine.outputs)
    assert verdict.takes_all
    assert {"QLinearConv", "QGemm"} <= {p.operator.rpartition("::")[2] for p in verdict.placements}
    expected = qdqbridge.evaluate(graph, {"input": images})["logits"]
    steps = np.abs(found["logits"] - expected) / np.ptp(expected)
    assert steps.max() < 0.01


def test_a_graph_is_written_as_its_profile_says(fitting: Path) -> None:
    graph = qdqbridge.load(fitting)
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
    from qdqbridge.targets.engines.vendor import open_engine

    with pytest.raises(UnsupportedTargetError, match=r"reads \.tflite files only"):
        open_engine("litert", CNN, qdqbridge.load(CNN))


def test_a_package_of_node_is_looked_for_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "installed_program", lambda name: name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedTargetError, match="not installed") as caught:
        kinds.engine_kind("onnxruntime-web")
    assert str(tmp_path) in caught.value.why and "npm install" in caught.value.fix
    (tmp_path / "node_modules" / "onnxruntime-web").mkdir(parents=True)
    assert kinds.engine_kind("onnxruntime-web").missing() == ""


def test_an_emulated_python_is_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedTargetError, match="not installed") as caught:
        kinds.engine_kind("onnxruntime-arm")
    assert "'arm-python'" in caught.value.why and "scripts/arm_python" in caught.value.fix
    program = tmp_path / "arm-python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "utf-8")
    program.chmod(0o755)
    assert kinds.engine_kind("onnxruntime-arm").python() == (str(program),)
    with pytest.raises(UnsupportedTargetError, match="this Python runs on"):  # it is no Arm
        qdqbridge.open_engine("onnxruntime-arm", CNN)


# ---- onnxruntime on x86 without VNNI ---------------------------------------------------------


@pytest.mark.skipif(
    not (saturates() or which(processors.QEMU)), reason="needs qemu-user, or x86 without VNNI"
)
def test_it_runs_on_the_processor_that_it_names(fitting: Path) -> None:
    feed = {"input": np.load(MODELS / "digits_test.npz")["x"][:1]}
    lost = np.abs(_logits("onnxruntime-avx2", CNN, feed) - _logits("interpreter", CNN, feed)).max()
    assert lost > 0.5  # logits of some 10
    np.testing.assert_array_equal(
        _logits("onnxruntime-avx2", fitting, feed), _logits("interpreter", fitting, feed)
    )


def _logits(
    engine: EngineName | Literal["interpreter"], model: Path, feed: dict[str, Any]
) -> np.ndarray:
    if engine == "interpreter":
        return qdqbridge.evaluate(qdqbridge.load(model), feed)["logits"]
    with qdqbridge.open_engine(engine, model) as judge:
        brand = judge.version.partition(" on ")[2]
        assert brand == processors.processor().brand if saturates() else "Haswell" in brand
        return judge.run(feed, ["logits"])["logits"]


def test_where_it_cannot_run_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "saturates", lambda: False)
    monkeypatch.setattr(processors, "which", lambda name: None)
    with pytest.raises(UnsupportedTargetError, match="needs qemu-x86_64") as caught:
        qdqbridge.open_engine("onnxruntime-avx2", CNN)
    assert "apt install qemu-user" in caught.value.fix
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UnsupportedTargetError, match="does not run here"):
        qdqbridge.open_engine("onnxruntime-avx2", CNN)


# ---- the command line ------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> str:
    file = tmp_path / "images.npz"
    np.savez(file, input=np.load(MODELS / "digits_test.npz")["x"][:4])
    return str(file)


def test_run_and_compare_take_an_engine(
    images: str, fitting: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = ["--engine", "onnxruntime-optimized", "--data", images]
    assert run(["run", str(fitting), *engine]) == 0
    # what one node rounds otherwise reaches the next
    assert run(["compare", str(fitting), *engine, "--max-lsb", "2"]) == 0
    assert "onnxruntime with its graph optimizations against onnxruntime" in capfd.readouterr().out
    assert run(["compare", str(fitting), *engine, "--local", "--max-lsb", "1"]) == 0
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


def test_the_reference_is_an_engine_like_others(tmp_path: Path, capsys: Any) -> None:
    """Every node runs as it is written: what it gives is what a session in this process gives."""
    given = {"input": np.load(MODELS / "digits_test.npz")["x"][:4]}
    session = pipeline.session(CNN)
    with qdqbridge.open_engine("onnxruntime", CNN) as engine:
        found = engine.run(given, engine.names)
        own = session.run(given, engine.names)
        assert all(np.array_equal(found[name], own[name]) for name in engine.names)
        assert len(engine.names) > 10 and not engine.taken().takes_all
        assert not engine.kind.pairs_saturate()
    data = tmp_path / "few.npz"
    np.savez(data, **given)
    for asked in (["compare", CNN], ["compare", CNN, "--local"], ["run", CNN]):
        assert run([*map(str, asked), "--engine", "onnxruntime", "--data", str(data)]) == 0
    capsys.readouterr()
    assert run(["export", str(CNN), "--check", "--engine", "onnxruntime"]) == 1
    assert "onnxruntime without graph optimizations" in capsys.readouterr().out
    assert run(["fix", str(CNN), "--for", "onnxruntime", "-o", str(tmp_path / "f.onnx")]) == 0
