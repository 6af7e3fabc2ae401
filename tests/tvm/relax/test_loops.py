"""Loop and Scan on TVM, of a known number of steps or not, beside interpreter and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tvm")

import tvm

import qdqbridge as qb
from qdqbridge.errors import UnsupportedModelError, UnsupportedTargetError
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


@pytest.mark.parametrize("length", [5, "length"])
@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan_with_a_captured_weight(backwards: int, axis: int, length: int | str) -> None:
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
    declared = [length if extent == 5 else extent for extent in shape]
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(4, 4)).astype(np.float32) / 2, "weight")
    inputs = [info("start", [4]), info("x", declared)]
    outputs = [info("last", [4]), info("all", declared)]
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


@pytest.mark.parametrize("made", [loop(4), loop(9, ends=True), loop(1 << 40, ends=True), loop(900)])
def test_loop_that_its_file_or_its_body_ends(made: onnx.ModelProto) -> None:
    checked(made, {"x": np.array([1, -2], np.float32)})


@pytest.mark.parametrize("steps", [0, 1, 2, 13, -3])
def test_loop_that_the_run_ends(steps: int) -> None:
    checked(loop(None), {"x": np.array([1, -2], np.float32), "count": np.array(steps)})


def test_a_hundred_thousand_steps_fill_no_stack() -> None:
    graph = canonical(loop(None))
    found = qb.compile(graph, threads=1).run(
        {"x": np.array([1, -2], np.float32), "count": np.array(100_000)}
    )
    assert found["all"].shape == (100_000, 2)
    np.testing.assert_array_equal(found["all"][-1] * 2, found["last"])


def branch(op_type: str) -> onnx.GraphProto:
    node = helper.make_node(op_type, ["of_branch"], ["chosen"])
    return helper.make_graph([node], op_type, [], [info("chosen", None)])


def nested_loop() -> onnx.ModelProto:
    """A Loop whose state grows by a row at each step, with quantized products, an If, a Loop."""
    inner = helper.make_graph(
        [
            helper.make_node("Mul", ["y", "half"], ["less_y"]),
            helper.make_node("ReduceMax", ["less_y"], ["top"], keepdims=0),
            helper.make_node("Greater", ["top", "half"], ["on_inside"]),
        ],
        "inner", [info("j", [], I64), info("going_inside", [], BOOL), info("y", None)],
        [info("on_inside", [], BOOL), info("less_y", None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["state", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["weight", "weight_scale"], ["w"]),
        helper.make_node("MatMul", ["d", "w"], ["product"]),
        helper.make_node("QuantizeLinear", ["product", "scale", "zero"], ["q_product"]),
        helper.make_node("DequantizeLinear", ["q_product", "scale", "zero"], ["of_branch"]),
        helper.make_node("ReduceMean", ["product"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "nothing"], ["positive"]),
        helper.make_node("If", ["positive"], ["turned"],
                         then_branch=branch("Neg"), else_branch=branch("Abs")),
        helper.make_node("Loop", ["", "going", "turned"], ["small"], body=inner),
        helper.make_node("Concat", ["small", "row"], ["next"], axis=0),
        helper.make_node("ReduceMax", ["next"], ["given"], axes=[0], keepdims=0),
        helper.make_node("Identity", ["going"], ["on"]),
    ]  # fmt: skip
    rng = np.random.default_rng(1)
    held = {
        "scale": np.float32(0.02), "zero": np.uint8(120), "nothing": np.float32(0.003),
        "half": np.float32(0.5), "weight_scale": np.float32(0.01),
        "weight": rng.integers(-127, 128, (4, 4)).astype(np.int8),
    }  # fmt: skip
    body = helper.make_graph(
        nodes, "body", [info("i", [], I64), info("going", [], BOOL), info("state", None)],
        [info("on", [], BOOL), info("next", None), info("given", None)],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in held.items()],
    )  # fmt: skip
    node = helper.make_node("Loop", ["count", "going_first", "x"], ["last", "all"], body=body)
    inputs = [info("x", ["rows", 4]), info("row", [1, 4]), info("count", [1], I64)]
    inputs.append(info("going_first", [], BOOL))
    return model(node, inputs, [info("last", [None, 4]), info("all", [None, 4])], [])


@pytest.mark.parametrize("steps", [3, 8])
def test_quantized_bodies_in_one_another_that_carry_a_growing_state(steps: int) -> None:
    rng = np.random.default_rng(steps)
    feeds = {name: rng.normal(size=(2 if name == "x" else 1, 4)) for name in ("x", "row")}
    checked(
        nested_loop(),
        {name: array.astype(np.float32) for name, array in feeds.items()}
        | {"count": np.array([steps]), "going_first": np.array(True)},
    )


def test_results_that_nobody_reads_are_left_out() -> None:
    made = loop(None)
    made.graph.node[0].output[0] = ""
    del made.graph.output[0]
    graph = canonical(made)
    feeds = {"x": np.array([1, -2], np.float32), "count": np.array(3)}
    wanted = qb.evaluate(graph, feeds)["all"]
    np.testing.assert_array_equal(wanted[:, 0], np.array([0.5, 1, 2], np.float32))
    np.testing.assert_array_equal(qb.compile(graph, threads=1).run(feeds)["all"], wanted)


def test_a_state_of_another_rank_is_refused_by_name() -> None:
    made = loop(None)
    body = made.graph.node[0].attribute[0].g
    body.node.add(op_type="Unsqueeze", input=["next", "axis"], output=["deeper"])
    body.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    body.output[1].CopyFrom(info("deeper", None))
    with pytest.raises(UnsupportedTargetError, match="Loop cannot be emitted") as caught:
        qb.compile(canonical(made))
    assert "rank 1 before a step, 2 behind it" in caught.value.why


def test_a_loop_whose_span_is_lost_is_refused_by_name() -> None:
    module, params = qb.to_relax(canonical(loop(None)))
    text = tvm.script.from_source(module.script(show_meta=True))
    with pytest.raises(UnsupportedModelError, match="no counterpart") as caught:
        qb.from_relax(text, params)
    assert "calls itself" in caught.value.why


_CUTS = """
<ir_version: 8, opset_import: ["": 17]>
agraph (int64 count, bool going, float[1] y, float[6] x) => (float[1] last, float[n, m] rows) {
    last, rows = Loop (count, going, y) <body = inner
        (int64 number, bool before, float[1] have) => (bool behind, float[k] next, float[k] row) {
            behind = Identity (before)
            zero = Constant <value = int64[1] {0}> ()
            one = Constant <value = int64[1] {1}> ()
            shape = Constant <value = int64[1] {1}> ()
            begin = Reshape (number, shape)
            end = Add (begin, one)
            part = Slice (x, begin, end, zero)
            next = Add (have, part)
            row = Identity (next)
        }>
}
"""


def test_rows_whose_extents_only_a_step_knows() -> None:
    """A step that cuts by its number, and broadcasts what it carries to what it cuts."""
    made = onnx.parser.parse_model(_CUTS)
    x = np.arange(6, dtype=np.float32)
    given = {"going": np.array(True), "y": np.ones(1, np.float32), "x": x}
    for count in (5, 1):
        checked(made, {"count": np.array(count), **given})
