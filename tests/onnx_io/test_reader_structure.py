"""Files as producers write them: order, functions, branches, opaque nodes, external data."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.onnx_io.reading.reader import read
from tests.onnx_io.lowering_cases import ort_run
from tests.onnx_models import (
    Array,
    Builder,
    canonical,
    conv_input,
    conv_model,
    ints,
    load,
    ops,
    run,
)

SCALE = 2**-5


def info(
    name: str, elem: int = TensorProto.FLOAT, shape: list[int] | None = None
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


# ---- order and names --------------------------------------------------------------------------


def test_nodes_in_any_order() -> None:
    expected = canonical(conv_model()).digest
    for seed in range(5):
        model = conv_model()
        nodes = list(model.graph.node)
        random.Random(seed).shuffle(nodes)
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        assert canonical(model).digest == expected


def test_names_and_metadata_are_provenance() -> None:
    model = conv_model()
    model.metadata_props.add(key="author", value="somebody")
    (conv,) = [n for n in model.graph.node if n.op_type == "Conv"]
    conv.name = "stem/conv"
    conv.metadata_props.add(key="layer", value="7")
    conv.output[0], old = "stem/conv:0", conv.output[0]
    for node in model.graph.node:
        node.input[:] = ["stem/conv:0" if name == old else name for name in node.input]
    model.graph.name = "my net"
    g = canonical(model)
    assert g.digest == canonical(conv_model()).digest
    assert (g.name, g.metadata) == ("my net", {"author": "somebody"})
    (node,) = [n for n in g.nodes if n.op.name == "Conv"]
    assert node.origin.nodes[0] == "stem/conv"
    assert dict(node.origin.metadata) == {"layer": "7"}
    assert node.origin.variant == "Conv"
    weight = node.operand(1)
    assert weight.name in {t.name for t in model.graph.initializer}


def test_interface_names_are_the_file_s() -> None:
    b = Builder()
    x = b.input("in/x:0", ["batch", 3])
    y = b.qdq(x, SCALE)
    b.output(y)
    b.output(b.op("Identity", y))
    model = b.model()
    g = canonical(model)
    assert [v.name for v in g.inputs] == ["in/x:0"]
    assert g.output_names == [o.name for o in model.graph.output]
    assert g.inputs[0].type.shape == ("batch", 3)


def test_nodes_without_names_are_called_by_their_result() -> None:
    model = conv_model()
    for node in model.graph.node:
        node.ClearField("name")
    g = canonical(model)
    assert g.digest == canonical(conv_model()).digest
    assert all(node.name for node in g.nodes)


def test_unread_nodes_and_initializers_are_dropped() -> None:
    model = conv_model()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unread"))
    model.graph.node.append(helper.make_node("Exp", ["x"], ["unread_result"]))
    assert canonical(model).digest == canonical(conv_model()).digest


def test_an_output_may_be_an_input_or_a_constant() -> None:
    b = Builder()
    x, c = b.input("x", [2]), b.init(np.array([5, 6], np.float32))
    b.output(x, [2])
    b.output(c, [2])
    got = run(canonical(b.model()), {"x": np.array([1, 2], np.float32)})
    assert [a.tolist() for a in got] == [[1, 2], [5, 6]]


# ---- functions --------------------------------------------------------------------------------


def function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function(
        "local", name, ["x", "s", "z"], ["y"], nodes,
        [helper.make_opsetid("", 13), helper.make_opsetid("local", 1)],
    )  # fmt: skip


def pair_function() -> onnx.FunctionProto:
    return function(
        "FakeQuant",
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
    )


def calling(name: str, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    b = Builder()
    b.functions = list(functions)
    params = [b.init(np.float32(SCALE)), b.init(np.uint8(7))]
    x = b.op(name, b.input("x", [4]), *params, domain="local")
    b.output(b.op(name, b.op("Exp", x), *params, domain="local"))
    return b.model()


@pytest.mark.idiom("L8")
def test_model_local_functions_are_their_bodies() -> None:
    g = canonical(calling("FakeQuant", pair_function()))
    assert ops(g) == ["quantize", "Exp", "dequantize"]
    outer = function(
        "Outer", [helper.make_node("FakeQuant", ["x", "s", "z"], ["y"], domain="local")]
    )
    nested = canonical(calling("Outer", outer, pair_function()))
    assert nested.digest == g.digest


# ---- If ---------------------------------------------------------------------------------------


def branch(scale: float, name: str, shared: str = "x") -> onnx.GraphProto:
    nodes = [
        helper.make_node("QuantizeLinear", [shared, "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    values = [
        numpy_helper.from_array(np.asarray(scale, np.float32), "s"),
        numpy_helper.from_array(np.zeros((), np.uint8), "z"),
    ]
    return helper.make_graph(nodes, name, [], [info("y")], values)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("how", ["initializer", "Constant"])
def test_an_if_with_a_constant_condition_is_its_branch(condition: bool, how: str) -> None:
    b = Builder()
    x = b.input("x", [4])
    if how == "initializer":
        c = b.init(np.bool_(condition))
    else:
        c = b.op("Constant", value=numpy_helper.from_array(np.asarray(condition)))
    b.output(b.op("If", c, then_branch=branch(0.5, "t"), else_branch=branch(0.25, "e")))
    g = canonical(b.model())
    plain = Builder()
    plain.output(plain.qdq(plain.input("x", [4]), 0.5 if condition else 0.25))
    assert g.digest == canonical(plain.model()).digest
    assert x


def test_an_if_whose_condition_shapes_decide_is_its_branch(tmp_path: Path) -> None:
    """As PyTorch exports squeeze: the branch depends on an extent, which the file knows."""
    b = Builder(17)
    x = b.input("x", [4, 2])
    rows = b.op("Gather", b.op("Shape", x), b.init(np.array(0)))
    y = [info("y")]
    split = helper.make_node("Split", [x], ["a", "b"], axis=0)
    then = helper.make_graph([split, helper.make_node("Neg", ["b"], ["y"])], "then", [], y)
    other = helper.make_graph([helper.make_node("Identity", [x], ["y"])], "else", [], y)
    condition = b.op("Equal", rows, b.init(np.array(4)))
    b.output(b.op("If", condition, then_branch=then, else_branch=other), None)
    graph = canonical(b.model())
    assert [node.op.name for node in graph.nodes] == ["Split", "Neg"]
    qb.save(graph, tmp_path / "saved.onnx")
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    (found,) = qb.evaluate(graph, {"x": data}).values()
    np.testing.assert_array_equal(found, -data[2:])


def test_a_scan_of_data_of_any_rank_is_written_for_onnxruntime(tmp_path: Path) -> None:
    """Which wants to know the ranks of what the body gives."""
    b = Builder(17)
    row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("s", "e")]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t", "y")]
    steps = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    body = helper.make_graph(steps, "body", row, given)
    start = b.init(np.zeros(2, np.float32))
    b.op("Scan", start, b.input("x", None), outputs=2, body=body, num_scan_inputs=1)
    b.output(f"{b.nodes[-1].output[1]}", None)
    data = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    qb.save(canonical(b.model()), tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    np.testing.assert_array_equal(ort_run(saved, data)[0], ort_run(b.model(), data)[0])


def test_nested_ifs_and_clashing_names() -> None:
    inner = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch(0.5, "t"),
                          else_branch=branch(0.25, "e"))], "outer", [], [info("y")]
    )  # fmt: skip
    b = Builder()
    b.input("x", [4])
    b.init(np.bool_(True), "c")
    b.init(np.float32(3), "s")  # the branches have an "s" of their own
    first = b.op("If", "c", then_branch=inner, else_branch=branch(0.125, "e2"))
    b.output(b.op("Mul", first, "s"))
    (y,) = run(canonical(b.model()), {"x": np.array([0.2, 0.3, 0.8, 9], np.float32)})
    assert y.tolist() == [0, 1.5, 3, 27]


def dynamic_if() -> onnx.ModelProto:
    b = Builder()
    x = b.qdq(b.input("x", [4]), SCALE)
    c = b.input("c", [], TensorProto.BOOL)

    def body(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, [x], ["y"])], op, [], [info("y", shape=[4])])

    y = b.op("If", c, then_branch=body("Exp"), else_branch=body("Neg"))
    b.output(b.qdq(y, SCALE, 100))
    return b.model()


def test_a_dynamic_if_is_carried_with_what_it_captures() -> None:
    g = canonical(dynamic_if())
    assert ops(g) == ["quantize", "dequantize", "If", "quantize", "dequantize"]
    (node,) = [n for n in g.nodes if n.op.name == "If"]
    assert len(node.inputs) == 2
    x = np.array([0, 1, 2, 0.5], np.float32)
    (negative,) = run(g, {"x": x, "c": np.asarray(False)})
    assert negative.tolist() == [0, -1, -2, -0.5]
    (positive,) = run(g, {"x": x, "c": np.asarray(True)})
    # Rounded to a step.
    np.testing.assert_allclose(positive, np.minimum(np.exp(x), 155 * SCALE), atol=SCALE / 2)


# ---- opaque nodes ----------------------------------------------------------------------------


def test_loops_are_carried() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["acc", "x"], ["acc_out"]),
         helper.make_node("Identity", ["cond"], ["cond_out"])],
        "body",
        [info("i", TensorProto.INT64, []), info("cond", TensorProto.BOOL, []),
         info("acc", shape=[3])],
        [info("cond_out", TensorProto.BOOL, []), info("acc_out", shape=[3])],
    )  # fmt: skip
    b = Builder()
    x = b.input("x", [3])
    start = b.qdq(x, SCALE)
    y = b.op("Loop", b.init(np.int64(4)), b.init(np.bool_(True)), start, body=body)
    b.output(y)
    g = canonical(b.model())
    assert ops(g) == ["quantize", "dequantize", "Loop"]
    (y_data,) = run(g, {"x": np.array([1, 2, 0], np.float32)})
    assert y_data.tolist() == [5, 10, 0]


@pytest.mark.idiom("G12")
def test_top_k_and_cumsum() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [6]), SCALE)
    k = b.op("TopK", x, b.init(np.array([2], np.int64)), outputs=2)
    b.output(b.op("CumSum", k, b.init(np.int64(0))))
    b.output(f"{k}:1", None, TensorProto.INT64)
    g = canonical(b.model())
    sums, indices = run(g, {"x": np.array([1, 5, 2, 0, 4, 3], np.float32)})
    assert sums.tolist() == [5, 9]
    assert indices.tolist() == [1, 4]


def test_non_max_suppression() -> None:
    b = Builder()
    boxes = b.qdq(b.input("boxes", [1, 3, 4]), SCALE)
    scores = b.qdq(b.input("scores", [1, 1, 3]), SCALE)
    limits = [
        b.init(np.array([2], np.int64)),
        b.init(np.array([0.5], np.float32)),
        b.init(np.array([0.1], np.float32)),
    ]
    b.output(b.op("NonMaxSuppression", boxes, scores, *limits), None, TensorProto.INT64)
    g = canonical(b.model())
    data = {
        "boxes": np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3]]], np.float32),
        "scores": np.array([[[0.5, 0.75, 0.25]]], np.float32),
    }
    assert run(g, data)[0].tolist() == [[0, 0, 1], [0, 0, 2]]


def test_foreign_nodes_do_not_depend_on_names() -> None:
    digests: set[str] = set()
    for suffix in ("", "_renamed"):
        data = dynamic_if().SerializeToString()
        model = onnx.ModelProto.FromString(data)
        if suffix:
            for node in model.graph.node:
                node.name += suffix
                for attribute in node.attribute:
                    if attribute.HasField("g"):
                        attribute.g.name += suffix
                        for inner in attribute.g.node:
                            inner.output[0] += suffix
                        attribute.g.output[0].name += suffix
        digests.add(canonical(model).digest)
    assert len(digests) == 1


# ---- external data ----------------------------------------------------------------------------


def save_external(model: onnx.ModelProto, folder: Path, location: str = "weights.bin") -> Path:
    path = folder / "external.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location=location, size_threshold=0)
    return path


def test_external_data_gives_the_same_graph(tmp_path: Path) -> None:
    path = save_external(conv_model(), tmp_path)
    from qdqbridge.core.canonical import canonicalize

    g = canonicalize(read(path))
    assert g.digest == canonical(conv_model()).digest
    data = conv_input()
    np.testing.assert_array_equal(run(g, data)[0], run(canonical(conv_model()), data)[0])


def mapped(array: Array) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return "mmap" in type(base).__name__


def test_external_data_is_mapped_not_copied(tmp_path: Path) -> None:
    from qdqbridge.core.canonical import canonicalize

    g = canonicalize(read(save_external(conv_model(), tmp_path)))
    (conv,) = [n for n in g.nodes if n.op.name == "Conv"]
    weight = conv.operand(1).constant
    assert weight is not None
    assert mapped(weight.numpy())
    np.testing.assert_array_equal(weight.numpy(), ints((4, 3, 3, 3)))


def test_transposed_external_weights_stay_mapped(tmp_path: Path) -> None:
    from qdqbridge.core.canonical import canonicalize

    b = Builder()
    x = b.qdq(b.input("x", [1, 8]), SCALE)
    b.output(b.qdq(b.op("MatMul", x, b.weight(ints((8, 4)), 2**-6)), 0.5, 0, np.int8))
    g = canonicalize(read(save_external(b.model(), tmp_path)))
    (dense,) = [n for n in g.nodes if n.op.name == "Dense"]
    weight = dense.operand(1).constant
    assert weight is not None
    assert mapped(weight.numpy())
    np.testing.assert_array_equal(weight.numpy(), ints((8, 4)).T)


def test_reading_does_not_touch_large_external_data(tmp_path: Path) -> None:
    """A sparse file of 8 GiB is read in no time, because nobody looks at its elements."""
    rows = 1 << 21
    b = Builder()
    x = b.qdq(b.input("x", [1, 4096]), SCALE)
    w = b.dq("w", 2**-6, 0, np.int8)
    b.output(b.op("MatMul", x, w))
    model = b.model()
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.INT8)
    tensor.dims.extend([4096, rows])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="big.bin")
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(4096 * rows)
    g = canonical(model, tmp_path)
    assert ops(g) == ["quantize", "Dense"]
    assert g.nodes[-1].operand(1).type.shape == (rows, 4096)


def test_symbolic_shapes_survive() -> None:
    b = Builder()
    x = b.input("x", ["n", 3, "h", "w"])
    b.output(b.qdq(b.op("Conv", b.qdq(x, SCALE), b.weight(ints((4, 3, 3, 3)), 2**-7)), 0.5))
    g = canonical(b.model())
    (conv,) = [n for n in g.nodes if n.op.name == "Conv"]
    shape = conv.output.type.shape
    assert shape is not None
    assert (shape[0], shape[1]) == ("n", 4)
    (y,) = run(g, {"x": np.zeros((2, 3, 5, 7), np.float32)})
    assert y.shape == (2, 4, 3, 5)


def test_shared_weights_are_one_constant() -> None:
    b = Builder()
    x = b.qdq(b.input("x", [1, 4, 5, 5]), SCALE)
    w = b.weight(ints((4, 4, 1, 1)), 2**-6)
    y = b.qdq(b.op("Conv", x, w), SCALE, 3)
    b.output(b.qdq(b.op("Conv", y, w), SCALE, 3))
    g = canonical(b.model())
    first, second = (n.operand(1) for n in g.nodes if n.op.name == "Conv")
    assert first.constant is second.constant
    assert load(b.model()).opset == 13
    assert first.quant is not None
    assert first.quant.params == per_tensor(first.type.dtype, 2**-6)


def test_an_if_around_a_recurrent_layer_is_decided_by_extents(tmp_path):
    """An LSTM whose steps come first stands as it is: nobody has to lower it first."""
    numbers, info = np.random.default_rng(0), helper.make_tensor_value_info
    held = {
        "w": numbers.normal(size=(1, 8, 3)).astype(np.float32),
        "r": numbers.normal(size=(1, 8, 2)).astype(np.float32), "two": np.array(2),
    }  # fmt: skip
    then = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=2)], "t", [],
        [info("h", TensorProto.FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "e", [],
        [info("same", TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["last"]),
        helper.make_node("Greater", ["last", "two"], ["wide"]),
        helper.make_node("If", ["wide"], ["y"], then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [4, 1, 3])],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    read = qb.load(tmp_path / "m.onnx")
    assert [node.op.name for node in read.nodes] == ["LSTM"]
    assert read.outputs[0].type.shape == (1, 1, 2)
