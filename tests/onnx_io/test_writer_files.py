"""Files appear complete or not at all; large models have their data beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import ModelFileError, OutputExistsError
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.writer import files
from qdqbridge.onnx_io.writer.files import model_without_tensors, write_files
from qdqbridge.onnx_io.writer.spec import GraphSpec, NodeRow
from qdqbridge.targets.profiles.export import export, exported_proto
from tests.onnx_io.writer_models import run, samples
from tests.places import MODELS

SOURCE = MODELS / "digits_cnn_u8s8_per_channel.onnx"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return canonicalize(read(SOURCE))


def test_external_data(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXTERNAL_ABOVE", 1000)
    path = tmp_path / "large.onnx"
    export(graph, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    onnx.checker.check_model(str(path), full_check=True)
    again = canonicalize(read(path))
    assert again.digest == graph.digest
    feeds = samples(onnx.load(SOURCE))
    np.testing.assert_array_equal(run(SOURCE, feeds)[0], run(path, feeds)[0])
    assert onnx.load(path).graph.node == exported_proto(graph).graph.node
    export(again, path)  # over the data that the graph is mapped from
    assert canonicalize(read(path)).digest == graph.digest


def test_no_overwriting(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match="is there already"):
        export(graph, path, overwrite=False)
    assert path.read_bytes() == b"mine"
    export(graph, path)
    assert onnx.load(path).graph.name == graph.name


@pytest.mark.parametrize("limit", [1000, files.EXTERNAL_ABOVE])
def test_nothing_is_left_of_a_failure(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "EXTERNAL_ABOVE", limit)

    def fail() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        raise OSError(28, "No space left on device")

    constants = {
        "whole": Constant.of(np.zeros(400, np.float32)),
        "broken": Constant(DType.FLOAT32, (400,), fail),
    }
    path = tmp_path / "model.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(ModelFileError, match="cannot write") as error:
        write_files(onnx.ModelProto(), constants, path, overwrite=True)
    assert "No space left" in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"mine"


def test_missing_folder(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot write the file"):
        export(graph, tmp_path / "missing" / "model.onnx")


def test_a_name_that_no_file_can_have(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot write") as error:
        export(graph, tmp_path / "a\0b.onnx")
    assert "NUL" in error.value.why and not list(tmp_path.iterdir())


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("path", [".", "/", ".."])
def test_a_folder_is_no_name(graph: Graph, path: str, overwrite: bool) -> None:
    with pytest.raises(ModelFileError, match="it is a folder"):
        export(graph, Path(path), overwrite=overwrite)


def test_streamed_bytes_are_protobuf(tmp_path: Path) -> None:
    arrays = {
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(1.5),
        "flags": np.array([True, False]),
        "text": np.array(["a", "ü"], object),
        "transposed": np.arange(6000, dtype=np.int16).reshape(60, 100).T,
        "nibbles": np.array([1, -3, 7], np.int8).astype(DType.INT4.numpy),
        "half": np.array([0.5, -2], DType.BFLOAT16.numpy),
    }
    constants = {name: Constant.of(array) for name, array in arrays.items()}
    path = tmp_path / "tensors.onnx"
    write_files(onnx.ModelProto(ir_version=10), constants, path, overwrite=True)
    for tensor in onnx.load(path).graph.initializer:
        want = arrays[tensor.name]
        have = onnx.numpy_helper.to_array(tensor)
        if want.dtype == object:
            assert [text.decode() for text in tensor.string_data] == want.tolist()
            continue
        assert have.shape == want.shape
        np.testing.assert_array_equal(have.astype(np.float32), want.astype(np.float32))


def test_onnx_graphsurgeon_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """It warns on stdout, where programs read JSON, and of a package that it misses as well."""
    types = {name: TensorType(DType.FLOAT32, (2,)) for name in "xy"}
    rows = [NodeRow("Relu", ["x"], ["h"], name="n"), NodeRow("Neg", ["h"], ["y"], name="n")]
    spec = GraphSpec(["x"], ["y"], rows, types=types, imports={"": 17})
    model = model_without_tensors(spec, "g", {})
    assert [node.name for node in model.graph.node] == ["n", "n"]
    assert capfd.readouterr() == ("", "")
