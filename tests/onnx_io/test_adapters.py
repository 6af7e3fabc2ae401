"""Adapters of onnxruntime: as inputs, as constants, and models without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.cli.failures import MODEL, run
from qdqbridge.core.graph.atomic_write import write_arrays
from qdqbridge.errors import InputDataError, ModelFileError
from tests.combinations import each_once

TERMS, ROWS, RANK = 32, 24, 4
A, B = "layer.lora_A.weight", "layer.lora_B.weight"
CLOSE = 1e-5
"""Of results up to 60; sums of float32 in another order are 6e-6 off."""
RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (2, 3, TERMS)).astype(np.float32)
PARAMETERS = {
    A: RNG.normal(0, 1, (TERMS, RANK)).astype(np.float32),
    B: RNG.normal(0, 1, (RANK, ROWS)).astype(np.float32),
}


def adapted_model(path: Path, *, optional: bool) -> None:
    """Writes a packed product with an adapter beside it, which may be left out."""
    codes = RNG.integers(0, 256, (ROWS, 1, 16)).astype(np.uint8)
    scales = RNG.uniform(0.01, 0.03, ROWS).astype(np.float32)
    packed: dict[str, Any] = {"K": TERMS, "N": ROWS, "bits": 4, "block_size": 32}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "w", "s"], ["b"], domain="com.microsoft", **packed),
        helper.make_node("MatMul", ["x", A], ["down"]),
        helper.make_node("MatMul", ["down", B], ["up"]),
        helper.make_node("Add", ["b", "up"], ["y"]),
    ]
    shapes = {"x": ["b", "s", TERMS], A: [TERMS, "rank"], B: ["rank", ROWS]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", ROWS])
    constants = {"w": codes, "s": scales}
    if optional:
        constants |= {A: np.zeros((TERMS, 0), np.float32), B: np.zeros((0, ROWS), np.float32)}
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], held)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)


def adapter_file(path: Path, parameters: dict[str, NDArray[Any]]) -> Path:
    made = ort.AdapterFormat()
    made.set_adapter_version(1)
    made.set_model_version(1)
    made.set_parameters(
        {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in parameters.items()}
    )
    name: Any = str(path)  # what it takes, whatever its annotation says
    made.export_adapter(name)
    return path


def everywhere(graph: qb.Graph, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Returns the result of the interpreter and of both kinds of kernels."""
    runs = [qb.compile(graph, kernels=kernels).run(feeds)["y"] for kernels in ("fast", "reference")]
    return [qb.evaluate(graph, feeds)["y"], *runs]


def ran(path: Path, feeds: dict[str, NDArray[Any]], adapter: Path | None = None) -> NDArray[Any]:
    options = ort.RunOptions()
    held = ort.LoraAdapter()
    if adapter is not None:
        held.Load(str(adapter))
        options.add_active_adapter(held)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds, options)[0])


def test_an_adapter_is_fed(tmp_path: Path) -> None:
    path, adapter = tmp_path / "m.onnx", adapter_file(tmp_path / "a.onnx_adapter", PARAMETERS)
    adapted_model(path, optional=False)
    held = qb.load_adapter(adapter)
    assert list(held) == [A, B]
    for name, array in held.items():
        np.testing.assert_array_equal(array, PARAMETERS[name])
    feeds, wanted = {"x": X, **held}, ran(path, {"x": X, **PARAMETERS})
    graph = qb.load(path)
    for found in everywhere(graph, feeds):
        assert np.abs(found - wanted).max() < CLOSE
    none = {"x": X, A: held[A][:, :0], B: held[B][:0]}
    wanted = ran(path, none)
    for found in everywhere(graph, none):
        assert np.abs(found - wanted).max() < CLOSE


def test_an_adapter_becomes_constants(tmp_path: Path) -> None:
    path, adapter = tmp_path / "m.onnx", adapter_file(tmp_path / "a.onnx_adapter", PARAMETERS)
    adapted_model(path, optional=True)
    base, graph, feeds = qb.load(path), qb.load(path, adapter=adapter), {"x": X}
    wanted, plain = ran(path, feeds, adapter), ran(path, feeds)
    assert np.abs(wanted - plain).max() > 1
    for found in everywhere(base, feeds):
        assert np.abs(found - plain).max() < CLOSE
    for found in everywhere(graph, feeds):
        assert np.abs(found - wanted).max() < CLOSE
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved)
    np.testing.assert_array_equal(ran(saved, feeds), wanted)


def test_an_optional_adapter_is_fed(tmp_path: Path) -> None:
    path, adapter = tmp_path / "m.onnx", adapter_file(tmp_path / "a.onnx_adapter", PARAMETERS)
    adapted_model(path, optional=True)
    graph = qb.load(path, optional_inputs=True)
    assert [value.name for value in graph.inputs] == ["x", A, B]
    none = {A: np.zeros((TERMS, 0), np.float32), B: np.zeros((0, ROWS), np.float32)}
    for own, wanted in (
        (qb.load_adapter(adapter), ran(path, {"x": X}, adapter)),
        (none, ran(path, {"x": X})),
    ):
        for found in everywhere(graph, {"x": X, **own}):
            assert np.abs(found - wanted).max() < CLOSE
    both = qb.load(path, optional_inputs=True, adapter=adapter)
    assert both.digest == qb.load(path, adapter=adapter).digest
    write_arrays(tmp_path / "d.npz", {"x": X, **PARAMETERS})
    arguments = ["--data", str(tmp_path / "d.npz"), "--optional-inputs"]
    assert run(["compare", str(path), *arguments]) == 0


@pytest.mark.parametrize(
    ("engine", "optional"), each_once(["tvm", "interpreter", "onnxruntime"], [False, True])
)
def test_an_adapter_on_the_command_line(engine: str, optional: bool, tmp_path: Path) -> None:
    path, adapter = tmp_path / "m.onnx", adapter_file(tmp_path / "a.onnx_adapter", PARAMETERS)
    adapted_model(path, optional=optional)
    np.savez(tmp_path / "d.npz", x=X)
    with_adapter = ["--adapter", str(adapter), "--data", str(tmp_path / "d.npz")]
    made = tmp_path / "y.npz"
    assert run(["run", str(path), *with_adapter, "--engine", engine, "-o", str(made)]) == 0
    assert np.abs(np.load(made)["y"] - ran(path, {"x": X, **PARAMETERS})).max() < CLOSE
    assert run(["compare", str(path), *with_adapter]) == 0


def test_an_adapter_is_looked_at_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, adapter = tmp_path / "m.onnx", adapter_file(tmp_path / "a.onnx_adapter", PARAMETERS)
    adapted_model(path, optional=False)
    wanted = qb.load(path, adapter=adapter).digest
    assert run(["inspect", str(path), "--adapter", str(adapter), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == wanted
    saved = tmp_path / "s.onnx"
    assert run(["export", str(path), "--adapter", str(adapter), "-o", str(saved)]) == 0
    assert qb.load(saved).digest == wanted
    np.testing.assert_array_equal(ran(saved, {"x": X}), ran(path, {"x": X, **PARAMETERS}))


def test_what_has_no_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = adapter_file(tmp_path / "a.onnx_adapter", PARAMETERS)
    for name, kind in (("m.tflite", "TFLite files"), ("m.json", "Relax modules")):
        assert run(["inspect", str(tmp_path / name), "--adapter", str(adapter)]) == MODEL
        assert f"{kind} have no adapters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"other": PARAMETERS[A]}, "no such input"),
        ({A: PARAMETERS[A][1:]}, r"\[31, 4\], the input has the shape"),
        ({A: PARAMETERS[A].astype(np.float64)}, "float64"),
    ],
)  # fmt: skip
def test_an_adapter_of_another_model(
    parameters: dict[str, NDArray[Any]], why: str, tmp_path: Path
) -> None:
    path, adapter = tmp_path / "m.onnx", adapter_file(tmp_path / "a.onnx_adapter", parameters)
    adapted_model(path, optional=True)
    with pytest.raises(InputDataError, match=why):
        qb.load(path, adapter=adapter)


@pytest.mark.parametrize("data", [b"", b"no adapter at all, but long enough to look like one"])
def test_a_file_that_is_no_adapter(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx_adapter"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="adapter cannot be read"):
        qb.load_adapter(path)
    with pytest.raises(ModelFileError, match="adapter cannot be read"):
        qb.load_adapter(tmp_path / "nowhere.onnx_adapter")
