"""What a file declares about results is a hint: operators decide, a contradiction is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import InvalidModelError
from tests.onnx_io.shape_relatives import Net, digest_after_export, loaded, runtime
from tests.onnx_models import FLOAT, Array, Builder, canonical, ints, load, ops, run

Declared = dict[str, list[Any]]


def declare(model: onnx.ModelProto, shapes: Declared) -> onnx.ModelProto:
    """Returns the model with declared shapes; ``y`` is its output."""
    for name, shape in shapes.items():
        if name == "y":
            output = model.graph.output[0]
            output.CopyFrom(helper.make_tensor_value_info(output.name, FLOAT, shape))
        else:
            model.graph.value_info.append(helper.make_tensor_value_info(name, FLOAT, shape))
    return model


def stale_notes(graph: Graph) -> list[str]:
    return [note.reason for note in qb.explain(graph) if note.rule == "stale-shape"]


LIES: dict[str, Callable[[Net], None]] = {
    "Reshape": lambda net: net.put([3, 4], "Reshape", net.numbers([3, 4])),
    "Expand": lambda net: net.put([3, 2, 6], "Expand", net.numbers([3, 2, 6])),
    "Tile": lambda net: net.put([4, 6], "Tile", net.numbers([2, 1])),
    "Transpose": lambda net: net.put([6, 2], "Transpose", perm=[1, 0]),
    "Slice": lambda net: net.put([2, 3], "Slice", net.numbers([0, 0]), net.numbers([2, 3])),
}


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("where", ["value_info", "output"])
def test_a_declared_shape_decides_nothing(name: str, where: str, tmp_path: Path) -> None:
    graphs: list[Graph] = []
    for lie in (False, True):
        net = Net(17, (2, 6))
        LIES[name](net)
        moved = net.x
        net.put(net.dims, "Relu")
        model = net.finished()
        if lie:
            declare(model, {moved: [2, 6]} if where == "value_info" else {"y": [2, 6]})
        want = runtime(model, net.feed())
        graphs.append(loaded(model, tmp_path, "model"))
        (have,) = run(graphs[-1], net.feed())
        assert want is not None
        assert have.shape == want.shape == net.dims
        np.testing.assert_array_equal(have, want)
    assert graphs[0].digest == graphs[1].digest == digest_after_export(graphs[1], tmp_path)
    assert not stale_notes(graphs[0])
    (note,) = stale_notes(graphs[1])
    assert "[2, 6]" in note
    assert str(list(net.dims)) in note


@pytest.mark.parametrize("batch", [4, "n"])
def test_a_changed_batch_leaves_stale_shapes(batch: int | str, tmp_path: Path) -> None:
    """The commonest edit: the batch of the input alone."""
    net = Net(17, (4, 3, 8, 8), [batch, 3, 8, 8])
    net.put([4, 5, 6, 6], "Conv", net.weight(ints((5, 3, 3, 3)), 2**-8))
    convolved = net.x
    net.pair()
    net.put([4, 5, 1, 1], "GlobalAveragePool")
    net.put([4, 5], "Flatten")
    model = declare(net.finished(), {convolved: [1, 5, 6, 6], "y": [1, 5]})
    graph = loaded(model, tmp_path, "model")
    assert run(graph, net.feed())[0].shape == (4, 5)
    exported = tmp_path / "exported.onnx"
    qb.save(graph, exported)
    np.testing.assert_array_equal(runtime(exported, net.feed()), runtime(model, net.feed()))
    shape = onnx.load(exported).graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_value or d.dim_param for d in shape] == [batch, 5]
    (note,) = stale_notes(graph)
    assert "and so are 1 more" in note


@pytest.mark.relax
def test_tvm_computes_what_the_operators_say(tmp_path: Path) -> None:
    net = Net(17, (4, 3, 8, 8), ["n", 3, 8, 8])
    net.put([4, 5, 6, 6], "Conv", net.weight(ints((5, 3, 3, 3)), 2**-8))
    net.put([4, 180], "Reshape", net.numbers([0, -1]))
    model = declare(net.finished(), {net.x: [1, 180], "y": [1, 180]})
    graph = loaded(model, tmp_path, "model")
    made = qb.compile(graph, kernels="reference").run(net.feed())
    np.testing.assert_array_equal(made[graph.output_names[0]], run(graph, net.feed())[0])


@pytest.mark.parametrize("through", ["Shape", "Size"])
def test_shapes_that_are_read_are_those_computed(through: str) -> None:
    b = Builder(17)
    x = b.qdq(b.input("x", [2, 6]), 2**-4, 120)
    permuted = b.op("Transpose", x, perm=[1, 0])
    target = b.op(through, permuted)
    if through == "Size":
        target = b.op("Unsqueeze", target, b.init(np.array([0])))
    b.output(b.op("Reshape", x, target))
    graph = canonical(declare(b.model(), {permuted: [2, 7]}))
    (y,) = run(graph, {"x": np.ones((2, 6), np.float32)})
    assert y.shape == ((6, 2) if through == "Shape" else (12,))


def test_softmax_of_several_axes_normalizes_those_that_are_there() -> None:
    """Before opset 13; axes of extent 1 make no difference, but the file lies about extents."""
    b = Builder(11)
    x = b.op("Relu", b.input("x", [2, 3, 4]))
    b.output(b.op("Softmax", x, axis=1))
    data = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    (y,) = run(canonical(declare(b.model(), {x: [2, 1, 4]})), {"x": data})
    np.testing.assert_allclose(y.sum(axis=(1, 2)), 1, rtol=1e-6)  # a sum of 12 rounded floats


@pytest.mark.parametrize("declared", ["value_info", "output"])
def test_another_element_type_is_told_inside_and_refused_of_outputs(
    declared: str, tmp_path: Path
) -> None:
    """ModelOpt's files of half floats have the types of before, which TensorRT does not look at."""
    b = Builder(17)
    x = b.op("Relu", b.input("x", [2]))
    b.output(b.op("Neg", x))
    model = b.model()
    name = x if declared == "value_info" else model.graph.output[0].name
    del model.graph.output[0 if declared == "output" else 1 :]
    getattr(model.graph, declared).append(
        helper.make_tensor_value_info(name, TensorProto.INT64, [2])
    )
    feed = {"x": np.array([-1, 2], np.float32)}
    assert runtime(model, feed) is None
    if declared == "output":
        with pytest.raises(InvalidModelError, match="another element type"):
            load(model)
        return
    graph = loaded(model, tmp_path, "model")
    (note,) = stale_notes(graph)
    assert "declared int64, and its operators make float32" in note
    qb.save(graph, tmp_path / "again.onnx")
    np.testing.assert_array_equal(runtime(tmp_path / "again.onnx", feed), [0, -2])


def test_what_cannot_be_is_refused_whatever_is_declared() -> None:
    b = Builder(17)
    x = b.op("Reshape", b.input("x", [2, 6]), b.init(np.array([5, 2])))
    b.output(b.op("Relu", x))
    with pytest.raises(InvalidModelError, match="12 elements"):
        canonical_file(declare(b.model(), {x: [5, 2]}))


def canonical_file(model: onnx.ModelProto) -> Graph:
    """Returns what ``qb.load`` makes of a model, checks included."""
    from qdqbridge.core.graph.edit import verify

    graph = load(model)
    verify(graph)
    return graph


# ---- what is known at run time only -----------------------------------------------------------


def run_time_target(shape: list[Any], declared: list[Any] | None) -> onnx.ModelProto:
    """Softmax and ReduceMean of the last axis behind a Reshape whose target is an input."""
    b = Builder(17)
    reshaped = b.op("Reshape", b.qdq(b.input("x", [4, 6]), 2**-4, 120), target(b, shape))
    soft = b.op("Softmax", reshaped, axis=-1)
    b.output(b.qdq(b.op("ReduceMean", soft, axes=[-1]), 2**-8))
    return declare(b.model(), {} if declared is None else {reshaped: declared})


def target(b: Builder, shape: list[Any]) -> str:
    return b.input("t", shape, TensorProto.INT64)


@pytest.mark.parametrize("length", [3, "k"])
@pytest.mark.parametrize("declared", [[4, 3, 2], [4, 6], [2, 3, 4], None])
def test_a_wrong_hint_makes_no_wrong_result(
    length: int | str, declared: list[int] | None, tmp_path: Path
) -> None:
    model = run_time_target([length], declared)
    feed: dict[str, Array] = {
        "x": np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32),
        "t": np.array([2, 3, 4]),
    }
    want = runtime(run_time_target([length], None), feed)
    graph = loaded(model, tmp_path, "model")
    np.testing.assert_array_equal(run(graph, feed)[0], want)
    qb.save(graph, tmp_path / "exported.onnx")
    np.testing.assert_array_equal(runtime(tmp_path / "exported.onnx", feed), want)


def branch(name: str, op_type: str, x: str, shape: list[Any]) -> GraphProto:
    nodes = [
        helper.make_node(op_type, [x], [f"{name}_t"]),
        helper.make_node("Transpose", [f"{name}_t"], [name], perm=[1, 0]),
    ]
    inside = [helper.make_tensor_value_info(f"{name}_t", FLOAT, [7, 7])]
    output = helper.make_tensor_value_info(name, FLOAT, shape)
    return helper.make_graph(nodes, name, [], [output], value_info=inside)


def test_bodies_are_carried_without_declared_shapes(tmp_path: Path) -> None:
    graphs: list[Graph] = []
    for shape in (["a", 4], [1, 5, 2]):
        b = Builder(17)
        x = b.qdq(b.input("x", ["n", 3]), 2**-4, 120)
        chosen = b.op(
            "If",
            b.input("c", [], TensorProto.BOOL),
            then_branch=branch("then", "Relu", x, shape),
            else_branch=branch("else", "Neg", x, shape),
        )
        b.output(b.op("Flatten", chosen))
        graphs.append(loaded(b.model(), tmp_path, "model"))
    assert len({graph.digest for graph in graphs}) == 1
    feed = {"x": np.ones((4, 3), np.float32), "c": np.array(True)}
    assert run(graphs[1], feed)[0].shape == (3, 4)
    qb.save(graphs[1], tmp_path / "exported.onnx")
    made = runtime(tmp_path / "exported.onnx", feed)
    assert made is not None
    assert made.shape == (3, 4)


# ---- names of open extents --------------------------------------------------------------------


def test_open_extents_keep_their_names() -> None:
    b = Builder(17)
    x = b.input("x", ["n", 8, 4, 4])
    rows = b.op("Reshape", x, b.init(np.array([-1, 4])))
    both = b.op("Concat", rows, rows, axis=0)
    back = b.op("Reshape", both, b.init(np.array([-1, 64, 4])))
    b.output(back)
    shapes = [node.output.type.shape for node in load(b.model()).nodes]
    assert shapes == [("(n*32)", 4), ("(n*64)", 4), ("n", 64, 4)]


def test_a_mean_of_unknown_rank_is_written_as_it_is(tmp_path: Path) -> None:
    """Its axes were computed from the rank of a result of unknown shape."""
    b = Builder(18)
    x = b.qdq(b.input("x", [1, 8, 6, 6]), 2**-4, 120)
    axes = b.op("Range", *(b.init(np.int64(i)) for i in (2, 4, 1)))
    b.output(b.qdq(b.op("ReduceMean", x, axes), 2**-4, 120))
    graph = loaded(b.model(), tmp_path, "model")
    assert ops(graph) == ["quantize", "GlobalAveragePool", "dequantize"]
    qb.save(graph, tmp_path / "exported.onnx")
    feed = {"x": np.random.default_rng(0).normal(size=(1, 8, 6, 6)).astype(np.float32)}
    made = runtime(tmp_path / "exported.onnx", feed)
    np.testing.assert_array_equal(made, runtime(b.model(), feed))
    assert made is not None
    assert made.shape == (1, 8, 1, 1)
