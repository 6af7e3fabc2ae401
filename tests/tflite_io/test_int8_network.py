"""An int8 TFLite file made by TensorFlow's converter is read as its QDQ ONNX twin is.

The twin is written by hand as tf2onnx would: a Transpose behind the input, images channels-first
inside, every tensor's Q and DQ with the numbers that the file has.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite", reason="the package that knows the schema of TFLite")
pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import ModelFileError, UnsupportedModelError
from tests.onnx_models import Builder, canonical, ops
from tests.tvm.relax.read_cases import read_back, same

tflite: Any = import_module("tflite")

FOLDER = Path(__file__).parent / "data"
MODEL = FOLDER / "int8_network.tflite"
INT8 = 3  # onnx.TensorProto.INT8
Array = np.ndarray[Any, Any]


class File:
    """The tensors and operators of the file, by the schema's own package."""

    def __init__(self, path: Path) -> None:
        self.model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
        self.graph = self.model.Subgraphs(0)
        self.operators = [self.graph.Operators(i) for i in range(self.graph.OperatorsLength())]

    def operands(self, index: int) -> list[int]:
        return [int(i) for i in self.operators[index].InputsAsNumpy()]

    def result(self, index: int) -> int:
        return int(self.operators[index].OutputsAsNumpy()[0])

    def params(self, tensor: int) -> tuple[Array, Array]:
        quantization = self.graph.Tensors(tensor).Quantization()
        scale, zero_point = quantization.ScaleAsNumpy(), quantization.ZeroPointAsNumpy()
        if len(scale) == 1:
            return scale.reshape(()), zero_point.reshape(()).astype(np.int8)
        return scale, zero_point.astype(np.int8)

    def array(self, tensor: int, dtype: Any) -> Array:
        found = self.graph.Tensors(tensor)
        data = self.model.Buffers(found.Buffer()).DataAsNumpy()
        return data.view(dtype).reshape(found.ShapeAsNumpy())


class Twin:
    """The ONNX model, operator by operator."""

    def __init__(self, file: File) -> None:
        self.file, self.b = file, Builder(17)
        scale, zero_point = file.params(file.operands(0)[0])
        stored = self.b.input("image", [1, 8, 8, 1], INT8)
        image = self.b.dq(stored, scale, zero_point, np.int8)
        self.values = {file.operands(0)[0]: self.b.op("Transpose", image, perm=[0, 3, 1, 2])}
        self.stored = ""

    def made(self, index: int, name: str) -> str:
        """Puts Q and DQ behind the result of operator ``index``."""
        tensor = self.file.result(index)
        scale, zero_point = self.file.params(tensor)
        self.stored = self.b.q(name, scale, zero_point, np.int8)
        self.values[tensor] = self.b.dq(self.stored, scale, zero_point, np.int8)
        return self.values[tensor]

    def given(self, index: int) -> list[str]:
        return [self.values[i] for i in self.file.operands(index) if i in self.values]

    def conv(self, index: int, order: tuple[int, ...], act: str = "", **attributes: Any) -> None:
        x, w, bias = self.file.operands(index)
        scale, _ = self.file.params(w)
        kernel = self.file.array(w, np.int8).transpose(order)
        operands = [
            self.values[x],
            self.b.weight(kernel, scale, axis=0),
            self.b.weight(self.file.array(bias, np.int32), self.file.params(bias)[0], axis=0),
        ]
        y = self.b.op("Conv", *operands, **attributes)
        if act:
            y = self.b.op("Clip", y, *(self.b.init(np.float32(end)) for end in (0, 6)))
        self.made(index, y)

    def dense(self, index: int) -> None:
        x, w = self.file.operands(index)[:2]
        weight = self.b.weight(self.file.array(w, np.int8), self.file.params(w)[0], axis=0)
        self.made(index, self.b.op("Gemm", self.values[x], weight, transB=1))


ORDER, DEPTHWISE = (0, 3, 1, 2), (3, 0, 1, 2)


def twin() -> Any:
    t = Twin(File(MODEL))
    b = t.b
    t.conv(0, ORDER, "relu6", pads=[1, 1, 1, 1])
    t.conv(1, DEPTHWISE, "relu6", pads=[1, 1, 1, 1], group=8)
    t.conv(2, ORDER)
    t.made(3, b.op("Relu", b.op("Add", *t.given(3))))
    t.made(4, b.op("AveragePool", *t.given(4), kernel_shape=[2, 2], strides=[2, 2]))
    t.made(5, b.op("MaxPool", *t.given(5), kernel_shape=[2, 2], strides=[2, 2]))
    t.made(6, b.op("Concat", *t.given(6), axis=1))
    t.conv(7, ORDER, pads=[0, 0, 1, 1], strides=[2, 2])
    t.made(8, b.op("Sigmoid", *t.given(8)))
    scales = b.init(np.array([1, 1, 2, 2], np.float32))
    t.made(9, b.op("Resize", *t.given(9), "", scales, mode="nearest"))
    t.made(10, b.op("ReduceMean", *t.given(10), axes=[2, 3], keepdims=0))
    t.dense(11)
    t.made(12, b.op("Softmax", *t.given(12), axis=1))
    b.output(t.stored, [1, 10], INT8)
    return b.model()


def test_the_digest_is_that_of_the_onnx_twin() -> None:
    graph = qb.load(MODEL)
    same(graph, canonical(twin()))
    assert ops(graph).count("Transpose") == 1  # the layout shows at the input only
    assert not [note for note in qb.explain(graph) if note.rule == "float-region"]


def test_outputs_are_those_of_tflite() -> None:
    """TFLite rounds products in fixed point: a code may be the next one."""
    graph = qb.load(MODEL)
    data = np.load(FOLDER / "int8_network.npz")
    (name,) = (v.name for v in graph.inputs)
    found = [qb.evaluate(graph, {name: x})[graph.output_names[0]] for x in data["x"]]
    apart = np.abs(np.stack(found).astype(int) - data["y"])
    assert apart.max() <= 1
    assert (apart != 0).mean() < 0.05


def test_it_goes_on_like_any_graph(tmp_path: Path) -> None:
    graph = qb.load(MODEL)
    assert [v.type.shape for v in graph.inputs] == [(1, 8, 8, 1)]
    same(read_back(graph), graph)
    qb.save(graph, tmp_path / "again.onnx")
    same(qb.load(tmp_path / "again.onnx"), graph)


@pytest.mark.parametrize("cut", [0, 4, 8, 500, 4000, 8000])
def test_a_damaged_file_is_refused(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "cut.tflite"
    file.write_bytes(MODEL.read_bytes()[:cut])
    with pytest.raises((ModelFileError, UnsupportedModelError)) as error:
        qb.load(file)
    assert str(file) in error.value.where


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read"):
        qb.load(tmp_path / "missing.tflite")
    (tmp_path / "other.tflite").write_bytes(Path(__file__).read_bytes())
    with pytest.raises(ModelFileError, match="no TFLite file"):
        qb.load(tmp_path / "other.tflite")


def test_raw_graphs_keep_the_layout() -> None:
    raw = qb.load(MODEL, canonical=False)
    assert ops(raw).count("Transpose") > 5
