"""One path written by several threads, and by several processes, at once: always one whole file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app.pipeline import save_tflite
from qdqbridge.core.graph import atomic_write
from qdqbridge.core.graph.atomic_write import (
    placed,
    placed_together,
    read_arrays,
    write_arrays,
    write_text,
)
from qdqbridge.errors import OutputExistsError, OutputFileError
from qdqbridge.onnx_io.writer import files
from tests.places import MODELS

NAMES = ("digits_cnn_u8s8_per_channel.onnx", "digits_cnn_s8s8_per_tensor.onnx")
IMAGES = np.random.default_rng(0).random((4, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def graphs() -> Sequence[qb.Graph]:
    return [qb.load(MODELS / name) for name in NAMES]


def at_once(jobs: int, work: Callable[[int], Any]) -> list[Any]:
    """Does a piece of work in as many threads, five times each; raises what one of them raises."""
    with ThreadPoolExecutor(jobs) as pool:
        done = [pool.submit(lambda i=i: [work(i) for _ in range(5)]) for i in range(jobs)]
        return [each.result() for each in done]


def onnx_file(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    qb.save(graphs[i % 2], path.with_suffix(".onnx"), overwrite=True)
    assert qb.load(path.with_suffix(".onnx")).digest in [graph.digest for graph in graphs]


def tflite_file(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    save_tflite(graphs[0], path.with_suffix(".tflite"), overwrite=True)
    assert path.with_suffix(".tflite").read_bytes()[4:8] == b"TFL3"


def two_files(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    """A model and the parameters of its ends."""
    qb.save(graphs[i % 2], path.with_suffix(".onnx"), overwrite=True, io="as-stored")


def encodings(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    model, beside = path.with_suffix(".onnx"), path.with_suffix(".encodings")
    assert qb.save_encodings(graphs[i % 2], model, beside, overwrite=True) == ()


def text_file(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    texts = [f"{n}\n" * 10_000 for n in range(2)]
    write_text(path, texts[i % 2])
    assert path.read_text("utf-8") in texts


def archive(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    write_arrays(path.with_suffix(".npz"), {"x": np.full(10_000, i)})
    assert len(set(read_arrays(path.with_suffix(".npz"))["x"])) == 1


def page(graphs: Sequence[qb.Graph], path: Path, i: int) -> None:
    qb.view(graphs[i % 2], path=path.with_suffix(".html"))
    assert path.with_suffix(".html").read_text("utf-8").rstrip().endswith("</html>")


def test_two_files_are_of_one_graph(graphs: Sequence[qb.Graph], tmp_path: Path) -> None:
    at_once(6, lambda i: two_files(graphs, tmp_path / "m", i))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.io.json", "m.onnx"]
    ends = json.loads((tmp_path / "m.io.json").read_text("utf-8"))
    assert ends["inputs"][0]["dtype"] == str(qb.load(tmp_path / "m.onnx").inputs[0].type.dtype)
    at_once(3, lambda i: encodings(graphs, tmp_path / "e", i))
    read = qb.load(tmp_path / "e.onnx", encodings=tmp_path / "e.encodings")
    assert read.digest in [graph.digest for graph in graphs]


@pytest.mark.parametrize("write", [onnx_file, tflite_file, text_file, archive, page])
def test_threads(write: Any, graphs: Sequence[qb.Graph], tmp_path: Path) -> None:
    at_once(2 if write is tflite_file else 6, lambda i: write(graphs, tmp_path / "same", i))
    (left,) = tmp_path.iterdir()
    if write is tflite_file:  # one that is being replaced cannot be read: its data are mapped
        assert qb.load(left).nodes


def test_profiles_from_threads(tmp_path: Path) -> None:
    made = qb.profile(MODELS / "digits_cnn_float.onnx", {"input": IMAGES})
    path = tmp_path / "p.json"

    def write(i: int) -> None:
        qb.save_profile(made, path)
        assert qb.load_profile(path).samples == made.samples

    at_once(6, write)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.relax
def test_executables_from_threads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tests.tvm.relax.digits import digits  # needs TVM

    made, path = digits(1), tmp_path / "m.so"
    meant = made.run({"input": IMAGES})["logits"]
    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(made.save, path) for _ in range(2)]:
            each.result()
        for each in [pool.submit(qb.load_executable, path) for _ in range(2)]:
            np.testing.assert_array_equal(each.result().run({"input": IMAGES})["logits"], meant)
    assert list(tmp_path.iterdir()) == [path]
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_a_model_keeps_its_own_data(
    graphs: Sequence[qb.Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models of one shape: data of one under the other would be read without a word."""
    monkeypatch.setattr(files, "EXTERNAL_ABOVE", 1000)
    path = tmp_path / "m.onnx"
    other = qb.load(MODELS / NAMES[0])
    for value in other.values():
        if value.constant is not None and value.constant.size > 100:
            value.constant = value.constant.map(lambda array: array[::-1])
    both = graphs[0], other
    for _ in range(5):
        at_once(4, lambda i: qb.save(both[i % 2], path, overwrite=True))
        assert qb.load(path).digest in [graph.digest for graph in both]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_processes(graphs: Sequence[qb.Graph], tmp_path: Path) -> None:
    code = (
        "import sys, qdqbridge as qb\n"
        "from qdqbridge.onnx_io.writer import files\n"
        "files.EXTERNAL_ABOVE = 1000\n"
        "graph = qb.load(sys.argv[1])\n"
        "for _ in range(15): qb.save(graph, sys.argv[2], overwrite=True)\n"
    )
    path = tmp_path / "m.onnx"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(MODELS / name), str(path)])
        for name in NAMES
    ]
    assert [each.wait(timeout=240) for each in running] == [0, 0]
    assert qb.load(path).digest in [graph.digest for graph in graphs]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_one_of_several_is_first_where_nothing_may_be_replaced(
    graphs: Sequence[qb.Graph], tmp_path: Path
) -> None:
    def write(i: int) -> bool:
        try:
            qb.save(graphs[i % 2], tmp_path / "m.onnx")
        except OutputExistsError:
            return False
        return True

    assert sum(sum(each) for each in at_once(6, write)) == 1


def test_the_umask_is_kept(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        at_once(6, lambda i: write_text(tmp_path / f"{i}", "text"))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o640}


def test_files_in_one_turn_are_there_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with (
        pytest.raises(OutputFileError, match="cannot write"),
        placed_together([tmp_path / "a", tmp_path / "b"]),
    ):
        pytest.fail("what cannot be placed is not written")
    assert [file.name for file in tmp_path.iterdir()] == ["b"]


@pytest.mark.skipif(atomic_write.fcntl is None, reason="a system without flock")
def test_somebody_elses_lock_delays_and_does_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_write, "_PATIENCE", 0.05)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        assert atomic_write.fcntl is not None
        atomic_write.fcntl.flock(held, atomic_write.fcntl.LOCK_EX)
        start = time.monotonic()
        write_text(tmp_path / "m", "text")
        assert time.monotonic() - start >= 0.05
    finally:
        os.close(held)
    assert (tmp_path / "m").read_text() == "text"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("a" * 300, "a shorter name"), ("é" * 126 + ".txt", "a shorter name"),
        ("none/m", "make the folder"), ("file/m", "the name of a file in a folder"),
        ("", "the name of a file in it"),
    ],
)  # fmt: skip
def test_what_to_do_is_what_helps(name: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError) as error, placed(tmp_path / name) as scratch:
        scratch.write_text("text")
    assert fix in error.value.fix
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
