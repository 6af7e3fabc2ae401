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
