"""Operators without a row, through TVM's own ONNX importer."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")

from tests.tvm.relax.single_ops import Model, X, call_names, codes, const, params

pytestmark = pytest.mark.relax

S8, U8 = params("int8", 0.5, 3), params("uint8", 0.25, 131)


def real(*shape: int) -> X:
    return X(np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32))


def test_float_operators() -> None:
    m = Model()
    m.add("CumSum", [X(np.arange(12, dtype=np.float32).reshape(3, 4)), const(np.int64(1))])
    m.add("Trilu", [real(4, 4)], upper=0)
    m.add("OneHot", [X(np.array([0, 2, 1])), const(np.int64(3)), const([0.0, 1.0], np.float32)])
    m.add("IsNaN", [real(3)], dtype=TensorProto.BOOL)
    m.add(
        "Einsum",
        [X(np.eye(3, dtype=np.float32)), X(np.ones((3, 2), np.float32))],
        equation="ij,jk->ik",
    )
    m.add(
        "Einsum",
        [real(2, 3), X(np.ones((2, 3), np.float32))],
        label="another function",
        equation="ij,ij->ji",
    )
    m.add("Not", [X(np.array([True, False]))], dtype=TensorProto.BOOL)
    m.add("Less", [real(3, 4), const(np.float32(0))], dtype=TensorProto.BOOL)
    for branch in m.branches:
        assert branch.whole
    foreign(m)


def foreign(m: Model) -> list[str]:
    m.branches = [b.__class__(b.label, "", b.outputs, b.whole) for b in m.branches]
    _, executable = m.check()
    return call_names(executable.module)


def test_several_results() -> None:
    m = Model()
    b = m.builder
    x = m.operand(X(np.array([[3, 1, 2, 9], [5, 8, 7, 6]], np.float32)))
    values = b.op("TopK", x, b.init(np.array([2])), outputs=2, axis=1)
    b.output(values, None)
    b.output(f"{values}:1", None, TensorProto.INT64)
    m.check()


def test_between_quantized_neighbours() -> None:
    """Dequantize, the opaque operator, quantize; the neighbours stay integer."""
    m = Model()
    b = m.builder
    x = m.operand(X(codes((2, 3, 4, 4), "uint8"), U8))
    w = m.operand(X(codes((3, 3, 1, 1), "int8"), params("int8", 0.25), fixed=True))
    y = b.qdq(b.op("Conv", x, w), 16.0, 0, np.int8)
    z = b.qdq(b.op("CumSum", y, b.init(np.int64(2))), 16.0, 0, np.int8)
    m.finish(b.op("GlobalAveragePool", z), S8)
    graph, executable = m.check()
    assert [n.op.name.rpartition(":")[2] for n in graph.nodes] == [
        "Conv", "dequantize", "CumSum", "quantize", "GlobalAveragePool",
    ]  # fmt: skip
    names = call_names(executable.module)
    assert names == [
        "qnn.conv2d", "qnn.requantize", "qnn.dequantize", "qnn.quantize", "qnn.mean",
    ]  # fmt: skip


def test_symbolic_batch() -> None:
    m = Model()
    b = m.builder
    x = m.operand(X(np.arange(12, dtype=np.float32).reshape(3, 4), shape=["n", 4]))
    b.output(b.op("Relu", b.op("CumSum", x, b.init(np.int64(1)))), None)
    _, executable = m.check()
    (name,) = m.inputs
    out = executable.run({name: np.ones((2, 4), np.float32)})
    assert out[executable.output_names[0]].tolist() == [[1, 2, 3, 4]] * 2


def test_extents_that_an_import_computes() -> None:
    """A slice by fed positions: its result's extents get names, so that more can follow."""
    m = Model()
    b = m.builder
    x = m.operand(X(codes((4, 6), "int8"), S8))
    y = b.op(
        "Slice", x, m.operand(X(np.array([1]))), m.operand(X(np.array([3]))), b.init(np.array([0]))
    )
    m.finish(b.op("Sigmoid", b.qdq(y, 0.5, 3, np.int8)), U8)
    m.check()


def branch(name: str, op: str) -> object:
    result = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2])
    node = helper.make_node(op, ["x"], [f"{name}_y"], f"{name}_node")
    return helper.make_graph([node], name, [], [result])


@pytest.mark.parametrize("fixed", [True, False])
def test_if(fixed: bool) -> None:
    """A constant condition leaves its branch; the importer takes the other kind."""
    m = Model()
    b = m.builder
    b.input("x", [2], TensorProto.FLOAT)
    m.inputs["x"] = np.array([-1.5, 2.5], np.float32)
    condition = m.operand(X(np.array(True), fixed=fixed))
    y = b.op("If", condition, then_branch=branch("then", "Abs"), else_branch=branch("other", "Neg"))
    b.output(y, [2])
    graph, executable = m.check()
    assert ("Abs" in [n.op.name for n in graph.nodes]) == fixed
    if not fixed:
        (name,) = [n for n in m.inputs if n != "x"]
        got = executable.run({**m.inputs, name: np.array(False)})
        assert got[executable.output_names[0]].tolist() == [1.5, -2.5]
