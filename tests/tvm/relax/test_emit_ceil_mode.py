"""ONNX drops a last window of ceil_mode that would start behind the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.app.pipeline import session

WINDOWS = (
    ([3, 2], [2, 3], [1, 0, 0, 1]),
    ([4, 4], [3, 3], [2, 1, 3, 3]),
    ([2, 2], [2, 2], [0, 0, 0, 0]),
    ([3, 3], [2, 2], [1, 1, 1, 1]),
)


def pools(path: Path, op: str) -> Path:
    extra: dict[str, Any] = {"count_include_pad": 1} if op == "AveragePool" else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    ]
    outputs: list[str] = []
    for i, (kernel, strides, pads) in enumerate(WINDOWS):
        window = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": 1}
        for kind, source in (("f", "x"), ("q", "d")):
            nodes.append(helper.make_node(op, [source], [f"{kind}{i}"], **window, **extra))
        nodes.append(helper.make_node("QuantizeLinear", [f"q{i}", "s", "z"], [f"qq{i}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"qq{i}", "s", "z"], [f"y{i}"]))
        outputs += [f"f{i}", f"y{i}"]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 7, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            numpy_helper.from_array(np.array(0.05, np.float32), "s"),
            numpy_helper.from_array(np.array(128, np.uint8), "z"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(made, path)
    return path


@pytest.mark.relax
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_windows_of_ceil_mode_are_onnx_s(tmp_path, op):
    path = pools(tmp_path / "m.onnx", op)
    graph = qb.load(path)
    x = {"x": np.random.default_rng(0).normal(size=(1, 1, 7, 8)).astype(np.float32)}
    ours, meant = qb.compile(graph).run(x), qb.evaluate(graph, x)
    theirs = session(path).run(x, graph.output_names)
    module, params = qb.to_relax(graph)
    shapes = [value.type.shape for value in graph.outputs]
    fields = module["main"].ret_ty.fields
    assert [tuple(map(int, field.shape.values)) for field in fields] == shapes
    assert qb.from_relax(module, params).digest == graph.digest
    for name, shape in zip(graph.output_names, shapes, strict=True):
        assert shape == meant[name].shape
        assert ours[name].shape == meant[name].shape == theirs[name].shape
        if name.startswith("y"):
            np.testing.assert_array_equal(ours[name], meant[name])
        # Averages of floats: sums in another order.
        np.testing.assert_allclose(ours[name], meant[name], rtol=2e-6, atol=2e-6)
