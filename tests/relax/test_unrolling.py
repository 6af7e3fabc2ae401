"""Loop and Scan of a known number of steps on TVM, beside the interpreter and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Array, canonical

pytestmark = pytest.mark.relax
F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: list[Any] | None, kind: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def checked(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Asserts that TVM, the interpreter and onnxruntime agree, and the way through Relax."""
    graph = canonical(model)
    own, found = qb.evaluate(graph, feeds), qb.compile(graph, threads=1).run(feeds)
    for name, wanted in zip(graph.output_names, ort_run(model, feeds), strict=True):
        # Sums of four numbers of about 1, added in another order.
        np.testing.assert_allclose(own[name], wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6, atol=1e-6)
    assert qb.from_relax(*qb.to_relax(graph)).digest == graph.digest


def model(node: onnx.NodeProto, inputs: list[Any], outputs: list[Any], held: list[Any]) -> Any:
    graph = helper.make_graph([node], "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan_with_a_captured_weight(backwards: int, axis: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "weight"], ["product"]),
            helper.make_node("Add", ["product", "element"], ["next"]),
            helper.make_node("Tanh", ["next"], ["given"]),
        ],
        "body", [info("state", [4]), info("element", [4])], [info("next", [4]), info("given", [4])],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_input_directions=[backwards],
        scan_output_axes=[axis], scan_output_directions=[1 - backwards],
    )  # fmt: skip
    shape = [5, 4] if axis == 0 else [4, 5]
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32) / 2, "weight")
    inputs = [info("start", [4]), info("x", shape)]
    outputs = [info("last", [4]), info("all", shape)]
    feeds = {"start": rng.normal(size=4), "x": rng.normal(size=shape)}
    checked(
        model(node, inputs, outputs, [weight]),
        {name: array.astype(np.float32) for name, array in feeds.items()},
    )


def loop(steps: int | None, *, ends: bool = False) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["step"], ["number"], to=F),
        helper.make_node("Add", ["state", "number"], ["next"]),
        helper.make_node("Mul", ["next", "half"], ["given"]),
    ]
    if ends:
        nodes.append(helper.make_node("Less", ["step", "three"], ["on"]))
    else:
        nodes.append(helper.make_node("Identity", ["going"], ["on"]))
    body = helper.make_graph(
        nodes, "body", [info("step", [], I64), info("going", [], BOOL), info("state", [2])],
        [info("on", [], BOOL), info("next", [2]), info("given", [2])],
        [numpy_helper.from_array(np.array(0.5, np.float32), "half"),
         numpy_helper.from_array(np.array(3), "three")],
    )  # fmt: skip
    held = [] if steps is None else [numpy_helper.from_array(np.array(steps), "count")]
    inputs = [info("x", [2])] + ([info("count", [], I64)] if steps is None else [])
    node = helper.make_node("Loop", ["count", "", "x"], ["last", "all"], body=body)
    return model(node, inputs, [info("last", [2]), info("all", [None, 2])], held)


def test_loop_of_a_constant_number_of_steps() -> None:
    checked(loop(4), {"x": np.array([1, -2], np.float32)})


@pytest.mark.parametrize("unknown", [loop(None), loop(9, ends=True), loop(1 << 40)])
def test_other_loops_are_refused_by_name(unknown: onnx.ModelProto) -> None:
    with pytest.raises(UnsupportedTargetError, match="Loop cannot be emitted") as caught:
        qb.compile(canonical(unknown))
    assert "steps" in caught.value.why
