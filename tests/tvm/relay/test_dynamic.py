"""Quantization that is computed while the model runs: emitted, built, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tvm import relay

import qdqbridge as qb
from qdqbridge.app.pipeline import load
from qdqbridge.core.graph.diff import diff
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError
from qdqbridge.tvm.relay import emit, from_relay
from qdqbridge.tvm.relay.build import build
from qdqbridge.tvm.relay.dialect.dynamic import QUANTIZE, SCALE, ZERO_POINT, dynamic
from tests.core.ops.test_dynamic_convolution import CASES, model, samples
from tests.onnx_models import Builder, canonical, ints
from tests.tvm.relay.emitted import QUICK, operators, results

UINT8, INT32 = TensorProto.UINT8, TensorProto.INT32


def network(x_shape: list[int], w_shape: list[int], points: int) -> Graph:
    """Returns two products of the same tensor, each quantized by a node of its own.

    Args:
        x_shape: Of the input.
        w_shape: Of the weights.
        points: How many zero points the products state.
    """
    n = Builder(18)
    x = n.input("x", x_shape)
    for row in range(2):
        codes = n.op("DynamicQuantizeLinear", x, outputs=3)
        zeros = [f"{codes}:2", n.init(np.int8(3 * row))][:points]
        n.output(n.op("MatMulInteger", codes, n.init(ints(w_shape, row)), *zeros), None, INT32)
        n.output(codes, x_shape, UINT8)
        n.output(f"{codes}:1", [])
        n.output(f"{codes}:2", [], UINT8)
    return canonical(n.model())


SHAPES = {
    "matrices": ([4, 6], [6, 5], 2),
    "one zero point": ([4, 6], [6, 5], 1),
    "no zero points": ([4, 6], [6, 5], 0),
    "stack": ([2, 3, 4, 6], [6, 5], 2),
    "stacks": ([2, 1, 4, 6], [3, 6, 5], 2),
    "vector": ([6], [6, 5], 2),
    "two vectors": ([6], [6], 2),
}
SIGNS = {"both": 0.0, "positive": 9.0, "negative": -9.0}


@pytest.mark.parametrize("case", SHAPES)
def test_same_bits_and_the_same_graph(case: str) -> None:
    graph = network(*SHAPES[case])
    data = {"x": np.random.default_rng(1).normal(0, 1, SHAPES[case][0]).astype(np.float32)}
    for ours, wanted in results(graph, data, "canonical").values():
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(ours, wanted)
    for variant in ("canonical", "tflite"):
        module, _ = emit(graph, variant)
        assert operators(module).count("qnn.matmul_integer") == 2
        assert diff(from_relay(module), graph) == []


def test_the_range_holds_zero() -> None:
    graph = network([4, 6], [6, 5], 2)
    executable = build(emit(graph, "canonical")[0], target=QUICK)
    for shift in SIGNS.values():
        x = np.random.default_rng(2).normal(shift, 1, (4, 6)).astype(np.float32)
        for rows in (x, np.zeros_like(x), np.rint(x) / 2):
            wanted, ours = qb.evaluate(graph, {"x": rows}), executable.run({"x": rows})
            assert list(ours) == list(wanted)
            for name, array in wanted.items():
                np.testing.assert_array_equal(ours[name], array, err_msg=f"{shift} {name}")


def test_modules_of_others_are_onnxs_nodes() -> None:
    x = relay.var("x", shape=(2, 3))
    scale = dynamic(SCALE, [x])
    codes = dynamic(QUANTIZE, [x, scale, dynamic(ZERO_POINT, [x, scale])])
    graph = from_relay(relay.Function([x], codes))
    assert [node.op.name for node in graph.nodes] == ["DynamicQuantizeLinear"]


def test_a_scale_of_other_data_is_refused() -> None:
    x, y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(2, 3))
    point: Any = dynamic(ZERO_POINT, [x, dynamic(SCALE, [y])])
    with pytest.raises(UnsupportedModelError, match="not that of its data"):
        from_relay(relay.Function([x, y], point))


def test_other_nodes_without_a_row_are_named() -> None:
    n = Builder(18)
    n.output(n.op("Det", n.input("x", [2, 3, 3])), [2])
    with pytest.raises(UnsupportedTargetError, match="Det cannot be emitted"):
        emit(canonical(n.model()))


@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_one_call_with_the_same_bits(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(CASES[name]), path)
    graph = load(path)
    for variant in ("canonical", "tflite"):
        module, _ = emit(graph, variant)
        rank = len(CASES[name]["x"]) - 2
        assert operators(module).count(f"qnn.dynamic_conv{rank}d") == 1
        assert diff(from_relay(module), graph) == []
    for x in samples(CASES[name]["x"])[:3]:
        for ours, wanted in results(graph, {"x": x}, "canonical").values():
            np.testing.assert_array_equal(ours, wanted)
