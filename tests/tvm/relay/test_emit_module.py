"""The contract of emitted modules: types, names, spans, parameters, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relay

import qdqbridge as qb
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.qnn.origin import provenance_of
from qdqbridge.tvm.relay.build import build
from qdqbridge.tvm.relay.emit import emit
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.single_ops import Model, X, codes, params
from tests.tvm.relay.emitted import calls, operators
from tests.tvm.relay.networks import classifier


def test_names_and_spans() -> None:
    graph, _ = classifier()
    module, arrays = emit(graph, "tflite")
    main = module["main"]
    assert arrays == {}
    assert [p.name_hint for p in main.params] == ["image"]
    assert list(main.attrs["input_names"]) == ["image"]
    assert list(main.attrs["output_names"]) == graph.output_names
    known = {value.name for node in graph.nodes for value in node.outputs}
    known |= {node.name for node in graph.nodes}
    records = [provenance_of(call.span.source_name.name) for call in calls(module)]
    assert {provenance.name for provenance in records if provenance is not None} <= known
    assert None not in records  # the plan puts in no transpose of its own
    convolution = next(call for call in calls(module) if call.op.name == "qnn.conv2d")
    first = next(node for node in graph.nodes if node.op.name == "Conv")
    provenance = provenance_of(convolution.span.source_name.name)
    assert provenance is not None
    assert (provenance.op, provenance.name) == ("Conv", first.output.name)
    assert provenance.origin.nodes == first.origin.nodes


@pytest.mark.parametrize("variant", ["canonical", "tflite", "dnnl", "fq2i"])
def test_modules_are_typed_and_kept_by_json(variant: str) -> None:
    module, _ = emit(classifier()[0], variant)
    assert list(module["main"].ret_type.shape) == [1, 10]
    again = tvm.ir.load_json(tvm.ir.save_json(module))
    tvm.ir.assert_structural_equal(module, again)
    tvm.ir.assert_structural_equal(module, emit(classifier()[0], variant)[0])


def test_parameters_bind_back() -> None:
    m = Model()
    w = X(codes((80, 100, 3, 3), "int8"), params("int8", 0.01), fixed=True)
    x = X(codes((1, 100, 4, 4), "uint8"), params("uint8", 0.02, 3))
    m.add("Conv", [x, w], params("int8", 9.0))
    graph = m.load()
    module, arrays = emit(graph, "tflite", keep_params=True)
    assert [array.shape for array in arrays.values()] == [(3, 3, 100, 80)]  # as it is laid out
    assert [p.name_hint for p in module["main"].params[1:]] == list(arrays)
    found = build(module, arrays).run(m.inputs)
    for name, wanted in qb.evaluate(graph, m.inputs).items():
        np.testing.assert_array_equal(found[name], wanted)


def test_several_outputs_and_one_dimension() -> None:
    m = Model()
    w = X(codes((4, 2, 3), "int8"), params("int8", 0.01), fixed=True)
    x = X(codes((2, 2, 9), "uint8"), params("uint8", 0.02, 3))
    m.add("Conv", [x, w], params("int8", 0.1), strides=[2])
    m.add("Sigmoid", [x], params("uint8", 1 / 256))
    module, _ = emit(m.load())
    assert [list(f.shape) for f in module["main"].ret_type.fields] == [[2, 4, 4], [2, 2, 9]]
    convolution = next(call for call in calls(module) if call.op.name == "qnn.conv2d")
    assert list(convolution.args[0].checked_type.shape) == [2, 2, 1, 9]
    assert list(convolution.attrs.strides) == [1, 2]
    module, _ = emit(m.load(), "tflite")
    convolution = next(call for call in calls(module) if call.op.name == "qnn.conv2d")
    assert list(convolution.args[0].checked_type.shape) == [2, 1, 9, 2]


def test_a_missing_bias_is_zeros_where_a_table_wants_one() -> None:
    m = Model()
    w = X(codes((4, 2, 3, 3), "int8"), params("int8", 0.01), fixed=True)
    m.add("Conv", [X(codes((1, 2, 5, 5), "int8"), params("int8", 0.02)), w], params("int8", 0.1))
    graph = m.load()
    assert "nn.bias_add" not in operators(emit(graph)[0])
    added = next(c for c in calls(emit(graph, "tflite")[0]) if c.op.name == "nn.bias_add")
    assert not added.args[1].data.numpy().any()


def test_four_bits_are_bytes_with_a_clip() -> None:
    b = Builder(21)
    x = b.input("x", [2, 8])
    import ml_dtypes

    stored = b.q(x, 0.5, 0, ml_dtypes.int4)
    b.output(b.dq(stored, 0.5, 0, ml_dtypes.int4))
    module, _ = emit(canonical(b.model()))
    assert operators(module) == ["qnn.quantize", "clip", "qnn.dequantize"]
    clip = calls(module)[1]
    assert (clip.attrs.a_min, clip.attrs.a_max, clip.checked_type.dtype) == (-8, 7, "int8")


def test_foreign_nodes_are_refused_by_name() -> None:
    b = Builder(18)
    x = b.input("x", [2, 3])
    b.output(b.op("Atan", b.op("Hardmax", x)))
    with pytest.raises(UnsupportedTargetError, match="cannot be emitted") as error:
        emit(canonical(b.model()))
    assert "Hardmax" in str(error.value)


def test_symbolic_extents_are_asked_for() -> None:
    b = Builder(18)
    b.output(b.op("Relu", b.input("x", ["batch", 3])))
    graph = canonical(b.model())
    with pytest.raises(UnsupportedTargetError, match="'batch' is not known"):
        emit(graph)
    module, _ = emit(graph, extents={"batch": 2})
    assert list(module["main"].ret_type.shape) == [2, 3]


@pytest.mark.parametrize(("variant", "layout"), [("french", None), ("canonical", "CHWN")])
def test_what_does_not_exist(variant: str, layout: str | None) -> None:
    with pytest.raises(UnsupportedTargetError, match="Relay modules have no"):
        emit(classifier()[0], variant, layout)


def test_shapes_computed_at_run_time_are_refused() -> None:
    m = Model()
    m.add("Reshape", [X(codes((2, 6), "int8"), params("int8", 1.0)), X(np.array([3, 4]))],
          params("int8", 1.0))  # fmt: skip
    with pytest.raises(UnsupportedTargetError, match="computed at run time"):
        emit(m.load())


def test_float_operators_are_relays() -> None:
    b = Builder(18)
    x = b.input("x", [1, 4, 6, 6])
    w = b.init(np.ones((4, 4, 3, 3), np.float32))
    b.output(b.op("Relu", b.op("Conv", x, w)))
    module, _ = emit(canonical(b.model()), layout="NHWC")
    assert operators(module)[-3:] == ["nn.conv2d", "nn.relu", "transpose"]
    assert isinstance(module["main"].body, relay.Call)
