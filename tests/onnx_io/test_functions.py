"""Model-local functions are their bodies, with the attributes that a call gives or leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.reading.functions import inline_functions
from tests.onnx_models import Builder, canonical, ints, load, ops, run

SCALES = np.array([2**-7, 2**-6, 3 * 2**-8, 2**-7], np.float32)
OPSET = 21


def referring(node: onnx.NodeProto, **names: str) -> onnx.NodeProto:
    """Adds attributes that stand for those of the function around the node."""
    for name, outer in names.items():
        attribute = onnx.AttributeProto(name=name, ref_attr_name=outer)
        attribute.type = onnx.AttributeProto.INT
        node.attribute.append(attribute)
    return node


def function(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: str = "x s z",
    /,
    *,
    opset: int = OPSET,
    attributes: tuple[str, ...] = (),
    **defaults: Any,
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    values = [helper.make_attribute(key, value) for key, value in defaults.items()]
    return helper.make_function(
        "local", name, inputs.split(), ["y"], nodes, opsets, attributes, values
    )


def fake_quant(opset: int = OPSET, **defaults: int) -> onnx.FunctionProto:
    """``Q`` and ``DQ`` along an axis that a call gives."""
    return function(
        "FakeQuant",
        [
            referring(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), axis="channel"),
            referring(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]), axis="channel"),
        ],
        opset=opset,
        attributes=() if defaults else ("channel",),
        **defaults,
    )


def convolution(
    *functions: onnx.FunctionProto, call: str = "", opset: int = OPSET, **attributes: int
) -> Graph:
    """``x -> QDQ -> Conv -> QDQ -> y`` whose weight is quantized by a function, or by nodes."""
    b = Builder(opset)
    b.functions = list(functions)
    x = b.qdq(b.input("x", [1, 4, 3, 3]), 2**-5, 120)
    w = b.init((ints((4, 4, 1, 1)) * SCALES.reshape(4, 1, 1, 1)).astype(np.float32))
    params = b.params(SCALES, 0, np.int8)
    if call:
        w = b.op(call, w, *params, domain="local", **attributes)
    else:
        w = b.op("QuantizeLinear", w, *params, axis=0)
        w = b.op("DequantizeLinear", w, *params, axis=0)
    b.output(b.qdq(b.op("Conv", x, w), 2**-2, 100))
    return canonical(b.model())


def nested(**defaults: int) -> onnx.FunctionProto:
    """A function that hands its own attribute on, if it has got one."""
    call = referring(helper.make_node("FakeQuant", ["x", "s", "z"], ["y"]), channel="outer")
    call.domain = "local"
    return function("Outer", [call], attributes=() if defaults else ("outer",), **defaults)


@pytest.mark.idiom("L8")
def test_an_attribute_that_a_call_leaves_out_has_the_function_s_default() -> None:
    plain = convolution()
    assert ops(plain) == ["quantize", "Conv", "dequantize"]
    for graph in (
        convolution(fake_quant(channel=0), call="FakeQuant"),
        convolution(fake_quant(channel=3), call="FakeQuant", channel=0),
        convolution(fake_quant(), call="FakeQuant", channel=-4),
        convolution(fake_quant(channel=0), nested(), call="Outer"),
        convolution(fake_quant(channel=1), nested(outer=0), call="Outer"),
        convolution(fake_quant(channel=1), nested(outer=1), call="Outer", outer=0),
    ):
        assert graph.digest == plain.digest
    # without any value the node has its own default, axis 1, and so quantizes other channels
    assert convolution(fake_quant(), call="FakeQuant").digest != plain.digest


def test_a_function_of_another_opset_is_taken_where_it_says_the_same() -> None:
    plain = convolution(opset=13)
    for theirs, ours in ((13, 21), (21, 13), (19, 23)):
        graph = convolution(fake_quant(theirs, channel=0), call="FakeQuant", opset=ours)
        assert graph.digest == plain.digest

    softmax = function("Last", [helper.make_node("Softmax", ["x"], ["y"])], "x", opset=11)
    b = Builder(OPSET)
    b.functions = [softmax]
    b.output(b.op("Last", b.input("x", [2, 3, 4]), domain="local"), [2, 3, 4])
    with pytest.raises(UnsupportedModelError, match="written for another opset") as error:
        load(b.model())
    assert "Softmax of opset 11 is another operator than that of 21" in error.value.why


def test_a_call_may_leave_out_operands_and_stand_inside_a_branch() -> None:
    b = Builder(OPSET)
    b.functions = [fake_quant(channel=1)]
    b.opsets["local"] = 1
    x, s = b.input("x", [4]), b.init(np.float32(0.5))
    c = b.input("c", [], TensorProto.BOOL)
    info = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])

    def branch(*operands: str) -> onnx.GraphProto:
        call = helper.make_node("FakeQuant", operands, ["y"], domain="local")
        return helper.make_graph([call], "branch", [], [info])

    b.output(b.op("If", c, then_branch=branch(x, s), else_branch=branch(x, s, "")))
    g = canonical(b.model())
    assert ops(g) == ["quantize", "dequantize"]
    plain = Builder(OPSET)
    plain.output(plain.qdq(plain.input("x", [4]), 0.5))
    graph = canonical(plain.model())
    data = {"x": np.array([-3, 0.2, 0.3, 900], np.float32)}
    assert run(g, {**data, "c": np.array(True)})[0].tolist() == run(graph, data)[0].tolist()


def test_a_body_with_a_branch_keeps_its_names_apart() -> None:
    then = helper.make_graph(
        [referring(helper.make_node("Concat", ["x", "x"], ["inner"]), axis="along")], "then", [],
        [helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["inner"])], "else", [],
        [helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    b = Builder(OPSET)
    b.functions = [function("Twice", [node], "x c", along=1)]
    c = b.input("c", [], TensorProto.BOOL)
    inner = b.op("Abs", b.input("x", [2, 2]))
    b.nodes[-1].output[0] = "inner"  # the name that the function's branches use as well
    y = b.op("Twice", "inner", c, domain="local")
    b.output(b.op("Twice", y, c, domain="local"))
    assert inner
    data = np.array([[1, -2], [3, 4]], np.float32)
    (y1,) = run(canonical(b.model()), {"x": data, "c": np.array(True)})
    assert y1.tolist() == [[1, 2] * 4, [3, 4] * 4]
    (y0,) = run(canonical(b.model()), {"x": data, "c": np.array(False)})
    assert y0.tolist() == [[1, 2], [3, 4]]


# ---- refusals ---------------------------------------------------------------------------------


def doubling(depth: int, *, again: int | None = None) -> onnx.ModelProto:
    """Functions of which each calls the next one twice; the last one calls number ``again``."""
    b = Builder(OPSET)
    for index in range(depth):
        last = index == depth - 1
        kind = ("Relu", "") if last else (f"F{index + 1}", "local")
        if last and again is not None:
            kind = (f"F{again}", "local")
        nodes = [
            helper.make_node(kind[0], [a], [b], domain=kind[1]) for a, b in (("x", "t"), ("t", "y"))
        ]
        b.functions.append(function(f"F{index}", nodes, "x"))
    b.output(b.op("F0", b.input("x", [2]), domain="local"), [2])
    return b.model()


def test_calls_that_stand_for_very_many_nodes_are_refused_at_once() -> None:
    assert len(load(doubling(8)).nodes) == 256
    with pytest.raises(UnsupportedModelError, match="too many nodes") as error:
        load(doubling(40))
    assert f"{2**40:,}" in error.value.why
    with pytest.raises(InvalidModelError, match="nested deeper"):
        load(doubling(80))


def test_a_function_that_calls_itself_inside_a_branch_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="calls itself"):
        load(doubling(5, again=2))
    info = helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [2])
    call = helper.make_node("Again", ["x", "c"], ["t"], domain="local")
    then = helper.make_graph([call], "then", [], [info])
    other = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "else", [], [info])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    b = Builder(OPSET)
    b.functions = [function("Again", [node], "x c")]
    b.output(
        b.op("Again", b.input("x", [2]), b.input("c", [], TensorProto.BOOL), domain="local"), [2]
    )
    with pytest.raises(InvalidModelError, match="calls itself"):
        load(b.model())


@pytest.mark.parametrize(
    ("body", "operands", "attributes", "why"),
    [
        ([helper.make_node("Relu", ["x"], ["y"])], 2, {}, "it has 1 inputs, 2 are given"),
        ([helper.make_node("Relu", ["x"], ["y"])], 1, {"axis": 1}, "it has no attribute 'axis'"),
        ([helper.make_node("Relu", ["w"], ["y"])], 1, {}, "its body reads 'w'"),
        ([helper.make_node("Relu", ["x"], ["w"])], 1, {}, "nothing in it makes its output 'y'"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit(
    body: list[onnx.NodeProto], operands: int, attributes: dict[str, int], why: str
) -> None:
    b = Builder(OPSET)
    b.functions = [function("F", body, "x")]
    x = b.input("x", [2])
    b.output(b.op("F", *[x] * operands, domain="local", **attributes), [2])
    with pytest.raises(InvalidModelError, match="cannot be put in its callers' place") as error:
        load(b.model())
    assert why in error.value.why


def test_a_body_may_hand_an_operand_on() -> None:
    b = Builder(OPSET)
    opsets = [helper.make_opsetid("", OPSET)]
    body = [helper.make_node("Relu", ["x"], ["y"])]
    b.functions = [helper.make_function("local", "Both", ["x"], ["y", "x"], body, opsets)]
    x = b.input("x", [2])
    b.output(b.op("Both", x, outputs=2, domain="local"), [2])
    b.output("both_1:1", [2])
    b.output(b.op("Both", x, domain="local"), [2])
    got = run(canonical(b.model()), {"x": np.array([-1, 2], np.float32)})
    assert [a.tolist() for a in got] == [[0, 2], [-1, 2], [0, 2]]


def test_two_functions_of_one_name_are_refused() -> None:
    b = Builder(OPSET)
    relu = function("F", [helper.make_node("Relu", ["x"], ["y"])], "x")
    b.functions = [relu, relu]
    b.output(b.op("F", b.input("x", [2]), domain="local"), [2])
    with pytest.raises(InvalidModelError, match="defined twice"):
        load(b.model())


def test_nodes_of_a_body_without_names_get_names_of_their_own() -> None:
    """onnxruntime refuses a file in which two nodes have one name."""
    b = Builder(OPSET)
    body = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
    b.functions = [function("Twice", body, "x")]
    x = b.input("x", [2])
    b.output(b.op("Twice", b.op("Twice", x, domain="local"), domain="local"), [2])
    flat = inline_functions(b.model(), "file")
    names = [node.name for node in flat.graph.node]
    assert len(names) == 4 and len({*names}) == 4 and all(names)
    session = onnxruntime.InferenceSession(flat.SerializeToString())
    (y,) = session.run(None, {"x": np.array([-1, 2], np.float32)})
    np.testing.assert_array_equal(np.asarray(y), [0, 0])
