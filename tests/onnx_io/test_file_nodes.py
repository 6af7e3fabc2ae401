"""Unchanged files that store no quantized activation are saved with their own nodes."""

from __future__ import annotations

from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.core.graph.edit import rewire
from qdqbridge.options import AnyProfileName
from tests.onnx_models import Array, Builder

LEVELS = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
WIDTH = 64


def norm_of_sum(*, identity: bool, dtype: type[np.floating] = np.float16) -> onnx.ModelProto:
    """A sum, its norm and a product.

    Of half floats onnxruntime rounds the norm's result where its scale comes from an Identity or a
    Shape reads the result, and else it does not.
    """
    kind = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.FLOAT
    rng, b = np.random.default_rng(0), Builder(17)
    weight = lambda *shape: b.init(rng.normal(0, 0.3, shape).astype(dtype))  # noqa: E731
    x, y = (b.input(name, ["n", WIDTH], kind) for name in "xy")
    scale, bias = weight(WIDTH), weight(WIDTH)
    if identity:
        scale = b.op("Identity", scale)
    made = b.op("LayerNormalization", b.op("Add", y, x), scale, bias, axis=-1)
    b.output(b.op("Add", made, b.op("MatMul", made, weight(WIDTH, WIDTH))), ["n", WIDTH], kind)
    return b.model()


def fed() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(0, 1, (50, WIDTH)).astype(np.float16) for name in "xy"}


def run(path: Path, level: ort.GraphOptimizationLevel) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    return np.asarray(ort.InferenceSession(str(path), options).run(None, fed())[0])


def written(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def read(model: onnx.ModelProto, folder: Path) -> tuple[Path, qb.Graph]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path, qb.load(path)


def test_an_identity_decides_how_onnxruntime_rounds(tmp_path: Path) -> None:
    """The reason for all this: a file without the Identity gives other bits."""
    results: list[Array] = []
    for identity in (True, False):
        path = tmp_path / f"{identity}.onnx"
        onnx.save(norm_of_sum(identity=identity), path)
        results.append(run(path, LEVELS[0]))
    assert (results[0] != results[1]).any()


def test_what_nobody_changed_gives_the_same_bits(tmp_path: Path) -> None:
    path, graph = read(norm_of_sum(identity=True), tmp_path)
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved)
    assert written(saved) == written(path)
    for level in LEVELS:
        np.testing.assert_array_equal(run(saved, level), run(path, level))
    again = qb.load(saved)
    assert again.digest == graph.digest
    qb.save(again, saved, overwrite=True)
    assert written(saved) == written(path)


def test_names_and_metadata_of_nodes_are_kept(tmp_path: Path) -> None:
    model = norm_of_sum(identity=True)
    model.graph.node[0].name = "given"
    model.graph.node[0].metadata_props.add(key="who", value="me")
    path, graph = read(model, tmp_path)
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved)
    assert list(onnx.load(saved).graph.node) == list(onnx.load(path).graph.node)
    onnx.checker.check_model(str(saved), full_check=True)


def _other_constant(graph: qb.Graph) -> None:
    norm = next(node for node in graph.nodes if node.op.name == "LayerNormalization")
    rewire(norm, 2, norm.operand(1))


def _other_name(graph: qb.Graph) -> None:
    graph.inputs[0].name = "z"


def _other_inner_name(graph: qb.Graph) -> None:
    graph.nodes[0].output.name = "sum"


def _other_output(graph: qb.Graph) -> None:
    graph.outputs.append(graph.nodes[0].output)
    graph.output_names.append("total")


@pytest.mark.parametrize("change", [_other_constant, _other_name, _other_inner_name, _other_output])
def test_a_change_is_what_is_saved(change: object, tmp_path: Path) -> None:
    _, graph = read(norm_of_sum(identity=True), tmp_path)
    assert callable(change)
    change(graph)
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved)
    assert "Identity" not in written(saved)
    assert qb.load(saved).digest == graph.digest


def test_other_runtimes_opsets_and_readings_are_written_canonically(tmp_path: Path) -> None:
    path, graph = read(norm_of_sum(identity=True), tmp_path)
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved, profile="portable")
    assert "Identity" not in written(saved)
    qb.save(graph, saved, opset=21, overwrite=True)
    assert "Identity" not in written(saved)
    qb.save(qb.load(path, fuse=True), saved, overwrite=True)
    assert "Identity" not in written(saved)


def gelu_behind_a_constant(where: str) -> onnx.ModelProto:
    """A product, a Gelu in its five operators, and a Reshape that a constant describes."""
    rng, b = np.random.default_rng(0), Builder(17)
    x = b.input("x", ["n", WIDTH])
    weight = rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)
    if where == "node":
        b.nodes.append(onnx.helper.make_node(
            "Constant", [], ["w"], value=onnx.numpy_helper.from_array(weight)))  # fmt: skip
    else:
        b.init(weight, "w")
    y = b.op("MatMul", x, "w")
    number = lambda v: b.init(np.float32(v))  # noqa: E731
    inner = b.op("Add", b.op("Erf", b.op("Div", y, number(2**0.5))), number(1.0))
    y = b.op("Mul", b.op("Mul", y, inner), b.op("Identity", number(0.5)))
    b.output(b.op("Reshape", y, b.init(np.array([-1, WIDTH]))), ["n", WIDTH])
    return b.model()


@pytest.mark.parametrize("where", ["initializer", "node"])
def test_floats_are_kept_as_well_and_a_constant_node_is_an_initializer(
    where: str, tmp_path: Path
) -> None:
    path, graph = read(gelu_behind_a_constant(where), tmp_path)
    assert len(graph.nodes) < len(written(path))
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved)
    assert written(saved) == [op for op in written(path) if op != "Constant"]
    x = np.random.default_rng(1).normal(0, 1, (50, WIDTH)).astype(np.float32)
    sessions = [ort.InferenceSession(file, providers=["CPUExecutionProvider"])
                for file in (path, saved)]  # fmt: skip
    first, second = (np.asarray(session.run(None, {"x": x})[0]) for session in sessions)
    np.testing.assert_array_equal(first, second)
    assert qb.load(saved).digest == graph.digest


def test_a_copy_is_saved_as_its_graph_is(tmp_path: Path) -> None:
    """With the file's nodes, until one of both is changed."""
    path, graph = read(norm_of_sum(identity=True), tmp_path)
    again = tmp_path / "again.onnx"
    qb.save(copy(graph), again)
    assert written(again) == written(path)
    changed = deepcopy(graph)
    node = changed.nodes[0]
    rewire(node, 0, node.operand(1))
    for each in (changed, copy(changed)):
        qb.save(each, again, overwrite=True)
        assert written(again) != written(path)
    qb.save(graph, again, overwrite=True)
    assert written(again) == written(path)


def test_what_nodes_hold_is_not_held_twice(tmp_path: Path) -> None:
    """A branch with more than 64 MiB of weights is written from the graph."""
    rows = (1 << 24) // WIDTH + 1
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["held"], ["y"])], "body", [],
        [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, WIDTH])],
        [onnx.numpy_helper.from_array(np.zeros((rows, WIDTH), np.float32), "held")],
    )  # fmt: skip
    small = onnx.helper.make_graph(
        [onnx.helper.make_node("Expand", ["zero", "extents"], ["y"])], "small", [],
        [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, WIDTH])],
    )  # fmt: skip
    b = Builder(17)
    c = b.input("c", [], TensorProto.BOOL)
    b.init(np.zeros(1, np.float32), "zero")
    b.init(np.array([rows, WIDTH]), "extents")
    y = b.op("If", c, then_branch=body, else_branch=small)
    b.output(b.op("Identity", y), [rows, WIDTH])
    _, graph = read(b.model(), tmp_path)
    assert graph.as_read is None


def test_both_names_of_onnx_s_domain_are_one(tmp_path: Path) -> None:
    b = Builder(17)
    x = b.input("x", ["n", WIDTH], TensorProto.FLOAT16)
    b.output(b.op("Sqrt", b.op("Abs", x)), ["n", WIDTH], TensorProto.FLOAT16)
    model = b.model()
    model.graph.node[0].domain = "ai.onnx"
    onnx.save(model, tmp_path / "model.onnx")
    saved = tmp_path / "saved.onnx"
    qb.save(qb.load(tmp_path / "model.onnx"), saved)
    onnx.checker.check_model(saved)
    session = ort.InferenceSession(saved, providers=["CPUExecutionProvider"])
    half = fed()["x"].astype(np.float16)
    (got,) = session.run(None, {"x": half})
    np.testing.assert_array_equal(got, np.sqrt(np.abs(half)))


def test_a_copy_is_another_graph(tmp_path: Path) -> None:
    from qdqbridge.core.graph.copying import copied

    _, graph = read(norm_of_sum(identity=True), tmp_path)
    saved = tmp_path / "saved.onnx"
    qb.save(copied(graph).graph, saved)
    assert "Identity" not in written(saved)


def test_nodes_of_one_name_which_onnxruntime_refuses_are_written_canonically(
    tmp_path: Path,
) -> None:
    model = norm_of_sum(identity=True)
    for node in model.graph.node[:2]:
        node.name = "twice"
    _, graph = read(model, tmp_path)
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved)
    assert run(saved, LEVELS[1]).shape == (50, WIDTH)


def _outside(array: Array, folder: Path) -> TensorProto:
    """Returns a tensor whose bytes lie in a file of their own."""
    tensor = onnx.numpy_helper.from_array(array)
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    return tensor


@pytest.mark.parametrize("profile", ["ort", "portable"])
@pytest.mark.parametrize("where", ["body", "attribute"])
def test_data_outside_of_the_file_comes_along(
    where: str, profile: AnyProfileName, tmp_path: Path
) -> None:
    weight = np.arange(WIDTH, dtype=np.float32) if where == "body" else np.full(1, 3, np.float32)
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    tensor, b = _outside(weight, source), Builder(17)
    x = b.input("x", ["n", WIDTH])
    if where == "body":
        nodes = [
            onnx.helper.make_node("Constant", [], ["held"], value=tensor),
            onnx.helper.make_node("Mul", [x, "held"], ["made"]),
        ]
        result = onnx.helper.make_tensor_value_info("made", TensorProto.FLOAT, None)
        then = onnx.helper.make_graph(nodes, "then", [], [result])
        other = onnx.helper.make_graph(
            [onnx.helper.make_node("Neg", [x], ["made"])], "other", [], [result]
        )
        y = b.op("If", b.input("c", [], TensorProto.BOOL), then_branch=then, else_branch=other)
    else:
        shape = b.op("Shape", x)
        y = b.op("Add", b.op("ConstantOfShape", shape, value=tensor), x)
    b.output(y, ["n", WIDTH])
    onnx.save(b.model(), source / "model.onnx")
    graph = qb.load(source / "model.onnx")
    qb.save(graph, target / "saved.onnx", profile=profile)
    rows = np.random.default_rng(1).normal(0, 1, (5, WIDTH)).astype(np.float32)
    feeds = {"x": rows, "c": np.array(True)} if where == "body" else {"x": rows}
    session = ort.InferenceSession(target / "saved.onnx", providers=["CPUExecutionProvider"])
    want = rows * weight if where == "body" else rows + weight
    np.testing.assert_array_equal(np.asarray(session.run(None, feeds)[0]), want)
    np.testing.assert_array_equal(qb.evaluate(graph, feeds)[graph.output_names[0]], want)
    assert qb.load(target / "saved.onnx").digest == graph.digest


@pytest.mark.parametrize("profile", ["ort", "portable"])
def test_text_of_constant_nodes(profile: AnyProfileName, tmp_path: Path) -> None:
    b = Builder(17)
    texts: dict[str, dict[str, Any]] = {
        "one": {"value_string": "hé"},
        "two": {"value_strings": ["a", "b"]},
    }
    for name, given in texts.items():
        b.nodes.append(onnx.helper.make_node("Constant", [], [name], **given))
        b.output(b.op("Identity", name), [2] if name == "two" else [], TensorProto.STRING)
    x = b.input("x", ["n", WIDTH])
    b.output(b.op("Neg", x), ["n", WIDTH])
    path, graph = read(b.model(), tmp_path)
    saved = tmp_path / "saved.onnx"
    qb.save(graph, saved, profile=profile)
    feeds = {"x": np.zeros((1, WIDTH), np.float32)}
    for file in (path, saved):
        session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        one, two = (np.asarray(each) for each in session.run(None, feeds)[:2])
        assert (one.item(), list(two)) == ("hé", ["a", "b"])
    results = list(qb.evaluate(graph, feeds).values())
    assert (results[0].item(), list(results[1])) == ("hé", ["a", "b"])
    assert qb.load(saved).digest == graph.digest
