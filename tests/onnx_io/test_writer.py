"""What is written reads back as the same graph and computes the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.writer.opset import ir_version_of
from qdqbridge.targets.profiles.export import export, exported_proto
from tests.onnx_io.writer_models import IMAGES, MATRICES, network, run, samples
from tests.onnx_models import Builder
from tests.places import MODELS

OWN_MODELS = sorted(path.name for path in MODELS.glob("*.onnx"))
NETWORKS = [*IMAGES, *MATRICES]
PROFILES = ("ort", "portable", "openvino")
"""Those that write every graph, to the last bit; the others are in test_profiles_export."""


def canonical(path: Path) -> Graph:
    return canonicalize(read(path))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "source.onnx"
    onnx.save(model, path)
    return path


def assert_same(source: Path, graph: Graph, folder: Path, profile: str) -> Path:
    """Checks validity, digest and bits of the written graph; returns its file."""
    path = folder / f"{profile}.onnx"
    digest = graph.digest
    export(graph, path, profile=profile)
    assert graph.digest == digest
    onnx.checker.check_model(str(path), full_check=True)
    assert canonical(path).digest == digest
    feeds = samples(onnx.load(source))
    for expected, actual in zip(run(source, feeds), run(path, feeds), strict=True):
        assert expected.dtype == actual.dtype
        np.testing.assert_array_equal(expected, actual)
    return path


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, profile: str, tmp_path: Path) -> None:
    source = saved(network(name), tmp_path)
    assert_same(source, canonical(source), tmp_path, profile)


@pytest.mark.parametrize("opset", [13, 19, 21])
@pytest.mark.parametrize("name", ["conv_relu", "average_pool", "gemm_columns"])
def test_opset_of_the_source_is_kept(name: str, opset: int, tmp_path: Path) -> None:
    source = saved(network(name, opset), tmp_path)
    path = assert_same(source, canonical(source), tmp_path, "ort")
    assert onnx.load(path).opset_import[0].version == opset


@pytest.mark.parametrize("name", ["conv_relu", "split", "matmul_add", "gather_int32"])
def test_raw_graph(name: str, tmp_path: Path) -> None:
    source = saved(network(name), tmp_path)
    path = tmp_path / "raw.onnx"
    export(read(source), path)
    assert canonical(path).digest == canonical(source).digest
    feeds = samples(onnx.load(source))
    np.testing.assert_array_equal(run(source, feeds)[0], run(path, feeds)[0])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", OWN_MODELS)
def test_own_model(name: str, profile: str, tmp_path: Path) -> None:
    assert_same(MODELS / name, canonical(MODELS / name), tmp_path, profile)


def test_proto_is_the_file(tmp_path: Path) -> None:
    graph = canonical(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    path = tmp_path / "model.onnx"
    export(graph, path)
    assert onnx.load(path) == exported_proto(graph)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for file in files:
        export(canonical(MODELS / "digits_cnn_s8s8_per_tensor.onnx"), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_digits_cnn_is_fused(tmp_path: Path) -> None:
    source = MODELS / "digits_cnn_u8s8_per_channel.onnx"
    path, dump = tmp_path / "model.onnx", tmp_path / "optimized.onnx"
    export(canonical(source), path)
    run(path, samples(onnx.load(source)), dump)
    kinds = [node.op_type for node in onnx.load(dump).graph.node]
    first = kinds.index("QuantizeLinear")
    last = len(kinds) - 1 - kinds[::-1].index("DequantizeLinear")
    moving = {"Transpose", "Flatten", "NhwcMaxPool", "QGemm"}
    inside = [kind for kind in kinds[first + 1 : last] if not kind.startswith("QLinear")]
    assert set(inside) <= moving
    assert kinds.count("QLinearConv") == 5


@pytest.mark.parametrize("name", ["conv_float_bias", "gemm_rows", "matmul_add", "conv_relu_signed"])
def test_products_are_fused(name: str, tmp_path: Path) -> None:
    model = network(name)
    path, dump = tmp_path / "model.onnx", tmp_path / "optimized.onnx"
    export(canonical(saved(model, tmp_path)), path)
    run(path, samples(model), dump)
    kinds = {node.op_type for node in onnx.load(dump).graph.node}
    assert kinds & {"QLinearConv", "QGemm"}
    assert not kinds & {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul"}


def test_unknown_profile_is_refused() -> None:
    graph = canonical(MODELS / "digits_cnn_float.onnx")
    with pytest.raises(UnsupportedTargetError, match="no export profile 'rot13'"):
        exported_proto(graph, "rot13")


@pytest.mark.parametrize("profile", ["ort", "portable"])
def test_a_result_wider_than_its_scale_is_rounded_once(profile: str, tmp_path: Path) -> None:
    b = Builder(23)
    x, zero_point = b.input("x", [2, 50]), b.init(np.uint8(4))
    stored = b.op("QuantizeLinear", x, b.init(np.float16(0.1)), zero_point)
    scale = b.init(np.float16(0.13))
    b.output(
        b.op("DequantizeLinear", stored, scale, zero_point, output_dtype=onnx.TensorProto.FLOAT)
    )
    source = saved(b.model(), tmp_path)
    graph = canonical(source)
    written = tmp_path / "written.onnx"
    export(graph, written, profile=profile)
    assert canonical(written).digest == graph.digest
    feeds = {"x": np.linspace(-1, 30, 100, dtype=np.float32).reshape(2, 50)}
    np.testing.assert_array_equal(run(written, feeds)[0], run(source, feeds)[0])


def test_constants_are_no_graph_inputs_whatever_the_opset() -> None:
    """IR version 3, which opset 8 came with, has them among the inputs: onnxruntime refused it."""
    assert ir_version_of({"": 8}, with_metadata=False) == 4
    assert ir_version_of({"": 21}, with_metadata=False) == 10
