"""Ways to break a model, each with the error that it must give."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.errors import (
    InvalidModelError,
    ModelFileError,
    QdqBridgeError,
    UnsupportedModelError,
)
from tests.onnx_io.bad_parts import (
    BIAS,
    CASES,
    Breaker,
    Model,
    case,
    initializer,
    node,
    put,
    set_attribute,
    weight,
)

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


@case(InvalidModelError)
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
    "external: offset is not a number": (
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
