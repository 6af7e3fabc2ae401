"""Results without elements have the shape that the interpreter gives them, with all kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

pytest.importorskip("tvm")

import qdqbridge as qb

_POOLS = ("MaxPool<kernel_shape = [{0}, {0}]>(x)", "AveragePool<kernel_shape = [{0}, {0}]>(x)")


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize(
    "body",
    [form.format(size) for form in _POOLS for size in (3, 5)]
    + ["Conv(x, w)", "Reshape<allowzero = 1>(e, s)"],
)
def test_results_without_elements(
    body: str, kernels: Literal["fast", "reference"], tmp_path: Path
) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,2,2] x, float[2,0] e) => (float[n,c,h,w] y, float[1,1,2,2] z)
    <float[1,1,3,3] w = {{1,1,1,1,1,1,1,1,1}}, int64[4] s = {{1, 3, 0, 0}}> {{
        y = {body}
        z = Neg(x)
    }}"""
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    graph = qb.load(tmp_path / "m.onnx")
    data = {"x": np.ones((1, 1, 2, 2), np.float32), "e": np.ones((2, 0), np.float32)}
    wanted = qb.evaluate(graph, data)["y"]
    executable = qb.compile(graph, kernels=kernels)
    if kernels == "reference" and "5" in body:  # whose extent would be negative by ONNX's formula
        with pytest.raises(qb.QdqBridgeError, match="windows that fit"):
            executable.run(data)
        return
    found = executable.run(data)["y"]
    assert wanted.size == 0 and found.shape == wanted.shape and found.dtype == wanted.dtype


@pytest.mark.parametrize("kernels", ["fast", "reference"])
@pytest.mark.parametrize("body", ["Identity(o)", "Concat<axis = 0>(o, n)", "Gemm(e, t, b)"])
def test_constants_without_elements(
    body: str, kernels: Literal["fast", "reference"], tmp_path: Path
) -> None:
    """TVM 0.27 writes an empty constant that it cannot read again."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,0] e) => (float[n,m] y)
    <float[2,3] c = {{1,2,3,4,5,6}}, int64[2] r = {{2, 0}}, float[1,0] n = {{}},
     uint8[0,5] w = {{}}, float s = {{0.25}}, uint8 z = {{3}}, float[5] b = {{1,2,3,4,5}}> {{
        o = Tile(c, r)
        t = DequantizeLinear(w, s, z)
        y = {body}
    }}"""
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    graph, data = qb.load(tmp_path / "m.onnx"), {"e": np.ones((2, 0), np.float32)}
    wanted = qb.evaluate(graph, data)["y"]
    executable = qb.compile(graph, kernels=kernels)
    executable.save(tmp_path / "m.so")
    for made in (executable, qb.load_executable(tmp_path / "m.so")):
        found = made.run(data)["y"]
        assert found.shape == wanted.shape and np.array_equal(found, wanted)
