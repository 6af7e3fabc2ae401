"""Names, metadata, opsets, and the types that cross the boundary of a written graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Node, Origin, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import AxisAttrs
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.errors import InvalidModelError, UnsupportedTargetError
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.targets.profiles.export import export, exported_proto
from tests.onnx_io.writer_models import CNN, Net, run, samples
from tests.onnx_models import Builder, canonical

CODES = per_tensor(DType.UINT8, np.float32(0.5), 3)


def round_trip(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Writes the canonical form; checks validity, digest and bits; returns the written model."""
    source, path = folder / "source.onnx", folder / "written.onnx"
    onnx.save(model, source)
    graph = canonicalize(read(source))
    export(graph, path)
    onnx.checker.check_model(str(path), full_check=True)
    assert canonicalize(read(path)).digest == graph.digest
    feeds = samples(model)
    for expected, actual in zip(run(source, feeds), run(path, feeds), strict=True):
        np.testing.assert_array_equal(expected, actual)
    return onnx.load(path)


def conv_relu(net: Net) -> str:
    y = net.op("Conv", net.fake("x", 0.02, 120), net.weight(4, 4, 3, 3))
    return net.fake(net.op("Relu", y), 0.05, 128)


def test_interface_and_symbolic_extents(tmp_path: Path) -> None:
    net = Net()
    model = net.model([conv_relu(net)], CNN)
    written = round_trip(model, tmp_path)
    assert [v.name for v in written.graph.input] == ["x"]
    assert [v.name for v in written.graph.output] == [v.name for v in model.graph.output]
    assert written.graph.input[0].type == model.graph.input[0].type


def test_names_of_the_file_come_back(tmp_path: Path) -> None:
    net = Net()
    model = net.model([conv_relu(net)], CNN)
    written = round_trip(model, tmp_path)
    kept = {node.op_type: node.name for node in model.graph.node if node.op_type == "Conv"}
    assert {n.op_type: n.name for n in written.graph.node if n.op_type == "Conv"} == kept
    quantized = {n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert quantized <= {name for node in written.graph.node for name in node.output}
    names = [node.name for node in written.graph.node]
    assert len(set(names)) == len(names)


def test_metadata_is_kept(tmp_path: Path) -> None:
    net = Net()
    model = net.model([conv_relu(net)], CNN)
    model.metadata_props.add(key="author", value="nobody")
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    conv.metadata_props.add(key="layer", value="stem")
    written = round_trip(model, tmp_path)
    assert [(p.key, p.value) for p in written.metadata_props] == [("author", "nobody")]
    conv = next(node for node in written.graph.node if node.op_type == "Conv")
    assert [(p.key, p.value) for p in conv.metadata_props] == [("layer", "stem")]
    assert written.ir_version >= 10


def test_every_consumer_has_its_own_dequantize(tmp_path: Path) -> None:
    net = Net()
    y = net.fake(net.op("Sigmoid", net.fake("x", 0.02, 120)), 1 / 256)
    written = round_trip(net.model([net.fake(net.op("Mul", y, y), 0.01)], CNN), tmp_path)
    mul = next(node for node in written.graph.node if node.op_type == "Mul")
    assert len(set(mul.input)) == 2


def test_parameters_are_written_once(tmp_path: Path) -> None:
    net = Net()
    y = net.fake(net.op("Transpose", net.fake("x", 0.02, 120), perm=[0, 2, 3, 1]), 0.02, 120)
    written = round_trip(net.model([y], CNN), tmp_path)
    assert len(written.graph.initializer) == 2
    assert all(len(tensor.dims) == 0 for tensor in written.graph.initializer)


def test_quantized_input_and_output(tmp_path: Path) -> None:
    net = Net()
    x = net.dq("x", 0.02, 120)
    y = net.q(net.op("Conv", x, net.weight(4, 4, 3, 3, axis=0)), 0.05, 128)
    u8 = TensorProto.UINT8
    written = round_trip(net.model([y], CNN, dtype=u8, output_dtype=u8), tmp_path)
    assert [n.op_type for n in written.graph.node] == [
        "DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear",
    ]  # fmt: skip


def test_outputs_that_are_one_value(tmp_path: Path) -> None:
    net = Net()
    y = conv_relu(net)
    model = net.model([y, net.op("Identity", y)], CNN)
    written = round_trip(model, tmp_path)
    assert [v.name for v in written.graph.output] == [v.name for v in model.graph.output]


def test_output_that_is_the_input(tmp_path: Path) -> None:
    net = Net()
    written = round_trip(net.model([net.op("Identity", "x")], CNN), tmp_path)
    assert [n.op_type for n in written.graph.node] == ["Identity"]


def test_output_that_is_a_constant(tmp_path: Path) -> None:
    net = Net()
    net.nodes.append(helper.make_node("Identity", [net.floats(3)], ["y"], "i"))
    round_trip(net.model(["y", conv_relu(net)], CNN), tmp_path)


def test_foreign_nodes_keep_their_version(tmp_path: Path) -> None:
    net = Net(opset=15)
    x = net.fake("x", 0.02, 120)
    y = net.op("LpNormalization", x, axis=1, p=2)
    written = round_trip(net.model([net.fake(y, 0.01, 128)], CNN), tmp_path)
    assert written.opset_import[0].version == 15
    assert "LpNormalization" in [n.op_type for n in written.graph.node]


def test_foreign_subgraph(tmp_path: Path) -> None:
    net = Net()
    x = net.fake("x", 0.02, 120)
    body = [helper.make_node(op, [x], ["t_0"]) for op in ("Neg", "Abs")]
    branches = [
        helper.make_graph([node], "b", [], [helper.make_tensor_value_info("t_0", 1, None)])
        for node in body
    ]
    flag = net.op("Cast", net.op("ReduceMax", "x", keepdims=0), to=TensorProto.BOOL)
    y = net.op("If", flag, then_branch=branches[0], else_branch=branches[1])
    net.nodes.append(helper.make_node("Relu", [y], ["t_1"], "r"))
    round_trip(net.model([net.op("Sigmoid", "t_1")], CNN), tmp_path)


def value_of(type_: QuantType | TensorType, name: str) -> Value:
    return Value(type_, name)


def concat(names: tuple[str, str, str], origin: str = "") -> Graph:
    """Two quantized inputs joined; the names are those of the inputs and of the result."""
    type_ = QuantType(CODES, (2,))
    a, b = value_of(type_, names[0]), value_of(type_, names[1])
    y = value_of(QuantType(CODES, (4,)), names[2])
    node = Node(BY_NAME["Concat"], AxisAttrs(0), [a, b], [y], Origin((origin,)))
    return Graph([a, b], [y], [names[2]], [node])


def test_a_name_that_stands_twice_among_the_outputs(tmp_path: Path) -> None:
    """A run gives it once, by its name; the file has it twice, as it had before."""
    b = Builder(17)
    y = b.qdq(b.input("x", [2, 3]), 0.1, 120)
    b.output(y)
    b.output("x", [2, 3])
    b.output(y)
    graph = canonical(b.model())
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    results = qb.evaluate(graph, {"x": x})
    assert list(results) == [y, "x"]
    path = tmp_path / "twice.onnx"
    qb.save(graph, path)
    assert [o.name for o in onnx.load(path).graph.output] == [y, "x", y]
    assert qb.load(path).digest == graph.digest
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = session.run(None, {"x": x})
    for array, name in zip(given, [y, "x", y], strict=True):
        assert np.array_equal(np.asarray(array), results[name])
    assert qb.compare(graph, path, {"x": x}).equal


def test_two_results_of_one_name_are_refused() -> None:
    b = Builder(17)
    y = b.qdq(b.input("x", [2, 3]), 0.1, 120)
    b.output(y)
    b.output("x", [2, 3])
    graph = canonical(b.model())
    graph.output_names[1] = y
    with pytest.raises(InvalidModelError, match="two outputs have the name"):
        verify(graph)


@pytest.mark.parametrize("name", ["a\x00b", "\x07\n", "ünï/códe::0", "x" * 5000, "y_scale"])
def test_weird_names(name: str) -> None:
    model = exported_proto(concat((name, f"{name}_float", f"{name}_scale"), origin=name))
    onnx.checker.check_model(model, full_check=True)
    assert [v.name for v in model.graph.input] == [name, f"{name}_float"]
    assert [v.name for v in model.graph.output] == [f"{name}_scale"]


def test_lone_surrogates_inside_are_replaced() -> None:
    graph = concat(("a", "b", "c"), origin="\ud800")
    onnx.checker.check_model(exported_proto(graph), full_check=True)


@pytest.mark.parametrize("names", [("a", "a", "c"), ("a", "b", "a"), ("", "b", "c")])
def test_ambiguous_interface_is_refused(names: tuple[str, str, str]) -> None:
    with pytest.raises(UnsupportedTargetError, match="are not unique"):
        exported_proto(concat(names))


def graph_of(op: str, source: QuantType | TensorType, result: QuantType | TensorType) -> Graph:
    x, y = value_of(source, "x"), value_of(result, "y")
    return Graph([x], [y], ["y"], [Node(BY_NAME[op], NO_ATTRIBUTES, [x], [y])])


@pytest.mark.parametrize(
    ("dtype", "opset"),
    [
        (DType.UINT8, 13), (DType.INT16, 21), (DType.UINT4, 21), (DType.INT2, 25),
        (DType.FLOAT8_E4M3FN, 21), (DType.FLOAT8_E5M2FNUZ, 21),
    ],
)  # fmt: skip
def test_opset_follows_the_storage_type(dtype: DType, opset: int) -> None:
    result = QuantType(per_tensor(dtype, np.float32(0.5)), (2,))
    model = exported_proto(graph_of("quantize", TensorType(DType.FLOAT32, (2,)), result))
    assert model.opset_import[0].version == opset
    onnx.checker.check_model(model, full_check=True)


def test_quantizing_to_int32_is_refused() -> None:
    result = QuantType(per_tensor(DType.INT32, np.float32(0.5)), (2,))
    with pytest.raises(UnsupportedTargetError, match="cannot quantize to int32"):
        exported_proto(graph_of("quantize", TensorType(DType.FLOAT32, (2,)), result))


@pytest.mark.parametrize("profile", ["ort", "portable"])
@pytest.mark.parametrize(("qmin", "qmax"), [(3, 255), (0, 200), (10, 200), (3, 3)], ids=str)
def test_narrow_range(qmin: int, qmax: int, profile: str, tmp_path: Path) -> None:
    narrow = QuantType(CODES.with_range(qmin, qmax), (512,))
    graph = graph_of("quantize", TensorType(DType.FLOAT32, (512,)), narrow)
    path = tmp_path / "narrow.onnx"
    export(graph, path, profile=profile)
    x = np.linspace(-200, 200, 512, dtype=np.float32)
    expected = np.clip(np.rint(x / np.float32(0.5)) + 3, qmin, qmax).astype(np.uint8)
    np.testing.assert_array_equal(run(path, {"x": x})[0], expected)
    assert ("Relu" in path.read_bytes().decode("latin1")) == ((qmin, qmax) == (3, 255))


def test_one_initializer_for_one_constant() -> None:
    data = Constant.of(np.arange(100, dtype=np.float32))
    x = value_of(TensorType(DType.FLOAT32, (100,)), "x")
    a, b = (Value(TensorType(DType.FLOAT32, (100,)), "w", constant=data) for _ in range(2))
    y, z = (value_of(TensorType(DType.FLOAT32, (100,)), name) for name in ("y", "z"))
    nodes = [
        Node(BY_NAME["Add"], NO_ATTRIBUTES, [x, a], [y]),
        Node(BY_NAME["Mul"], NO_ATTRIBUTES, [y, b], [z]),
    ]
    model = exported_proto(Graph([x], [z], ["z"], nodes))
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]


@pytest.mark.parametrize(
    ("variant", "rank", "expected"),
    [
        ("Gemm", None, ["Gemm"]),
        ("Gemm", 2, ["Gemm"]),
        ("MatMul", 2, ["MatMul", "Add"]),
        ("", 2, ["Gemm"]),
        ("", 3, ["MatMul", "Add"]),
        ("", None, ["MatMul", "Add"]),
    ],
)
def test_dense_is_spelled_as_in_the_file(
    variant: str, rank: int | None, expected: list[str]
) -> None:
    float32 = DType.FLOAT32
    x = value_of(TensorType(float32, None if rank is None else (4,) * rank), "x")
    y = value_of(TensorType(float32, None if rank is None else (4,) * rank), "y")
    w, b = (
        Value(TensorType(float32, array.shape), "c", constant=Constant.of(array))
        for array in (np.eye(4, dtype=np.float32), np.ones(4, np.float32))
    )
    node = Node(BY_NAME["Dense"], NO_ATTRIBUTES, [x, w, b], [y], Origin(("n",), (), variant))
    model = exported_proto(Graph([x], [y], ["y"], [node]))
    assert [proto.op_type for proto in model.graph.node] == expected
