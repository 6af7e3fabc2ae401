"""Broken files: one named error that says where, why and what to do, quickly."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqbridge.errors import (
    ModelFileError,
    QdqBridgeError,
    UnsupportedModelError,
)
from tests.onnx_io import bad_models, bad_parameters
from tests.onnx_io.bad_parts import CASES, loaded
from tests.onnx_models import Builder, conv_model

SECONDS = 1.0
SOURCES = (bad_models, bad_parameters)  # importing them fills CASES


def refused(path: Path) -> QdqBridgeError:
    start = time.perf_counter()
    with pytest.raises(QdqBridgeError) as caught:
        loaded(path)
    assert time.perf_counter() - start < SECONDS
    error = caught.value
    assert error.what
    assert "\n" not in error.what
    assert path.name in str(error)
    assert error.fix
    return error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "models"
    (inside / "folder").mkdir(parents=True)
    (inside / "data.bin").write_bytes(bytes(4096))
    (inside / "short.bin").write_bytes(bytes(8))
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    return inside


@pytest.mark.parametrize("name", sorted(CASES))
def test_broken_models(name: str, folder: Path) -> None:
    breaker, expected = CASES[name]
    model = conv_model()
    breaker(model)
    path = folder / "broken.onnx"
    path.write_bytes(model.SerializeToString().replace(b"NOT-TEXT", b"\xff\xfeT-TEXT"))
    error = refused(path)
    assert type(error) is expected, f"{type(error).__name__}: {error}"
    assert error.where


def test_the_list_is_complete() -> None:
    modules = {breaker.__module__ for breaker, _ in CASES.values()}
    assert {module.__name__ for module in SOURCES} <= modules
    assert len(CASES) > 80


def test_the_model_itself_is_sound(folder: Path) -> None:
    path = folder / "sound.onnx"
    path.write_bytes(conv_model().SerializeToString())
    loaded(path)


@pytest.mark.parametrize("shape", [[2**40], [2**40, 3, 6, 6]], ids=["vector", "batch"])
def test_huge_inputs_are_read_without_allocating(shape: list[int], tmp_path: Path) -> None:
    b = Builder()
    b.output(b.qdq(b.op("Relu", b.qdq(b.input("x", shape), 0.5)), 0.5))
    path = tmp_path / "huge.onnx"
    path.write_bytes(b.model().SerializeToString())
    start = time.perf_counter()
    assert loaded(path).inputs[0].type.shape == tuple(shape)
    assert time.perf_counter() - start < SECONDS


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789\nsize 12345\n"
HTML = b"<!DOCTYPE html><html><head><title>404</title></head><body>not found</body></html>"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (np.random.default_rng(0).bytes(4000), ""),
        (HTML, ""),
        (LFS, "Git LFS"),
        (conv_model().SerializeToString()[:-1], ""),
        (conv_model().SerializeToString()[:-17], ""),
        (conv_model().SerializeToString()[:400], ""),
        (b"PK\x03\x04" + bytes(300), ""),
    ],
    ids=["empty", "random", "html", "lfs", "last byte", "tail", "half", "zip"],
)
def test_files_that_are_no_models(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    error = refused(path)
    assert type(error) is ModelFileError
    assert words in error.what


def test_missing_files_and_folders(tmp_path: Path) -> None:
    assert type(refused(tmp_path / "none.onnx")) is ModelFileError
    (tmp_path / "folder.onnx").mkdir()
    assert type(refused(tmp_path / "folder.onnx")) is ModelFileError


def test_every_unknown_operator_is_listed_at_once(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", [4])
    for i in range(5):
        x = b.op(f"Unknown{i % 2}", x)
    b.output(x)
    path = tmp_path / "broken.onnx"
    path.write_bytes(b.model().SerializeToString())
    error = refused(path)
    assert type(error) is UnsupportedModelError
    assert "2 operator(s)" in error.what
    assert "Unknown0 (3:" in error.why
    assert "Unknown1 (2:" in error.why


def test_deep_nesting_is_no_recursion_error(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", [4])
    c = b.input("c", [], TensorProto.BOOL)
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])

    def leaf(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, [x], ["y"])], op, [], [value])

    body = leaf("Exp")
    for i in range(24):
        inner = helper.make_node("If", [c], ["y"], then_branch=body, else_branch=leaf("Neg"))
        body = helper.make_graph([inner], f"level{i}", [], [value])
    b.output(b.op("If", c, then_branch=body, else_branch=leaf("Neg")))
    path = tmp_path / "deep.onnx"
    path.write_bytes(b.model().SerializeToString())
    graph = loaded(path)
    assert [n.op.name for n in graph.nodes] == ["If"]


@pytest.mark.parametrize("keepdims", [-1, 2, 4])
def test_flags_are_0_or_1(keepdims: int, tmp_path: Path) -> None:
    """onnxruntime keeps the axes at 1 alone, TVM at anything but 0."""
    b = Builder(18)
    x, axes = b.input("x", [2, 3]), b.input("axes", [1], TensorProto.INT64)
    b.output(b.op("ReduceMax", x, axes, keepdims=keepdims), None)
    path = tmp_path / "flag.onnx"
    path.write_bytes(b.model().SerializeToString())
    assert "'keepdims' of ReduceMax" in str(refused(path))
