"""Branches that mean the same, and quantized subgraphs that are carried."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.core.graph.graph import Graph
from tests.core.canonical.idiom_models import X, node_of, settled
from tests.onnx_models import Builder, canonical, ints, load, ops, run

CODES = ints((4, 3), 1)


def branch(name: str, nodes: list[onnx.NodeProto], *tensors: onnx.TensorProto) -> onnx.GraphProto:
    """Returns a body whose output is the last node's."""
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [out], initializer=list(tensors))


def chosen(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    """``MatMul(QDQ(x), If(ReduceMax(x) > 0))`` with a weight, its scale and zero in the scope."""
    b = Builder()
    x = b.input("x", [2, 4])
    for array, name in ((CODES, "w"), (np.float32(2**-7), "s"), (np.int8(0), "z")):
        b.init(array, name)
    largest = b.op("ReduceMax", x, keepdims=0)
    condition = b.op("Greater", largest, b.init(np.float32(0)))
    w = b.op("If", condition, then_branch=then, else_branch=other)
    b.output(b.qdq(b.op("MatMul", b.qdq(x, X, 128), w), 2**-2, 128))
    return b.model()


def dq(target: str = "d", scale: str = "s", prefix: str = "") -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", [f"{prefix}w", scale, "z"], [target])


def plain() -> Graph:
    b = Builder()
    x = b.qdq(b.input("x", [2, 4]), X, 128)
    b.output(b.qdq(b.op("MatMul", x, b.weight(CODES, 2**-7)), 2**-2, 128))
    return canonical(b.model())


def test_branches_with_one_node_each_are_one() -> None:
    g = settled(chosen(branch("then", [dq()]), branch("else", [dq("other")])))
    assert g.digest == plain().digest


def test_branches_written_in_different_idioms_are_one() -> None:
    """A weight of the scope next to a copy, dequantized by arithmetic: equal once canonical."""
    copy = numpy_helper.from_array(CODES, "copy")
    nodes = [
        helper.make_node("Cast", ["copy"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "s"], ["d"]),
    ]
    g = settled(chosen(branch("then", [dq()]), branch("else", nodes, copy)))
    assert g.digest == plain().digest


def test_the_condition_and_what_only_it_reads_are_gone() -> None:
    g = settled(chosen(branch("then", [dq()]), branch("else", [dq()])))
    assert not {"If", "Greater", "ReduceMax"} & set(ops(g))


def test_an_inner_if_of_equal_branches_is_seen_through() -> None:
    inner = helper.make_node(
        "If", ["flag"], ["d"],
        then_branch=branch("a", [dq("i")]), else_branch=branch("b", [dq("j")]),
    )  # fmt: skip
    flag = numpy_helper.from_array(np.array(True), "flag")
    g = settled(chosen(branch("then", [inner], flag), branch("else", [dq()])))
    assert g.digest == plain().digest


def test_branches_that_differ_in_one_number_stay() -> None:
    other = numpy_helper.from_array(np.array(2**-6, np.float32), "s2")
    model = chosen(branch("then", [dq()]), branch("else", [dq(scale="s2")], other))
    g = settled(model)
    assert "If" in ops(g)
    data = np.ones((2, 4), np.float32)
    assert not np.array_equal(run(g, {"x": data})[0], run(g, {"x": -data})[0])


def test_branches_that_compute_with_run_time_tensors_of_the_scope() -> None:
    def body(name: str, result: str) -> onnx.GraphProto:
        return branch(name, [helper.make_node("Mul", ["q", "q"], [result])])

    def model(*, differ: bool) -> onnx.ModelProto:
        b = Builder()
        x = b.input("x", [2, 4])
        condition = b.op("Cast", b.op("ReduceMax", x, keepdims=0), to=TensorProto.BOOL)
        b.nodes.append(helper.make_node("Relu", [b.qdq(x, X, 128)], ["q"]))
        other = body("b", "j")
        if differ:
            other.node[0].op_type = "Add"
        y = b.op("If", condition, then_branch=body("a", "i"), else_branch=other)
        b.output(b.qdq(y, X, 128))
        return b.model()

    assert "If" not in ops(settled(model(differ=False)))
    assert "If" in ops(settled(model(differ=True)))


@pytest.mark.idiom("G10")
def test_a_body_that_reads_stored_integers_gets_integers() -> None:
    b = Builder()
    x = b.input("x", [2, 4])
    condition = b.op("Cast", b.op("ReduceMax", x, keepdims=0), to=TensorProto.BOOL)
    s, z = b.init(np.float32(X), "s"), b.init(np.uint8(128), "z")
    b.nodes.append(helper.make_node("QuantizeLinear", [x, s, z], ["stored"]))
    read = helper.make_node("DequantizeLinear", ["stored", "s", "z"], ["d"])
    doubled = helper.make_node("Add", ["d2", "d2"], ["e"])
    other = helper.make_node("DequantizeLinear", ["stored", "s", "z"], ["d2"])
    b.output(
        b.op(
            "If",
            condition,
            then_branch=branch("a", [read]),
            else_branch=branch("b", [other, doubled]),
        )
    )
    g = settled(b.model())
    data = np.full((2, 4), 0.5, np.float32)
    np.testing.assert_array_equal(run(g, {"x": data})[0], data)
    np.testing.assert_array_equal(run(g, {"x": 0 * data})[0], 0 * data)


def test_a_loop_with_a_quantized_body_is_carried_unharmed() -> None:
    inner = [
        helper.make_node("QuantizeLinear", ["v", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Add", ["d", "d"], ["w"]),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    body = helper.make_graph(
        inner, "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("v", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    b = Builder()
    x = b.input("x", [2])
    for array, name in ((np.float32(X), "s"), (np.uint8(0), "z")):
        b.init(array, name)
    count, go = b.init(np.int64(3)), b.init(np.array(True))
    b.output(b.op("Loop", count, go, x, body=body))
    g = settled(b.model())
    assert node_of(g, "Loop")
    (got,) = run(g, {"x": np.array([0.13, -1], np.float32)})
    np.testing.assert_array_equal(got, np.array([8 * 4 * X, 0], np.float32))
    assert load(b.model()) is not None
