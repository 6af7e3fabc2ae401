"""The digest after save and load: of random models, and of those where it once moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from tests.onnx_io.digest_trips import loaded, saved
from tests.onnx_io.random_branches import random_branches
from tests.onnx_io.random_models import random_model

FOUND = sorted((Path(__file__).parent / "digest_models").glob("*.onnx"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_where_it_once_moved(path: Path) -> None:
    graph = loaded(onnx.load(path))
    assert saved(graph).text() == graph.text()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_models(first: int) -> None:
    """``scripts/sweeps/sweep_digests`` makes as many as one likes."""
    for seed in range(first, first + 20):
        graph = loaded(random_model(seed))
        assert saved(graph).text() == graph.text(), seed


@pytest.mark.parametrize("first", range(0, 120, 60))
def test_random_captures(first: int) -> None:
    """What a body captures under two names, it captures once, also in the file that is saved."""
    for seed in range(first, first + 60):
        graph = loaded(random_branches(seed))
        assert saved(graph).text() == graph.text(), seed


def test_one_capture_under_two_names() -> None:
    bodies = (
        "y = If (c) <then_branch = t () => (float[a,b] p) { u = Add(x, v) p = Mul(u, w) }, "
        "else_branch = e () => (float[a,b] q) { q = Mul(x, w) }>"
    )
    inputs = "float[n,2] x, bool c"
    once = _read(f"<float[2] v = {{1, 2}}> {{ {bodies.replace('w', 'v')} }}", inputs)
    same = _read(f"<float[2] v = {{1, 2}}> {{ w = Identity(v) {bodies} }}", inputs)
    equal = _read(f"<float[2] v = {{1, 2}}, float[2] w = {{1, 2}}> {{ {bodies} }}", inputs)
    other = _read(f"<float[2] v = {{1, 2}}, float[2] w = {{1, 3}}> {{ {bodies} }}", inputs)
    assert once.text() == same.text() == equal.text() != other.text()
    x, v = np.array([[1, -1], [0.5, 3]], np.float32), np.array([1, 2], np.float32)
    for graph in (once, same, equal):
        for c, wanted in ((True, (x + v) * v), (False, x * v)):
            y = qb.evaluate(graph, {"x": x, "c": np.array(c)})["y"]
            np.testing.assert_array_equal(y, wanted)


def _read(body: str, inputs: str = "float[n,2] x", opset: int = 21) -> Graph:
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => (float[a,b] y)'
    return loaded(onnx.parser.parse_model(f"{head} {body}"))


def test_what_a_file_says_of_an_open_kernel() -> None:
    """The weight leaves its extent open, and the operator's row has no other one."""
    weight = "float[1,m,1] x, float[m,3,n] w"
    body = "<int64[2] s = {9, 1}> { v = ConvTranspose<kernel_shape = [3]>(x, w) y = Reshape(v, s) }"
    graph = _read(body, weight)
    assert graph.text() == _read(body.replace("<kernel_shape = [3]>", ""), weight).text()
    assert saved(graph).text() == graph.text()


@pytest.mark.parametrize("opset", [9, 12])
def test_a_softmax_of_what_the_run_gives_a_shape(opset: int) -> None:
    """How many extents a Reshape makes follows from how many it reads, in every opset."""
    body = "{ r = Reshape(x, s) y = Softmax<axis = 0>(r) }"
    graph = _read(body, "float[5,1,1] x, int64[2] s", opset)
    assert saved(graph).text() == graph.text()


def test_a_table_has_no_range() -> None:
    numbers = "float s = {0.1}, uint8 z = {0}, float[2,2] t = {-1, 2, 0.05, 1}, int64[1] i = {1}"
    graph = _read(
        f"<{numbers}, float low = {{0}}, float high = {{0.1}}> {{ k = Cast<to = 7>(x) "
        "j = ReduceMax<keepdims = 0>(k, i) g = Gather(t, j) c = Clip(g, low, high) "
        "q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }"
    )
    assert "Gather" in graph.text()
    assert "range" not in graph.text()
    assert saved(graph).text() == graph.text()


def test_one_zero_point_of_run_time() -> None:
    inputs = "float[n,2] x, float s"
    left_out = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)"
    given = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    twins = [_read(f"{{ {left_out} }}", inputs)] + [
        _read(f"<uint8{shape} z = {{0}}> {{ {given} }}", inputs) for shape in ("", "[1]", "[1,1]")
    ]
    assert len({graph.text() for graph in twins}) == 1
    others = [_read(f"<int8{rank} z = {{3}}> {{ {given} }}", inputs) for rank in ("", "[1]")]
    assert others[0].text() == others[1].text() != twins[0].text()
    for graph in (*twins, *others, _read(f"<int8 z = {{0}}> {{ {given} }}", inputs)):
        assert saved(graph).text() == graph.text()


def test_equal_conversions_of_run_time_are_one() -> None:
    twice = (
        "<uint8 z = {3}, uint8 w = {3}> { q = QuantizeLinear(x, s, z) "
        "a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, s, w) y = Mul(a, b) }"
    )
    once = twice.replace("Mul(a, b)", "Mul(a, a)")
    one, other = (_read(body, "float[n,2] x, float s") for body in (once, twice))
    assert one.text() == other.text()


def test_a_reshape_that_copies_every_extent_is_nothing() -> None:
    graph = _read("<int64[2] t = {0, -1}> { r = Reshape(x, t) y = Neg(r) }")
    assert [node.op.name for node in graph.nodes] == ["Neg"]


LEARNT_LATE = {
    "a kernel of named extents": ("float[1,2,5] x, float[k,2,k] w",
        "{ y = Conv<kernel_shape = [3]>(x, w) }"),
    "a weight of unknown rank": ("float[5,1,2] x, int64[2] parts",
        "{ p, w = Split<axis = 0>(x, parts) "
        "y = Conv<kernel_shape = [2], strides = [1]>(w, w) }"),
    "indices that only dead nodes read": ("float[1,2,8] x",
        "{ m, i = MaxPool<kernel_shape = [2]>(x) f = Cast<to = 1>(i) dead = Neg(f) y = Relu(m) }"),
    "a deviation that nothing reads": ("float[1,2] x",
        "<float[2] s = {1, 2}> { m, d = LayerNormalization(x, s) e = Neg(d) y = Relu(m) }"),
    "a mask that nothing needs": ("float[2,3] x",
        "{ d, m = Dropout(x) f = Cast<to = 1>(m) dead = Neg(f) y = Relu(d) }"),
    "a vector of run-time length": ("int64[1] s",
        "<float c = {3}> { r = Reshape(c, s) y = Atan(r) }"),
    "an extent that is left": ("float[3,k] x",
        "<int64[2] t = {3, 5}> { s = Softplus(x) y = Reshape(s, t) }"),
    "integers that only moved": ("int8[1] x",
        "<float[1] f = {1}, float s = {0.5}, int8 z = {3}> { "
        "r = Resize<mode = \"nearest\">(x, , f) y = DequantizeLinear(r, s, z) }"),
    "numbers of constants beside what is computed": ("float[1] x",
        "<float[3] c = {6, -1, 0.5}> "
        "{ u, i = Unique<axis = 0>(c) f = Cast<to = 1>(i) y = Mul(u, f) }"),
    "a rank that ONNX does not infer": ("float[2] x, int64[1] s",
        "<int64[1] t = {-1}> { p = Split(x, s) y = Reshape(p, t) }"),
}  # fmt: skip
"""What a graph was found to say only when it was read the second time: inputs and nodes."""


@pytest.mark.parametrize("product", ["Gemm(h, w)", "MatMul(h, w)"])
@pytest.mark.parametrize("count", ["", "<int64 three = {3}>"])
def test_states_of_loops_in_bodies_keep_their_shape(product: str, count: str) -> None:
    """A Gemm says of its operands that they are matrices; what it is quantized to does not."""
    inner = (
        "step (int64 j, bool more, float[] h) => (bool on, float[] n, float[] o) "
        "{ on = Identity(more) p = PRODUCT n = Tanh(p) o = Identity(n) }"
    ).replace("PRODUCT", product)
    loop = f"s, steps = Loop(three, , x) <body = {inner}>"
    then = (
        f"t () => (float[] a) {count} {{ {loop} a = ReduceMax<axes = [0], keepdims = 0>(steps) }}"
    )
    body = (
        f"<float[2,2] w = {{1, 2, 3, 4}}, int64 three = {{3}}> {{ m = ReduceMax<keepdims = 0>(x) "
        f"c = Cast<to = 9>(m) r = If(c) <then_branch = {then}, "
        "else_branch = e () => (float[] b) { b = Neg(x) }> y = MatMul(r, w) }"
    )
    graph = _read(body, opset=13)
    assert graph.nodes[-1].op.name == "Gemm"
    assert graph.nodes[-1].operand(0).type.shape == ("n", 2)


@pytest.mark.parametrize("name", LEARNT_LATE)
def test_what_was_learnt_late(name: str) -> None:
    inputs, nodes = LEARNT_LATE[name]
    graph = _read(nodes, inputs, opset=17)
    assert saved(graph).text() == graph.text()


@pytest.mark.parametrize("end", ["2147483647", "2147483648", "9223372036854775807"])
def test_ends_of_slices_that_no_extent_reaches_are_one(end: str) -> None:
    bounds = f"int64[1] s = {{1}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}"
    graph = _read(f"<{bounds}> {{ y = Slice(x, s, e, a) }}")
    assert "ends=[9223372036854775807]" in graph.text()
    assert saved(graph).text() == graph.text()


@pytest.mark.parametrize("start", ["-2147483648", "-9223372036854775807", "0"])
def test_slices_that_begin_before_every_axis_begin_at_its_first(start: str) -> None:
    bounds = f"int64[1] s = {{{start}}}, int64[1] e = {{3}}, int64[1] a = {{0}}"
    assert "starts=[0]" in _read(f"<{bounds}> {{ y = Slice(x, s, e, a) }}").text()


def test_backward_slices_have_the_far_end_before_the_first() -> None:
    bounds = "int64[1] s = {2147483647}, int64[1] e = {-2147483648}, int64[1] a = {0}"
    graph = _read(f"<{bounds}, int64[1] b = {{-1}}> {{ y = Slice(x, s, e, a, b) }}")
    assert "starts=[9223372036854775807], ends=[-9223372036854775808]" in graph.text()
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(qb.evaluate(graph, {"x": x})["y"], x[::-1])


_BRANCHES = (
    "{ y = If (c) <then_branch = t () => (float[a,b] p) { p = Reshape(x, s) }, "
    "else_branch = e () => (float[a,b] q) { r = Reshape(x, s) q = Neg(r) }> }"
)


@pytest.mark.parametrize("opset", [14, 17, 19, 21, 23])
def test_the_opset_of_a_file_leaves_no_trace_in_bodies(opset: int) -> None:
    inputs = "float[n,2] x, bool c, int64[2] s"
    graph = _read(_BRANCHES, inputs, opset)
    assert graph.text() == _read(_BRANCHES, inputs, 16).text()
    assert saved(graph).text() == graph.text()


def test_bodies_of_newer_element_types_keep_a_version_that_takes_them() -> None:
    inputs = "float8e4m3fn[n,2] x, bool c, int64[2] s"
    body = _BRANCHES.replace("(float[", "(float8e4m3fn[").replace("r = Reshape(x, s) q = Neg(r)",
                                                                  "q = Identity(x)")  # fmt: skip
    head = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float8e4m3fn[a,b] y)'
    graph = loaded(onnx.parser.parse_model(f"{head} {body}"))
    assert "version=19" in graph.text()
    assert saved(graph).text() == graph.text()


def test_a_result_whose_numbers_are_needed_is_not_left_out() -> None:
    """Nothing reads the counts but a node that is computed while the file is read."""
    nodes = (
        "<float c = {3}, int64[1] i = {0}, int64[1] e = {5}> { u, f, b, n = Unique(c) "
        "s = Slice(n, i, e) r = ReduceSum(s) k = Cast<to = 1>(r) a = Add(k, x) y = Add(a, u) }"
    )
    graph = _read(nodes, "float[1] x", opset=17)
    assert qb.evaluate(graph, {"x": np.array([0.5], np.float32)})["y"].tolist() == [4.5]


def test_a_file_that_imports_no_domain_of_onnx() -> None:
    """What its nodes become is ONNX's all the same: an Add of integers."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["com.microsoft": 1]>
        g (uint8[2,2] a, uint8[2,2] b) => (uint8[2,2] y)
        <float s = {0.1}, uint8 z = {3}>
        { y = com.microsoft.QLinearAdd (a, s, z, b, s, z, s, z) }
    """)
    graph = loaded(model)
    assert [node.op.name for node in graph.nodes] == ["Add"]
    assert saved(graph).text() == graph.text()


def test_empty_fields_leave_no_trace_in_bodies() -> None:
    """A domain that is said to be empty, and ONNX's second name for its own."""
    inputs = "float[n,2] x, bool c, int64[2] s"
    graph = _read(_BRANCHES, inputs, 17)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17]> g ({inputs}) => (float[a,b] y) {_BRANCHES}'
    )
    for domain in ("", "ai.onnx"):
        for attribute in model.graph.node[0].attribute:
            for node in attribute.g.node:
                node.domain, node.overload = domain, ""
        assert loaded(model).text() == graph.text()
