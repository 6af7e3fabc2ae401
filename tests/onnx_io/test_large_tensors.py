"""Large initializers, read apart from the message: the same graph, or the same refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.onnx_io.reading import model_file
from qdqbridge.onnx_io.reading.model_file import _varint, read_model, read_model_apart
from tests.places import MODELS

NAMES = ("digits_cnn_u8s8_per_channel.onnx", "digits_mlp_float.onnx")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("large", [1, 1000])
def test_what_lies_apart_changes_nothing(
    name: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = qb.load(MODELS / name)
    monkeypatch.setattr(model_file, "LARGE", large)
    model, apart = read_model_apart(MODELS / name)
    assert apart
    assert model.graph.node == read_model(MODELS / name).graph.node
    assert qb.load(MODELS / name).digest == meant.digest


def dense(tensor: TensorProto) -> bytes:
    """Returns a model of one product whose weight is ``tensor``."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [tensor])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def weight() -> TensorProto:
    return numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns what loading says with and without tensors apart: a digest, or the error."""
    found: list[str] = []
    for large in (1, 1 << 30):
        monkeypatch.setattr(model_file, "LARGE", large)
        try:
            found.append(qb.load(path).digest)
        except qb.QdqBridgeError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def typed() -> TensorProto:
    return helper.make_tensor("w", TensorProto.FLOAT, [4, 4], list(range(16)))


def both_kinds() -> TensorProto:
    tensor = weight()
    tensor.float_data.append(1)
    return tensor


def too_short() -> TensorProto:
    tensor = weight()
    tensor.raw_data = tensor.raw_data[:60]
    return tensor


def foreign_location() -> TensorProto:
    tensor = weight()
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="\0" + "0" * 32)
    return tensor


@pytest.mark.parametrize("made", [weight, typed, both_kinds, too_short, foreign_location])
def test_tensors_of_other_forms(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(dense(made()))
    apart, whole = both(path, monkeypatch)
    assert apart == whole


def test_bytes_that_are_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protobuf takes the last ones."""
    tensor, other = weight(), weight()
    other.raw_data = bytes(64)
    again = TensorProto(raw_data=other.raw_data).SerializeToString()
    twice = tensor.SerializeToString() + again
    path = tmp_path / "m.onnx"
    graph = onnx.ModelProto.FromString(dense(tensor)).graph
    del graph.initializer[:]
    inner = graph.SerializeToString() + b"\x2a" + _varint(len(twice)) + twice
    model = onnx.ModelProto.FromString(dense(tensor))
    model.ClearField("graph")
    path.write_bytes(model.SerializeToString() + b"\x3a" + _varint(len(inner)) + inner)
    apart, meant = both(path, monkeypatch)
    assert apart == meant
    assert not qb.evaluate(qb.load(path), {"x": np.ones((1, 4), np.float32)})["y"].any()


def test_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut or changed anywhere: as protobuf says without it, and no other error."""
    data, path = dense(weight()), tmp_path / "m.onnx"
    rng = np.random.default_rng(0)
    for i in range(150):
        damaged = bytearray(data)
        at = int(rng.integers(len(data)))
        if i % 2:
            damaged[at] ^= 1 << int(rng.integers(8))
        else:
            del damaged[at:]
        path.write_bytes(damaged)
        apart, whole = (each.split("\n")[0] for each in both(path, monkeypatch))
        assert apart == whole, i


_MEASURE = """
import resource, sys
import qdqbridge as qb
def most(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def steps(path):
    graph = qb.load(path)
    _ = graph.digest
    qb.save(graph, sys.argv[3], overwrite=True)
    print(most() - before)
    module = qb.to_relax(graph)
    print(most() - before)
before = 0
steps(sys.argv[1])  # imports
before = most()
steps(sys.argv[2])
"""


def written(path: Path, stored: str, layers: int = 12, width: int = 2048) -> int:
    """Writes a network of quantized products, whose weights Relax and the text want transposed."""
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(np.array(0.05, np.float32), "s")]
    tensors += [numpy_helper.from_array(np.array(128, np.uint8), "z")]
    nodes, x = list[Any](), "x"
    zero = np.full(width, 128 if stored == "uint8" else 0, stored)
    for i in range(layers):
        codes = rng.integers(0, 255, (width, width)).astype(stored)
        tensors += [numpy_helper.from_array(codes, f"w{i}")]
        tensors += [numpy_helper.from_array(np.full(width, 0.01, np.float32), f"s{i}")]
        tensors += [numpy_helper.from_array(zero, f"z{i}")]
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", f"s{i}", f"z{i}"], [f"dw{i}"], axis=1),
            helper.make_node("MatMul", [f"d{i}", f"dw{i}"], [f"y{i}"]),
        ]
        x = f"y{i}"
    info = [helper.make_tensor_value_info(name, 1, ["n", width]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path.stat().st_size


@pytest.mark.relax
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured on Linux")
@pytest.mark.parametrize("stored", ["int8", "uint8"])
def test_weights_are_in_memory_once(stored: str, tmp_path: Path) -> None:
    """From load to save, and to TVM; a twelfth is the largest tensor."""
    size = written(tmp_path / "m.onnx", stored)
    arguments = [MODELS / NAMES[0], tmp_path / "m.onnx", tmp_path / "o.onnx"]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *map(str, arguments)],
        check=True, timeout=240, capture_output=True, text=True,
    )  # fmt: skip
    saved, emitted = map(int, done.stdout.split()[-2:])
    assert saved < 1.3 * size and emitted < 1.4 * size
