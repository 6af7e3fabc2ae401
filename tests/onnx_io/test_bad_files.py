"""Broken files: one named error that says where, why and what to do, quickly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.canonical import canonicalize
from qdqbridge.errors import (
    InvalidModelError,
    ModelFileError,
    QdqBridgeError,
    UnsupportedModelError,
    UnsupportedQuantization,
)
from qdqbridge.graph.graph import Graph
from qdqbridge.graph.verify import verify
from qdqbridge.onnx_io.reader import read
from tests.onnx_models import Builder, conv_model, ints

Model = onnx.ModelProto
SECONDS = 1.0


def initializer(model: Model, op_type: str, index: int, nth: int = 0) -> TensorProto:
    """The initializer that is operand ``index`` of the nth node of a type."""
    name = [n for n in model.graph.node if n.op_type == op_type][nth].input[index]
    return next(t for t in model.graph.initializer if t.name == name)


def node(model: Model, op_type: str, nth: int = 0) -> onnx.NodeProto:
    return [n for n in model.graph.node if n.op_type == op_type][nth]


def put(tensor: TensorProto, array: Any) -> None:
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))


def set_attribute(target: onnx.NodeProto, name: str, value: Any) -> None:
    kept = [a for a in target.attribute if a.name != name]
    del target.attribute[:]
    target.attribute.extend([*kept, helper.make_attribute(name, value)])


# Order of DequantizeLinear nodes in conv_model: activation, weight, bias, result.
WEIGHT, BIAS = 1, 2


def weight(model: Model) -> TensorProto:
    return initializer(model, "DequantizeLinear", 0, WEIGHT)


Breaker = Callable[[Model], None]
CASES: dict[str, tuple[Breaker, type[QdqBridgeError]]] = {}


def case(error: type[QdqBridgeError]) -> Callable[[Breaker], Breaker]:
    def add(breaker: Breaker) -> Breaker:
        CASES[breaker.__name__] = (breaker, error)
        return breaker

    return add


# ---- parameters -------------------------------------------------------------------------------


@case(InvalidModelError)
def scale_longer_than_the_axis(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 1, WEIGHT), np.ones(5, np.float32))


@case(InvalidModelError)
def zero_point_longer_than_the_scale(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(5, np.int8))


@case(InvalidModelError)
def scale_of_rank_three(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 1, WEIGHT), np.ones((2, 2, 1), np.float32))


@case(InvalidModelError)
def empty_scale(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 1), np.ones(0, np.float32))


@case(InvalidModelError)
def zero_point_of_another_type(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(4, np.uint8))


@case(UnsupportedQuantization)
def zero_point_is_float(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 2), np.float32(0))


@case(InvalidModelError)
def scale_is_float64(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 1), np.float64(1))


@case(InvalidModelError)
def scale_is_int64(m: Model) -> None:
    put(initializer(m, "QuantizeLinear", 1), np.int64(1))


def _scale(value: float, index: int) -> Breaker:
    def breaker(m: Model) -> None:
        shape = tuple(initializer(m, "DequantizeLinear", 1, index).dims)
        scale = np.full(shape, 0.5, np.float32)
        scale.reshape(-1)[-1] = value
        put(initializer(m, "DequantizeLinear", 1, index), scale)

    return breaker


for _value in (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3e38):
    CASES[f"activation scale {_value}"] = (_scale(_value, 0), UnsupportedQuantization)
    CASES[f"weight scale {_value}"] = (_scale(_value, WEIGHT), UnsupportedQuantization)
CASES["activation scale negative"] = (_scale(-0.5, 0), UnsupportedQuantization)


@case(InvalidModelError)
def axis_out_of_range(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "axis", 7)


@case(InvalidModelError)
def negative_axis_out_of_range(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "axis", -9)


@case(InvalidModelError)
def axis_is_a_float(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "axis", 0.0)


@case(InvalidModelError)
def attribute_given_twice(m: Model) -> None:
    node(m, "DequantizeLinear", WEIGHT).attribute.append(helper.make_attribute("axis", 1))


@case(InvalidModelError)
def block_size_at_an_old_opset(m: Model) -> None:
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "block_size", 2)


@case(InvalidModelError)
def negative_block_size(m: Model) -> None:
    m.opset_import[0].version = 21
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "block_size", -2)


@case(InvalidModelError)
def blocks_that_do_not_divide(m: Model) -> None:
    m.opset_import[0].version = 21
    set_attribute(node(m, "DequantizeLinear", WEIGHT), "block_size", 2)
    put(initializer(m, "DequantizeLinear", 1, WEIGHT), np.ones((4, 3, 3, 3), np.float32))
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros((4, 3, 3, 3), np.int8))


@case(InvalidModelError)
def int4_at_opset_13(m: Model) -> None:
    import ml_dtypes

    put(weight(m), ints((4, 3, 3, 3)).astype(ml_dtypes.int4))
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(4, ml_dtypes.int4))


@case(InvalidModelError)
def per_channel_at_opset_10(m: Model) -> None:
    m.opset_import[0].version = 10


@case(UnsupportedQuantization)
def scale_is_a_graph_input(m: Model) -> None:
    tensor = initializer(m, "QuantizeLinear", 1)
    m.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, []))
    m.graph.initializer.remove(tensor)


@case(InvalidModelError)
def output_dtype_against_the_zero_point(m: Model) -> None:
    m.opset_import[0].version = 21
    set_attribute(node(m, "QuantizeLinear"), "output_dtype", TensorProto.INT8)


@case(InvalidModelError)
def int64_into_a_quantize(m: Model) -> None:
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64


@case(UnsupportedQuantization)
def int64_data_into_a_dequantize(m: Model) -> None:
    put(weight(m), np.ones((4, 3, 3, 3), np.int64))
    put(initializer(m, "DequantizeLinear", 2, WEIGHT), np.zeros(4, np.int64))


# ---- nodes ------------------------------------------------------------------------------------


@case(InvalidModelError)
def quantize_without_a_scale(m: Model) -> None:
    node(m, "QuantizeLinear").input[1] = ""


@case(InvalidModelError)
def quantize_without_inputs(m: Model) -> None:
    del node(m, "QuantizeLinear").input[:]


@case(InvalidModelError)
def quantize_with_four_inputs(m: Model) -> None:
    node(m, "QuantizeLinear").input.append("x")


@case(InvalidModelError)
def a_node_without_outputs(m: Model) -> None:
    del node(m, "Conv").output[:]


@case(UnsupportedModelError)
def unknown_operator(m: Model) -> None:
    node(m, "Conv").op_type = "FrobnicateV2"


@case(UnsupportedModelError)
def unknown_domain(m: Model) -> None:
    node(m, "Conv").domain = "com.acme.npu"
    m.opset_import.append(helper.make_opsetid("com.acme.npu", 1))


@case(InvalidModelError)
def domain_not_imported(m: Model) -> None:
    node(m, "Conv").domain = "com.acme.npu"


@case(InvalidModelError)
def cycle(m: Model) -> None:
    node(m, "Conv").input[0] = node(m, "Relu").output[0]


@case(InvalidModelError)
def self_loop(m: Model) -> None:
    relu = node(m, "Relu")
    relu.input[0] = relu.output[0]


@case(InvalidModelError)
def undefined_input(m: Model) -> None:
    node(m, "Conv").input[0] = "ghost"


@case(InvalidModelError)
def undefined_output(m: Model) -> None:
    m.graph.output[0].name = "ghost"


@case(InvalidModelError)
def two_results_of_one_name(m: Model) -> None:
    m.graph.node.append(helper.make_node("Exp", ["x"], [node(m, "Conv").output[0]]))


@case(InvalidModelError)
def two_initializers_of_one_name(m: Model) -> None:
    m.graph.initializer.append(m.graph.initializer[0])


@case(InvalidModelError)
def initializer_named_like_a_result(m: Model) -> None:
    tensor = numpy_helper.from_array(np.ones((), np.float32), node(m, "Conv").output[0])
    m.graph.initializer.append(tensor)


@case(InvalidModelError)
def input_named_like_a_result(m: Model) -> None:
    m.graph.input.append(
        helper.make_tensor_value_info(node(m, "Conv").output[0], TensorProto.FLOAT, [1])
    )


@case(InvalidModelError)
def no_outputs(m: Model) -> None:
    del m.graph.output[:]


@case(InvalidModelError)
def no_nodes(m: Model) -> None:
    del m.graph.node[:]


@case(ModelFileError)
def graph_name_that_is_no_text(m: Model) -> None:
    m.graph.name = "NOT-TEXT"


@case(ModelFileError)
def node_name_that_is_no_text(m: Model) -> None:
    node(m, "Conv").name = "NOT-TEXT"


@case(ModelFileError)
def extent_name_that_is_no_text(m: Model) -> None:
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "NOT-TEXT"


@case(InvalidModelError)
def input_without_type(m: Model) -> None:
    m.graph.input[0].ClearField("type")


@case(UnsupportedModelError)
def input_is_a_sequence(m: Model) -> None:
    tensor = m.graph.input[0].type.tensor_type
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1]))
    assert tensor.elem_type
    m.graph.input[0].type.CopyFrom(sequence)


# ---- shapes -----------------------------------------------------------------------------------


@case(InvalidModelError)
def group_that_does_not_divide(m: Model) -> None:
    set_attribute(node(m, "Conv"), "group", 5)


@case(InvalidModelError)
def group_zero(m: Model) -> None:
    set_attribute(node(m, "Conv"), "group", 0)


@case(InvalidModelError)
def kernel_shape_against_the_weight(m: Model) -> None:
    set_attribute(node(m, "Conv"), "kernel_shape", [5, 5])


@case(InvalidModelError)
def three_pads(m: Model) -> None:
    set_attribute(node(m, "Conv"), "pads", [1, 1, 1])


@case(InvalidModelError)
def stride_zero(m: Model) -> None:
    set_attribute(node(m, "Conv"), "strides", [0, 1])


@case(InvalidModelError)
def negative_dilation(m: Model) -> None:
    set_attribute(node(m, "Conv"), "dilations", [-1, 1])


@case(InvalidModelError)
def bias_of_another_length(m: Model) -> None:
    put(initializer(m, "DequantizeLinear", 0, BIAS), np.zeros(3, np.int32))
    put(initializer(m, "DequantizeLinear", 1, BIAS), np.full(3, 2**-12, np.float32))
    put(initializer(m, "DequantizeLinear", 2, BIAS), np.zeros(3, np.int32))


# ---- tensors ----------------------------------------------------------------------------------


@case(InvalidModelError)
def huge_extents(m: Model) -> None:
    weight(m).dims[0] = 2**40


@case(InvalidModelError)
def extents_that_overflow(m: Model) -> None:
    weight(m).dims[:] = [2**40, 2**40, 3, 3]


@case(InvalidModelError)
def negative_extent(m: Model) -> None:
    weight(m).dims[0] = -4


@case(InvalidModelError)
def raw_data_too_short(m: Model) -> None:
    weight(m).raw_data = weight(m).raw_data[:-3]


@case(InvalidModelError)
def raw_data_too_long(m: Model) -> None:
    weight(m).raw_data += b"1234"


@case(InvalidModelError)
def undefined_element_type(m: Model) -> None:
    weight(m).data_type = 0


@case(InvalidModelError)
def unknown_element_type(m: Model) -> None:
    weight(m).data_type = 77


@case(InvalidModelError)
def string_weight_without_strings(m: Model) -> None:
    weight(m).data_type = TensorProto.STRING


def _external(**entries: str) -> Breaker:
    def breaker(m: Model) -> None:
        tensor = weight(m)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    return breaker


EXTERNAL: dict[str, tuple[Breaker, type[QdqBridgeError]]] = {
    "external: missing": (_external(location="none.bin"), ModelFileError),
    "external: too short": (_external(location="short.bin"), ModelFileError),
    "external: offset past the end": (
        _external(location="data.bin", offset="4096"), ModelFileError
    ),
    "external: negative offset": (_external(location="data.bin", offset="-8"), InvalidModelError),
    "external: offset is no number": (
        _external(location="data.bin", offset="eight"), InvalidModelError
    ),
    "external: wrong length": (_external(location="data.bin", length="7"), InvalidModelError),
    "external: parent": (_external(location="../secret.bin"), ModelFileError),
    "external: hidden parent": (_external(location="sub/../../secret.bin"), ModelFileError),
    "external: backslashes": (_external(location="..\\secret.bin"), ModelFileError),
    "external: absolute": (_external(location="/etc/hostname"), ModelFileError),
    "external: drive": (_external(location="C:\\secret.bin"), ModelFileError),
    "external: empty": (_external(location=""), ModelFileError),
    "external: NUL": (_external(location="data.bin\0"), ModelFileError),
    "external: folder": (_external(location="folder"), ModelFileError),
    "external: link out": (_external(location="link.bin"), ModelFileError),
}  # fmt: skip
CASES.update(EXTERNAL)


# ---- header -----------------------------------------------------------------------------------


def _opset(version: int) -> Breaker:
    def breaker(m: Model) -> None:
        m.opset_import[0].version = version

    return breaker


for _version in (999, 0, -3, 2**40):
    CASES[f"opset {_version}"] = (_opset(_version), InvalidModelError)
CASES["opset 7 with Q/DQ"] = (_opset(7), UnsupportedModelError)


@case(InvalidModelError)
def no_opset_import(m: Model) -> None:
    del m.opset_import[:]


@case(InvalidModelError)
def ir_version_99(m: Model) -> None:
    m.ir_version = 99


@case(ModelFileError)
def no_ir_version(m: Model) -> None:
    m.ClearField("ir_version")


@case(ModelFileError)
def no_graph(m: Model) -> None:
    m.ClearField("graph")


@case(InvalidModelError)
def recursive_function(m: Model) -> None:
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("local", 1)]
    call = helper.make_node("Again", ["x"], ["y"], domain="local")
    m.functions.append(helper.make_function("local", "Again", ["x"], ["y"], [call], opsets))
    m.opset_import.append(helper.make_opsetid("local", 1))
    m.graph.node.append(helper.make_node("Again", ["x"], ["unread"], domain="local"))


@case(InvalidModelError)
def functions_that_call_each_other(m: Model) -> None:
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("local", 1)]
    for name, other in (("A", "B"), ("B", "A")):
        call = helper.make_node(other, ["x"], ["y"], domain="local")
        m.functions.append(helper.make_function("local", name, ["x"], ["y"], [call], opsets))
    m.opset_import.append(helper.make_opsetid("local", 1))
    m.graph.node.append(helper.make_node("A", ["x"], ["unread"], domain="local"))


# ---- running them -----------------------------------------------------------------------------


def loaded(path: Path) -> Graph:
    """What the pipeline does: read, check, rewrite, check."""
    graph = read(path)
    verify(graph, path.name)
    verify(canonicalize(graph), path.name)
    return graph


def refused(path: Path) -> QdqBridgeError:
    start = time.perf_counter()
    with pytest.raises(QdqBridgeError) as caught:
        loaded(path)
    assert time.perf_counter() - start < SECONDS
    error = caught.value
    assert error.what
    assert "\n" not in error.what
    assert path.name in str(error)
    assert error.fix
    return error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "models"
    (inside / "folder").mkdir(parents=True)
    (inside / "data.bin").write_bytes(bytes(4096))
    (inside / "short.bin").write_bytes(bytes(8))
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    return inside


@pytest.mark.parametrize("name", sorted(CASES))
def test_broken_models(name: str, folder: Path) -> None:
    breaker, expected = CASES[name]
    model = conv_model()
    breaker(model)
    path = folder / "broken.onnx"
    path.write_bytes(model.SerializeToString().replace(b"NOT-TEXT", b"\xff\xfeT-TEXT"))
    error = refused(path)
    assert type(error) is expected, f"{type(error).__name__}: {error}"
    assert error.where


def test_the_model_itself_is_sound(folder: Path) -> None:
    path = folder / "sound.onnx"
    path.write_bytes(conv_model().SerializeToString())
    loaded(path)


@pytest.mark.parametrize("shape", [[2**40], [2**40, 3, 6, 6]], ids=["vector", "batch"])
def test_huge_inputs_are_read_without_allocating(shape: list[int], tmp_path: Path) -> None:
    b = Builder()
    b.output(b.qdq(b.op("Relu", b.qdq(b.input("x", shape), 0.5)), 0.5))
    path = tmp_path / "huge.onnx"
    path.write_bytes(b.model().SerializeToString())
    start = time.perf_counter()
    assert loaded(path).inputs[0].type.shape == tuple(shape)
    assert time.perf_counter() - start < SECONDS


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789\nsize 12345\n"
HTML = b"<!DOCTYPE html><html><head><title>404</title></head><body>not found</body></html>"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (np.random.default_rng(0).bytes(4000), ""),
        (HTML, ""),
        (LFS, "Git LFS"),
        (conv_model().SerializeToString()[:-1], ""),
        (conv_model().SerializeToString()[:-17], ""),
        (conv_model().SerializeToString()[:400], ""),
        (b"PK\x03\x04" + bytes(300), ""),
    ],
    ids=["empty", "random", "html", "lfs", "last byte", "tail", "half", "zip"],
)
def test_files_that_are_no_models(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    error = refused(path)
    assert type(error) is ModelFileError
    assert words in error.what


def test_missing_files_and_folders(tmp_path: Path) -> None:
    assert type(refused(tmp_path / "none.onnx")) is ModelFileError
    (tmp_path / "folder.onnx").mkdir()
    assert type(refused(tmp_path / "folder.onnx")) is ModelFileError


def test_every_unknown_operator_is_listed_at_once(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", [4])
    for i in range(5):
        x = b.op(f"Unknown{i % 2}", x)
    b.output(x)
    path = tmp_path / "broken.onnx"
    path.write_bytes(b.model().SerializeToString())
    error = refused(path)
    assert type(error) is UnsupportedModelError
    assert "2 operator(s)" in error.what
    assert "Unknown0 (3:" in error.why
    assert "Unknown1 (2:" in error.why


def test_deep_nesting_is_no_recursion_error(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", [4])
    c = b.input("c", [], TensorProto.BOOL)
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])

    def leaf(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, [x], ["y"])], op, [], [value])

    body = leaf("Exp")
    for i in range(24):
        inner = helper.make_node("If", [c], ["y"], then_branch=body, else_branch=leaf("Neg"))
        body = helper.make_graph([inner], f"level{i}", [], [value])
    b.output(b.op("If", c, then_branch=body, else_branch=leaf("Neg")))
    path = tmp_path / "deep.onnx"
    path.write_bytes(b.model().SerializeToString())
    graph = loaded(path)
    assert [n.op.name for n in graph.nodes] == ["If"]


# ---- fuzzing ----------------------------------------------------------------------------------

VALID = conv_model(21).SerializeToString()


def only_named_errors(data: bytes, path: Path) -> str:
    path.write_bytes(data)
    try:
        loaded(path).text()
    except QdqBridgeError as error:
        assert str(error)
        return type(error).__name__
    return "read"


FUZZ = settings(
    max_examples=int(os.environ.get("QDQBRIDGE_FUZZ", "100")),
    derandomize="QDQBRIDGE_FUZZ" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_changed_bytes(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for place, byte in changes:
        data[place] = byte
    only_named_errors(bytes(data), tmp_path / "fuzzed.onnx")


NUMBERS = st.sampled_from([-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**40, 2**62])
TEXTS = st.sampled_from(["", "x", "axis", "Conv", "QuantizeLinear", "Reshape", "\0", "é", "../x"])


@FUZZ
@given(st.data())
def test_changed_fields(tmp_path: Path, data: st.DataObject) -> None:
    model = Model.FromString(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        change_field(model, data)
    only_named_errors(model.SerializeToString(), tmp_path / "fuzzed.onnx")


def change_field(message: Any, data: st.DataObject) -> None:
    """Walks into a random submessage and changes one of its fields."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        descriptor, value = data.draw(st.sampled_from(fields))
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if descriptor.message_type is not None:
            children = list(value) if repeated else [value]
            if repeated and children and data.draw(st.integers(0, 9)) == 0:
                del value[data.draw(st.integers(0, len(children) - 1))]
                return
            message = data.draw(st.sampled_from(children))
            continue
        _change_scalar(message, descriptor, value, repeated, data)
        return


def _change_scalar(message: Any, descriptor: Any, value: Any, repeated: bool, data: Any) -> None:
    kinds = {
        descriptor.CPPTYPE_STRING: st.binary(max_size=40)
        if descriptor.type == descriptor.TYPE_BYTES
        else TEXTS,
        descriptor.CPPTYPE_FLOAT: st.floats(width=32),
        descriptor.CPPTYPE_DOUBLE: st.floats(),
        descriptor.CPPTYPE_INT64: NUMBERS,
        descriptor.CPPTYPE_UINT64: NUMBERS.map(abs),
        descriptor.CPPTYPE_INT32: NUMBERS.filter(lambda n: abs(n) < 2**31),
        descriptor.CPPTYPE_ENUM: st.sampled_from([0, 1, 2, 5]),
    }
    new = data.draw(kinds[descriptor.cpp_type])
    if repeated:
        value[data.draw(st.integers(0, len(value) - 1))] = new
        return
    setattr(message, descriptor.name, new)
