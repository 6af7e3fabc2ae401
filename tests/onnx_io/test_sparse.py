"""Sparse initializers and constants: what onnxruntime makes of them, and what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from tests.onnx_models import Builder, load


def sparse(indices: Any, shape: tuple[int, ...] = (6, 2)) -> onnx.SparseTensorProto:
    values = np.array([0.5, -1.25, 2.0], np.float32)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"),
        numpy_helper.from_array(np.asarray(indices, np.int64), "places"),
        list(shape),
    )


def product(tensor: onnx.SparseTensorProto, *, constant: bool = False) -> onnx.ModelProto:
    b = Builder(opset=21)
    x = b.qdq(b.input("x", [3, 6], TensorProto.FLOAT), 0.02, 128, np.uint8)
    weight = b.op("Constant", sparse_value=tensor) if constant else "w"
    b.output(b.op("MatMul", x, weight), [3, 2])
    model = b.model()
    if not constant:
        model.graph.sparse_initializer.append(tensor)
    return model


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", [[1, 4, 11], [[0, 1], [2, 0], [5, 1]]])
def test_it_is_the_dense_tensor(indices: Any, constant: bool, tmp_path: Path) -> None:
    model = product(sparse(indices), constant=constant)
    graph = load(model)
    feeds = {"x": np.random.default_rng(3).normal(size=(3, 6)).astype(np.float32)}
    path = tmp_path / "dense.onnx"
    qb.save(graph, path)
    (name,) = graph.output_names
    saved: Any = ort.InferenceSession(path.read_bytes()).run(None, feeds)[0]
    np.testing.assert_array_equal(qb.evaluate(graph, feeds)[name], saved)
    if not constant:  # onnxruntime 1.32 does not read a Constant's sparse value of two indices
        wanted: Any = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
        np.testing.assert_array_equal(saved, wanted)


@pytest.mark.parametrize("taken", [False, True])
def test_it_may_lie_in_a_body(taken: bool, tmp_path: Path) -> None:
    """onnxruntime 1.32 reads such an initializer, but no Constant of this kind."""
    b = Builder(opset=21)
    x = b.input("x", [3, 6], TensorProto.FLOAT)
    result = helper.make_tensor_value_info("made", TensorProto.FLOAT, [3, 2])
    product_node = helper.make_node("MatMul", [x, "w"], ["made"])
    then = helper.make_graph([product_node], "then", [], [result])
    then.sparse_initializer.append(sparse([1, 4, 11]))
    weight = helper.make_node("Constant", [], ["w"], sparse_value=sparse([0, 5, 7]))
    other = helper.make_graph([weight, product_node], "other", [], [result])
    b.output(
        b.op("If", b.input("c", [], TensorProto.BOOL), then_branch=then, else_branch=other), [3, 2]
    )
    graph = load(b.model())
    rows = np.random.default_rng(3).normal(size=(3, 6)).astype(np.float32)
    dense = np.zeros(12, np.float32)
    dense[[1, 4, 11] if taken else [0, 5, 7]] = [0.5, -1.25, 2.0]
    feeds = {"x": rows, "c": np.array(taken)}
    qb.save(graph, tmp_path / "saved.onnx")
    saved: Any = ort.InferenceSession(tmp_path / "saved.onnx").run(None, feeds)[0]
    (name,) = graph.output_names
    for got in (saved, qb.evaluate(graph, feeds)[name]):  # one rounding of a float32 sum apart
        np.testing.assert_allclose(got, rows @ dense.reshape(6, 2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("indices", "shape", "why"),
    [
        ([1, 4, 12], (6, 2), "outside"),
        ([-1, 4, 5], (6, 2), "outside"),
        ([[0, 1], [2, 2], [5, 1]], (6, 2), "outside"),
        ([1, 4, 4], (6, 2), "twice"),
        ([1, 4], (6, 2), "its indices are"),
        ([1, 4, 5], (-6, 2), "it has"),
    ],
)
def test_what_makes_no_sense_is_refused(indices: Any, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(InvalidModelError, match=why):
        load(product(sparse(indices, shape)))


def test_memory_is_bounded_by_what_the_file_holds() -> None:
    with pytest.raises(UnsupportedModelError, match="too sparse"):
        load(product(sparse([1, 4, 5], (1 << 40, 2))))
