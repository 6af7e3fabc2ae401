"""Standard streams that are closed, broken, full or narrow, and files that cannot be written."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqbridge.app.cli.failures import run
from qdqbridge.core.graph.atomic_write import placed, write_text
from qdqbridge.errors import OutputFileError
from tests.onnx_models import conv_model
from tests.places import MODELS, ROOT

MODEL = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")
VERBS = ("inspect", "canonicalize", "explain")
CLOSED = (">&-", ">&- 2>&-", "<&- >&- 2>&-")


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line in which ``$Q`` is qdqbridge and ``$M`` a model."""
    names = {"Q": f"{sys.executable} -m qdqbridge", "M": MODEL, **environment}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=os.environ | names, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "closed"),
    [("inspect", closed) for closed in CLOSED] + [(v, CLOSED[1]) for v in VERBS[1:]],
)
def test_closed_streams(verb: str, closed: str) -> None:
    """Every verb, and every way to close: what a verb prints does not know about streams."""
    done = shell(f"$Q {verb} $M {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", CLOSED)
def test_failures_have_their_code_without_streams(closed: str) -> None:
    assert shell(f"$Q inspect nowhere.onnx {closed}").returncode == 3


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_reads(verb: str) -> None:
    done = shell(f"$Q {verb} $M | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode in (0, 141)  # 0 where all of it went into the pipe before
    # What explain says of processors is no part of its result.
    told = [line for line in done.stderr.splitlines() if not line.startswith("on x86 with AVX2")]
    assert told == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [*VERBS, "inspect --json"])
def test_full_streams(arguments: str) -> None:
    verb, *options = arguments.split()
    done = shell(f"$Q {verb} $M {' '.join(options)} > /dev/full")
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_failures_have_their_code_where_nobody_can_be_told() -> None:
    assert shell("$Q inspect nowhere.onnx 2> /dev/full").returncode == 3


@pytest.mark.parametrize("verb", [*VERBS, "export --check", "inspect --json", "explain --json"])
def test_streams_that_know_only_ascii(verb: str, tmp_path: Path) -> None:
    model = conv_model()
    for node in model.graph.node:
        node.name = f"Schicht ü → {node.name}"
    model.producer_name = "Prüfer 測試"
    path = tmp_path / "modèle.onnx"
    path.write_bytes(model.SerializeToString())
    head, *options = verb.split()
    command = f"$Q {head} '{path}' {' '.join(options)}"
    done = shell(command, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode in (0, 1), done.stderr
    assert "Error" not in done.stderr
    if "--json" in options:
        json.loads(done.stdout)


def test_errors_on_streams_that_know_only_ascii(tmp_path: Path) -> None:
    missing = f"$Q inspect '{tmp_path}/fehlt ü.onnx'"
    failed = shell(missing, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert failed.returncode == 3
    assert "fehlt" in failed.stderr and "bug" not in failed.stderr


# A job in the background of a shell inherits that Ctrl-C is ignored; a user's foreground does not.
WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from qdqbridge.app import cli, sources
def wait(*_, **__):
    print("ready", flush=True)
    time.sleep(60)
sources.inspect_model = wait
sys.argv = ["qdqbridge", "inspect", "m.onnx"]
cli.main()
"""


def test_interrupted() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "interrupted\n"


# ---- files ------------------------------------------------------------------------------------

OUTPUTS = {
    "canonicalize": "m.txt", "export": "m.onnx", "run": "m.npz", "to-tvm json": "m.json",
    "to-tvm py": "m.py", "to-tvm so": "m.so",
}  # fmt: skip


@contextmanager
def file_size(largest: int) -> Generator[None]:
    """Lets no file of this process, or of one that it starts, grow beyond a size: a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.relax
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_full_disk_leaves_what_was_there(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if output.startswith("to-tvm"):
        pytest.importorskip("tvm")
    path, data = tmp_path / OUTPUTS[output], tmp_path / "data" / "x.npz"
    data.parent.mkdir()
    np.savez(data, input=np.zeros((900, 1, 8, 8), np.float32))
    path.write_bytes(b"mine")
    arguments = [output.split(maxsplit=1)[0], MODEL, "-o", str(path), "--force"]
    if output == "run":
        arguments += ["--data", str(data), "--engine", "interpreter"]
    with file_size(1500):
        code = run(arguments)
    told = capsys.readouterr().err
    assert code == 3, told
    assert "cannot write" in told
    assert "File too large" in told
    assert str(path) in told
    assert path.read_bytes() == b"mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["data", path.name])


def test_a_folder_in_the_way(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "m.txt").mkdir()
    assert run(["canonicalize", MODEL, "-o", str(tmp_path / "m.txt"), "--force"]) == 3
    assert "it is a folder" in capsys.readouterr().err
    with pytest.raises(OutputFileError, match="cannot write"):
        write_text(tmp_path / "m.txt", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "m.txt"]


def test_a_file_is_placed_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    path.chmod(0o640)

    def broken() -> None:
        with placed(path) as scratch:
            scratch.write_text("half")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        broken()
    assert path.read_text() == "old"
    link = tmp_path / "link.txt"
    link.symlink_to(path)
    write_text(link, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_devices_are_written_as_they_are() -> None:
    write_text(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()
