"""Nodes without a row: carried, run and written back unharmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.operator import Flow
from qdqbridge.core.graph.printer import attributes_text
from qdqbridge.core.graph.types import TensorType
from qdqbridge.errors import (
    InputDataError,
    InvalidModelError,
    UnsupportedModelError,
    UnsupportedTargetError,
)
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs, opaque_attributes, opaque_node_proto
from qdqbridge.onnx_io.opaque.operators import opaque_node, opaque_operator
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.onnx_io.reading.structure import captured_names
from qdqbridge.onnx_io.runtime.session import OnnxRuntimeSession
from qdqbridge.targets.profiles.export import export
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import Array, Builder, canonical, load, run

ort.set_default_logger_severity(4)
FLOAT = TensorProto.FLOAT


def f32(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


def info(name: str, shape: list[Any] | None = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def if_node(**names: str) -> NodeProto:
    """An If whose branches read ``a`` and ``b`` from outside, one of them two levels down."""
    n = {key: key for key in ("cond", "a", "b", "y", "p", "q", "k", "node")} | names
    k = numpy_helper.from_array(f32(10), n["k"])
    inner_then = helper.make_graph(
        [helper.make_node("Neg", [n["a"]], [n["q"]])], "i", [], [info(n["q"])]
    )
    inner_else = helper.make_graph(
        [helper.make_node("Abs", [n["p"]], [n["q"] + "2"])], "j", [], [info(n["q"] + "2")]
    )
    then = helper.make_graph(
        [
            helper.make_node("Add", [n["a"], n["k"]], [n["p"]], n["node"]),
            helper.make_node("If", [n["cond"]], ["r"], then_branch=inner_then,
                             else_branch=inner_else),
            helper.make_node("Add", [n["p"], "r"], ["s"]),
        ],
        n["node"] + "then", [], [info("s", ["dim_" + n["p"]])], [k],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Mul", [n["b"], n["b"]], ["s"])], "e", [], [info("s")]
    )
    return helper.make_node("If", [n["cond"]], [n["y"]], n["node"], then_branch=then,
                            else_branch=other, doc_string=n["node"])  # fmt: skip


def value(name: str, dtype: DType = DType.FLOAT32) -> Value:
    return Value(TensorType(dtype, (2,)), name)


def test_topk_is_computed_and_written_back() -> None:
    proto = helper.make_node("TopK", ["x", "k"], ["v", "i"], "top", axis=0, largest=0)
    op, attributes, operands = opaque_node(proto, 13, [value("x"), value("k")], [])
    assert (op.name, op.flow, len(operands)) == ("TopK", Flow.FLOAT, 2)
    values, indices = op.compute(attributes, [f32(3, 1, 2), np.array([2])])
    assert values.tolist() == [1, 2] and indices.tolist() == [1, 2]
    assert indices.dtype == np.int64
    back = opaque_node_proto(attributes, ["x", "k"], ["v", "i"])
    # The only axis of a vector is the last one, as ONNX assumes.
    assert {each.name: each.i for each in back.attribute} == {"largest": 0}
    assert (back.op_type, back.input, back.output) == ("TopK", proto.input, proto.output)


def test_left_out_inputs_and_results_stay_left_out() -> None:
    proto = helper.make_node("LSTM", ["x", "w", "r", "", "", "h"], ["", "last"], hidden_size=2)
    attributes = opaque_attributes(proto, 14)
    x, w, r = np.ones((3, 1, 4), np.float32), np.ones((1, 8, 4)), np.ones((1, 8, 2))
    arrays = [x, w.astype(np.float32), r.astype(np.float32), None, None,
              np.zeros((1, 1, 2), np.float32)]  # fmt: skip
    (last,) = opaque_operator("", "LSTM").compute(attributes, arrays)
    assert last.shape == (1, 1, 2) and (last > 0.9).all()
    back = opaque_node_proto(attributes, ["x", "w", "r", "", "", "h"], ["last"])
    assert list(back.input) == list(proto.input) and list(back.output) == ["", "last"]
    wide = [None if array is None else array.astype(np.float64) for array in arrays]
    (exact,) = opaque_operator("", "LSTM").compute(attributes, wide)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, last, 1e-6)  # float64 beside float32


def test_captured_tensors_become_operands() -> None:
    proto = if_node()
    captured = captured_names(proto)
    assert set(captured) == {"a", "b", "cond"}
    values = {name: value(name) for name in captured}
    op, attributes, operands = opaque_node(
        proto, 17, [value("cond", DType.BOOL)], [values[name] for name in captured]
    )
    assert operands[1:] == [values[name] for name in captured]
    a, b = f32(1, -2), f32(3, 4)
    for condition, expected in ((True, a + 10 - a), (False, b * b)):
        given = {"a": a, "b": b, "cond": np.array(condition)}
        arrays = [np.array(condition), *(given[name] for name in captured)]
        (result,) = op.compute(attributes, arrays)
        np.testing.assert_array_equal(result, expected)


def test_names_leave_no_trace() -> None:
    plain = opaque_attributes(if_node(), 17)
    renamed = opaque_attributes(
        if_node(cond="c", a="t_1", b="capture_0", y="z", p="a", q="t_0", k="b", node="nn"), 17
    )
    assert plain == renamed and hash(plain) == hash(renamed)
    assert repr(plain) == repr(renamed) and attributes_text(plain) == attributes_text(renamed)
    assert len(repr(plain)) < 250


def test_different_nodes_differ() -> None:
    first = opaque_attributes(helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=0), 13)
    second = opaque_attributes(helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1), 13)
    third = opaque_attributes(helper.make_node("TopK", ["x", "k"], ["", "i"], axis=1), 13)
    assert len({first, second, third}) == 3 and repr(first) != repr(second)


@pytest.mark.parametrize("names", [["cond", "a", "b"], ["c", "t_0", "capture_0"]], ids=str)
def test_written_subgraphs_read_the_new_names(names: list[str]) -> None:
    proto = if_node()
    attributes = opaque_attributes(proto, 17)
    now: dict[str, str] = dict(zip(("cond", "a", "b"), names, strict=True))
    captures = [now[name] for name in captured_names(proto)]
    back = opaque_node_proto(attributes, [now["cond"], *captures], ["y"])
    assert captured_names(back) == captures
    assert opaque_attributes(back, 17) == attributes
    tensors = [info(now["cond"], [], TensorProto.BOOL), info(now["a"], [2]), info(now["b"], [2])]
    graph = helper.make_graph([back], "g", tensors, [info("y", [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString())
    a = f32(1, -2)
    feed = {now["cond"]: np.array(True), now["a"]: a, now["b"]: a}
    np.testing.assert_array_equal(session.run(None, feed)[0], f32(10, 10))


def test_a_loop_is_carried() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "outer"], ["next"]),
         helper.make_node("Identity", ["go"], ["go_on"]),
         helper.make_node("Identity", ["next"], ["scan"])],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("state", [2])],
        [info("go_on", [], TensorProto.BOOL), info("next", [2]), info("scan", [2])],
    )  # fmt: skip
    proto = helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body)
    attributes = opaque_attributes(proto, 16)
    assert attributes.captures == ("capture_0",)
    x, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    last, scanned = opaque_operator("", "Loop").compute(attributes, [np.array(3), None, x, one])
    assert last.tolist() == [3, 3] and scanned.shape == (3, 2)


def test_a_loop_of_no_steps_stacks_what_is_declared(tmp_path: Path) -> None:
    b = Builder(opset=21)
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Transpose", ["next"], ["turned"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 3]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("turned", TensorProto.FLOAT, [3, 2]),
        ],
    )
    steps, x = b.input("steps", [], TensorProto.INT64), b.input("x", [2, 3])
    b.nodes.append(helper.make_node("Loop", [steps, "", x], ["last", "all"], body=body))
    b.output("last", [2, 3])
    b.output("all", ["n", 3, 2])
    model = b.model()
    graph = canonical(model)
    path = tmp_path / "saved.onnx"
    export(graph, path)
    for count in (0, 2):
        feeds = {"steps": np.array(count), "x": np.ones((2, 3), np.float32)}
        found = run(graph, feeds)
        for data in (model.SerializeToString(), path.read_bytes()):
            wanted: Any = ort.InferenceSession(data).run(None, feeds)
            for own, array in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(own, array, strict=True)


def test_a_loop_may_leave_out_its_condition() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["a", "a"], ["b"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("a", [2])],
        [info("on", [], TensorProto.BOOL), info("b", [2])],
    )
    b = Builder()
    b.output(b.op("Loop", b.init(np.int64(3)), "", b.input("x", [2]), body=body), [2])
    assert run(load(b.model()), {"x": f32(1, 2)})[0].tolist() == [8, 16]


@pytest.mark.parametrize("named", [["last", ""], ["", "all"]])
def test_a_loop_may_leave_out_results(named: list[str], tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["a", "a"], ["b"]),
            helper.make_node("Neg", ["b"], ["given"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("a", [2])],
        [info("on", [], TensorProto.BOOL), info("b", [2]), info("given", [2])],
    )
    b = Builder()
    steps, x = b.init(np.int64(2)), b.input("x", [2])
    b.nodes.append(helper.make_node("Loop", [steps, "", x], named, body=body))
    b.output(b.op("Abs", "last" if named[0] else "all"), None)
    graph = canonical(b.model())  # onnxruntime 1.32 ends the process on both models
    wanted = [[4, 8]] if named[0] else [[2, 4], [4, 8]]
    assert run(graph, {"x": f32(1, 2)})[0].reshape(-1, 2).tolist() == wanted
    export(graph, tmp_path / "saved.onnx")
    (loop, _) = onnx.load(tmp_path / "saved.onnx").graph.node
    assert [bool(name) for name in loop.output] == [bool(name) for name in named]
    assert canonical(onnx.load(tmp_path / "saved.onnx")).digest == graph.digest


def sequence_model(*, output: bool = False) -> onnx.ModelProto:
    """A sequence between quantized tensors, or as the graph's output."""
    b = Builder(17)
    parts = b.op("SplitToSequence", b.qdq(b.input("x", [4, 6]), 0.5), axis=0)
    if output:
        b.outputs.append(helper.make_tensor_sequence_value_info(parts, FLOAT, None))
    else:
        b.output(b.qdq(b.op("ConcatFromSequence", parts, axis=0), 0.5))
    return b.model()


def test_sequences_are_computed_and_not_handed_on() -> None:
    g = load(sequence_model())
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(run(g, {"x": x})[0], x)
    for node in g.nodes:
        if isinstance(node.attributes, OpaqueAttrs):
            with pytest.raises(UnsupportedTargetError, match="cannot be handed on"):
                node.attributes.model(node)


def test_a_sequence_leaves_a_graph(tmp_path: Path) -> None:
    g = load(sequence_model(output=True))
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows = evaluate(g, {"x": x})[0][g.output_names[0]]
    assert isinstance(rows, list) and [row.tolist() for row in rows] == x[:, None].tolist()
    export(g, tmp_path / "sequence.onnx")
    onnx.checker.check_model(str(tmp_path / "sequence.onnx"))
    (found,) = OnnxRuntimeSession(tmp_path / "sequence.onnx").run({"x": x}, g.output_names).values()
    assert [row.tolist() for row in found] == x[:, None].tolist()
    assert read(tmp_path / "sequence.onnx").outputs[0].type == g.outputs[0].type


def optional_model() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    )
    nodes = [helper.make_node("Identity", ["x"], ["y"]),
             helper.make_node("OptionalHasElement", ["x"], ["has"])]  # fmt: skip
    outputs = [helper.make_value_info("y", kind),
               helper.make_tensor_value_info("has", TensorProto.BOOL, [])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("x", kind)], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("value", [None, [f32(1, 2), f32(3, 4)]], ids=["empty", "full"])
def test_an_optional_crosses_a_graph(value: list[Array] | None) -> None:
    g = load(optional_model())
    assert "input %0: optional<sequence<float32>>" in g.text()
    y, has = evaluate(g, {"x": value})[0].values()  # type: ignore[dict-item] # no array
    assert has == (value is not None)
    assert y is None if value is None else [each.tolist() for each in y] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("value", [3, f32(1, 2), [f32(1), np.zeros(2, np.int64)]])
def test_what_is_no_sequence_is_refused(value: object) -> None:
    with pytest.raises(InputDataError):
        evaluate(load(optional_model()), {"x": value})  # type: ignore[dict-item] # no array


def test_other_domains_run() -> None:
    proto = helper.make_node("BiasGelu", ["x", "b"], ["y"], domain="com.microsoft")
    attributes = opaque_attributes(proto, 1)
    op = opaque_operator("com.microsoft", "BiasGelu")
    assert op.name == "com.microsoft::BiasGelu"
    (result,) = op.compute(attributes, [np.zeros((1, 3), np.float32), f32(0, 1, 9)])
    # The standard normal distribution up to 1, of which six digits are written here.
    np.testing.assert_allclose(result, [[0, 0.841345, 9]], 1e-6)


def test_a_spelling_of_an_operator_with_a_row_is_not_taken_for_it() -> None:
    assert opaque_operator("", "Slice").name == "ai.onnx::Slice"
    assert opaque_operator("", "Slice") is opaque_operator("", "Slice")


def test_the_opset_leaves_no_trace_where_the_operator_is_the_same() -> None:
    proto = helper.make_node("TopK", ["x", "k"], ["v", "i"])
    assert opaque_attributes(proto, 13) == opaque_attributes(proto, 17)
    old = opaque_attributes(helper.make_node("TopK", ["x", "k"], ["v", "i"]), 10)
    assert old.version == 10


def test_what_onnxruntime_does_not_know_is_named() -> None:
    proto = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.acme")
    attributes = opaque_attributes(proto, 1)
    assert isinstance(attributes, OpaqueAttrs)
    with pytest.raises(UnsupportedModelError, match=r"com\.acme::Frobnicate"):
        opaque_operator("com.acme", "Frobnicate").compute(attributes, [np.zeros(2, np.float32)])


def test_the_node_that_onnxruntime_does_not_run_is_named() -> None:
    b = Builder()
    x = b.input("x", [1, 32])
    codes, scales = b.init(np.zeros((4, 1, 12), np.uint8)), b.init(np.ones((4, 1), np.float32))
    sizes = {"K": 32, "N": 4, "bits": 3, "block_size": 32}
    b.output(b.op("MatMulNBits", x, codes, scales, domain="com.microsoft", **sizes))
    model = b.model()
    model.graph.node[0].name = "layer7"
    with pytest.raises(UnsupportedModelError) as error:
        evaluate(canonical(model), {"x": np.ones((1, 32), np.float32)})
    assert error.value.where.startswith("layer7, ")


def test_wrong_operands_are_named() -> None:
    attributes = opaque_attributes(helper.make_node("TopK", ["x", "k"], ["v", "i"]), 13)
    with pytest.raises(UnsupportedModelError, match=r"ai\.onnx::TopK"):
        opaque_operator("", "TopK").compute(attributes, [np.zeros(2, np.float32), np.array([9])])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("shape", [[1, 2, 5, 7], ["n", 2, "h", "w"]], ids=["static", "symbolic"])
def test_resize_that_keeps_the_aspect_ratio_of_some_axes(
    shape: list[int | str], policy: str, mode: str
) -> None:
    b = Builder(19)
    sizes = b.init(np.array([9, 11], np.int64))
    y = b.op(
        "Resize", b.input("x", shape), "", "", sizes, axes=[3, 2], mode=mode,
        keep_aspect_ratio_policy=policy,
    )  # fmt: skip
    b.output(y, [None] * 4)  # type: ignore[list-item]
    x = np.random.default_rng(0).normal(size=(1, 2, 5, 7)).astype(np.float32)
    (ours,) = run(load(b.model()), {"x": x})
    (theirs,) = ort_run(b.model(), {"x": x})
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("b_type", "zero_type"), [(np.int16, None), (np.uint8, np.int8)])
def test_types_that_an_operator_does_not_take_are_refused(b_type: Any, zero_type: Any) -> None:
    b = Builder(13)
    names = [b.input("x", [2, 3], TensorProto.UINT8), b.init(np.ones((3, 2), b_type))]
    zero = [] if zero_type is None else [b.init(np.zeros((), zero_type))]
    b.output(b.op("MatMulInteger", *names, *zero), [2, 2], TensorProto.INT32)
    with pytest.raises(InvalidModelError, match="does not take these element types"):
        load(b.model())


def test_the_oldest_version_that_means_the_same_names_it() -> None:
    """A later version that takes more element types leaves no trace."""
    digests: set[str] = set()
    for opset in (13, 17, 20, 21):
        b = Builder(opset)
        b.output(b.op("Cast", b.op("IsNaN", b.input("x", [3])), to=TensorProto.FLOAT))
        digests.add(canonical(b.model()).digest)
    assert len(digests) == 1


_CONV_BODY = (
    '<ir_version: 8, opset_import: ["": OPSET]> g (float[1,2,4] x, bool c) => (float[a,b,d] y) '
    "<float s = {0.1}, float t = {0.01}, float u = {0.001}, uint8 z = {3}, int8 o = {0}, "
    "int8[2,2,1] w = {1, -2, 3, 4}, int32[2] b = {7, -9}, int32 n = {0}> { "
    "y = If (c) <then_branch = l () => (float[a,b,d] p) { q = QuantizeLinear(x, s, z) "
    "v = DequantizeLinear(q, s, z) k = DequantizeLinear(w, t, o) h = DequantizeLinear(b, u, n) "
    "r = Conv(v, k, h) i = QuantizeLinear(r, s, z) p = DequantizeLinear(i, s, z) }, "
    "else_branch = e () => (float[a,b,d] m) { m = Neg(x) }> }"
)


def test_a_bias_of_integers_is_none_that_a_body_quantizes() -> None:
    """From opset 19 on QuantizeLinear takes a scale of integers, which nobody gives it."""
    texts = [_CONV_BODY.replace("OPSET", str(opset)) for opset in (13, 17, 19, 20, 21, 24)]
    graphs = [canonical(onnx.parser.parse_model(text)) for text in texts]
    assert len({graph.digest for graph in graphs}) == 1
    assert {node.record(OpaqueAttrs).version for graph in graphs for node in graph.nodes} == {13}


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((3, 0), 0), ((3, 0), 1), ((0, 3), -1), ((0, 0), 0)])
def test_unique_slices_without_elements(shape: tuple[int, int], axis: int, is_sorted: int) -> None:
    """They are equal, so that there is one of them; onnxruntime ends the process there."""
    b = Builder(17)
    y = b.op("Unique", b.input("x", ["n", "m"]), axis=axis, sorted=is_sorted, outputs=4)
    b.output(y, None)
    for index in (1, 2, 3):
        b.output(f"{y}:{index}", None, TensorProto.INT64)
    found, firsts, places, counts = run(load(b.model()), {"x": np.zeros(shape, np.float32)})
    number = shape[axis]
    wanted = list(shape)
    wanted[axis] = min(number, 1)
    assert (found.shape, found.dtype) == (tuple(wanted), np.float32)
    assert (firsts.tolist(), places.tolist()) == ([0] * min(number, 1), [0] * number)
    assert counts.tolist() == [number] * min(number, 1)


def test_a_deviation_of_zero_divides_nothing() -> None:
    """ONNX adds 1e-9 to the deviation, onnxruntime nothing."""
    b = Builder(17)
    b.output(b.op("MeanVarianceNormalization", b.input("x", [1, 1, 2, 2]), axes=[1]))
    (found,) = run(canonical(b.model()), {"x": np.ones((1, 1, 2, 2), np.float32)})
    assert np.array_equal(found, np.zeros((1, 1, 2, 2)))


def test_versions_with_another_meaning_are_told_apart() -> None:
    node = helper.make_node("Hardmax", ["in_0"], ["out_0"], axis=1)
    found = {opaque_attributes(node, opset).version for opset in (7, 11, 12, 13, 21)}
    assert found == {7, 13}


_ROUNDING_BODY = (
    '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> '
    "g (float[8] x, bool c) => (float[a] y) "
    "<float s = {0.1}, {dtype} z = {3}, float t = {0.3}, int8 o = {-5}, float low = {-0.2}> { "
    "y = If (c) <then_branch = t () => (float[a] p) { n = Neg(x) r = Relu(n) "
    "q = {domain}QuantizeLinear(r, s, z) p = {domain}DequantizeLinear(q, s, z) }, "
    "else_branch = e () => (float[a] u) { k = Clip(x, low) i = {domain}QuantizeLinear(k, s, z) "
    "j = {domain}DequantizeLinear(i, s, z) f = QuantizeLinear(j, t, o) "
    "u = DequantizeLinear(f, t, o) }> }"
)


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8", "int16"])
def test_bodies_round_as_onnx_says(dtype: str, domain: str) -> None:
    """Not as onnxruntime's optimizations: some of them drop clamps, or refuse types."""
    text = _ROUNDING_BODY.replace("{dtype}", dtype).replace("{domain}", domain)
    model = onnx.parser.parse_model(text)
    x = np.linspace(-1.5, 1.5, 8, dtype=np.float32)
    for condition in (True, False):
        inputs = {"x": x, "c": np.array(condition)}
        (ours,), (theirs,) = run(canonical(model), inputs), ort_run(model, inputs)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("parameters", ["s3", "s23"], ids=["negative axis", "blocks"])
def test_parameters_that_need_a_rank_which_nobody_knows(parameters: str) -> None:
    """A Loop may change the shape of what it carries."""
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,6] x) => (float[a,b] y) '
        "<float[6] s3 = {1, 0.5, 0.25, 0.125, 1, 1}, float[2,3] s23 = {1, 0.5, 0.25, 0.125, 1, 1}, "
        "int64 n = {2}> { v = Loop(n, , x) "
        "<body = b (int64 i, bool c, float[] a) => (bool d, float[] e) "
        "{ d = Identity(c) e = Add(a, x) }> "
        "q = QuantizeLinear<axis = -1, BLOCKS>(v, PARAMETERS) "
        "y = DequantizeLinear<axis = -1, BLOCKS>(q, PARAMETERS) }"
    )
    blocks = "block_size = 2" if parameters == "s23" else ""
    text = text.replace(", BLOCKS" if not blocks else "BLOCKS", blocks)
    model = onnx.parser.parse_model(text.replace("PARAMETERS", parameters))
    inputs = {"x": np.linspace(0, 30, 12, dtype=np.float32).reshape(2, 6)}
    (ours,), (theirs,) = run(canonical(model), inputs), ort_run(model, inputs)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "operator",
    [
        "p, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(q)",
        'p = DepthToSpace<blocksize = 2, mode = "CRD">(q) i = Shape(p)',
        "e = Slice(q, n, n, o) p = ReduceMin<axes = [0], keepdims = 0>(e) i = Shape(p)",
    ],
    ids=["indices", "CRD", "nothing"],
)
def test_stored_integers_of_operators_without_a_row(operator: str, tmp_path: Path) -> None:
    """Forms of data movement that have no row take the integers, not what they stand for."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4,6,6] x) => (float y, int64 i) '
        "<float s = {0.1}, uint8 z = {128}, int64[1] n = {9}, int64[1] o = {0}> "
        f"{{ q = QuantizeLinear(x, s, z) {operator} y = DequantizeLinear(p, s, z) }}"
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inputs = {"x": np.random.default_rng(0).normal(size=(1, 4, 6, 6)).astype(np.float32)}
    graph, theirs = canonical(model), ort_run(model, inputs)
    export(graph, tmp_path / "saved.onnx")
    saved = ort_run(onnx.load(tmp_path / "saved.onnx"), inputs)
    for ours, again, wanted in zip(run(graph, inputs), saved, theirs, strict=True):
        np.testing.assert_array_equal(ours, wanted)
        np.testing.assert_array_equal(again, wanted)
