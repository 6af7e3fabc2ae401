"""External data that changes, moves or ends after the model was read, or was never a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.errors import ModelFileError
from tests.onnx_models import conv_input, conv_model

WEIGHT = 4 * 3 * 3 * 3


def external(folder: Path, location: str = "weights.bin") -> Path:
    """Writes the model of a convolution whose weight lies in a file of its own."""
    folder.mkdir(exist_ok=True)
    model = conv_model()
    tensor = next(t for t in model.graph.initializer if list(t.dims) == [4, 3, 3, 3])
    data = folder / "weights.bin"
    data.write_bytes(bytes(100) + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "100", "length": str(WEIGHT)}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def truncated(path: Path) -> None:
    os.truncate(path, 50)


def written(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    os.utime(path, ns=(1, 1))


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(len(path.read_bytes())))
    os.replace(other, path)


CHANGES: tuple[Callable[[Path], None], ...] = (truncated, written)


@pytest.mark.parametrize("looked_at", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_found_when_the_data_are_used(
    change: Callable[[Path], None], looked_at: bool, tmp_path: Path
) -> None:
    graph = qb.load(external(tmp_path))
    if looked_at:
        graph.text()
    change(tmp_path / "weights.bin")
    uses: tuple[Callable[[], object], ...] = (
        graph.text,
        lambda: qb.evaluate(graph, conv_input()),
        lambda: qb.save(graph, tmp_path / "out.onnx"),
    )
    for use in uses:
        with pytest.raises(ModelFileError, match="external data changed") as error:
            use()
        assert "weights.bin" in error.value.why
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("change", [replaced, Path.unlink])
def test_what_takes_the_name_of_a_file_changes_no_model_that_was_read(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    graph, twin = qb.load(external(tmp_path / "here")), qb.load(external(tmp_path / "twin"))
    change(tmp_path / "here" / "weights.bin")
    assert graph.digest == twin.digest
    for name, array in qb.evaluate(graph, conv_input()).items():
        np.testing.assert_array_equal(array, qb.evaluate(twin, conv_input())[name])


_WRITER = """
import os, sys, time
folder, versions = sys.argv[1], sys.argv[2:]
for turn in range(100_000):
    chosen = versions[turn % len(versions)]
    for name in sorted(os.listdir(chosen)):
        with open(os.path.join(chosen, name), "rb") as old, open(folder + "/new", "wb") as new:
            new.write(old.read())
        os.replace(folder + "/new", os.path.join(folder, name))
    time.sleep(0.02)
"""


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_a_model_that_another_process_replaces(suffix: str, tmp_path: Path) -> None:
    """Never a mixture of two models; each is read at the latest after a few attempts."""
    digests: set[str] = set()
    for index in range(2):
        folder = tmp_path / f"version{index}"
        path = external(folder)
        data = (folder / "weights.bin").read_bytes()
        (folder / "weights.bin").write_bytes(data[:-1] + bytes([index]))
        if suffix == "tflite":
            graph = qb.load(path)
            for file in (path, folder / "weights.bin"):
                file.unlink()
            path = folder / "model.tflite"
            qb.save(graph, path)
        digests.add(qb.load(path).digest)
    assert len(digests) == 2
    there = tmp_path / "there"
    there.mkdir()
    versions = [str(tmp_path / f"version{index}") for index in range(2)]
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(there), *versions])
    try:
        while not (there / f"model.{suffix}").exists() or len(os.listdir(there)) < 2 - (
            suffix == "tflite"
        ):
            assert writer.poll() is None
        found = {qb.load(there / f"model.{suffix}").digest for _ in range(12)}
    finally:
        writer.kill()
        writer.wait(10)
    assert found <= digests


def test_unchanged_data_are_used_often(tmp_path: Path) -> None:
    graph = qb.load(external(tmp_path))
    assert graph.digest == qb.load(external(tmp_path / "twin")).digest
    first, second = (qb.evaluate(graph, conv_input()) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize("location", ["pipe", "/dev/zero", "device", "link/secret.bin", "deep.bin"])
def test_only_files_of_the_folder_are_opened(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "link").symlink_to(tmp_path)
    (folder / "deep.bin").symlink_to(folder / "link" / "secret.bin")
    with pytest.raises(ModelFileError, match="inside the model's folder"):
        qb.load(external(folder, location))


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    path = external(folder, "alias.bin")
    (folder / "alias.bin").symlink_to("weights.bin")
    assert qb.load(path).digest == qb.load(external(tmp_path / "twin")).digest
    (tmp_path / "moved").symlink_to(folder)
    assert qb.load(tmp_path / "moved" / "model.onnx").digest == qb.load(path).digest


@pytest.mark.parametrize("name", ["pipe.onnx", "zero.onnx"])
def test_pipes_and_devices_are_no_models(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    with pytest.raises(ModelFileError, match="cannot read the model file"):
        qb.load(tmp_path / name)
