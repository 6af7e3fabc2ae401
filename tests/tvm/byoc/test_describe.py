"""Records against the graph that was emitted: nothing is lost, nothing has to be dug out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import ROOT

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node
from qdqbridge.core.graph.types import QuantParams, shifted_params
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.dynamic import DynamicAttrs
from qdqbridge.tvm.byoc import canonical, composites, describe, partition
from qdqbridge.tvm.byoc.pattern import Tensor
from qdqbridge.tvm.byoc.records import (
    Accumulation,
    Binary,
    BlockedDequantize,
    Concatenation,
    Convolution,
    DataMovement,
    Dense,
    DynamicConvolution,
    DynamicDense,
    Normalization,
    Pool,
    Record,
    Resize,
    Softmax,
    Unary,
)
from tests.core.graph import graphs
from tests.tvm.relax.single_ops import Model, X, codes, const, params

pytestmark = pytest.mark.relax

MODELS = sorted((ROOT / "models").glob("*s8*.onnx"))
S8, U8 = params("int8", 0.5, 3), params("uint8", 0.25, 120)
TABLE = canonical()


def records(graph: Graph) -> list[Record]:
    module, _ = partition(qb.to_relax(graph)[0], TABLE)
    return [describe(composite, TABLE) for composite in composites(module)]


def same(tensor: Tensor, wanted: QuantParams) -> None:
    assert tensor.dtype == str(wanted.storage_dtype)
    assert tensor.scale is not None and tensor.zero_point is not None
    np.testing.assert_array_equal(tensor.scale, wanted.scale.astype(np.float32))
    assert (tensor.zero_point == wanted.zero_point).all()


def quant(node: Node, index: int) -> QuantParams:
    found = node.output.quant if index < 0 else node.operand(index).quant
    assert found is not None
    return found.params


def sums(graph: Graph) -> list[Node]:
    known = ("Conv", "Dense", "Gemm", "MatMul")
    nodes = [n for n in graph.nodes if n.op.name in known]
    return [n for n in nodes if n.operand(1).is_constant]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_sums_say_what_the_graph_says(path: Path) -> None:
    graph = qb.load(path)
    found = [r for r in records(graph) if isinstance(r, Convolution | Dense)]
    nodes = sums(graph)
    assert len(found) == len(nodes) > 4
    for record, node in zip(found, nodes, strict=True):
        same(record.input, quant(node, 0))
        same(record.weight, quant(node, 1))
        same(record.output, quant(node, -1))
        weight = node.operand(1).constant
        assert weight is not None and record.weight.data is not None
        stored = weight.numpy()
        if isinstance(record, Dense) and node.op.name in ("MatMul", "Gemm"):
            stored = stored if stored.shape == record.weight.data.shape else stored.T
        np.testing.assert_array_equal(record.weight.data, stored)
        bias = node.optional(2)
        assert (record.bias is None) == (bias is None)
        if bias is not None and bias.constant is not None:
            np.testing.assert_array_equal(record.bias, bias.constant.numpy())
        wanted = quant(node, -1)
        assert record.range == (wanted.qmin, wanted.qmax)
        x, w, y = (quant(node, i).scale.astype(np.float32) for i in (0, 1, -1))
        np.testing.assert_array_equal(record.multiplier, np.float32(np.float32(x * w) / y))
        assert record.rounding == "TONEAREST_EVEN" and record.compute_dtype == "float32"
        if isinstance(record, Convolution):
            attributes = node.attributes
            assert isinstance(attributes, ConvAttrs)
            assert record.strides == attributes.strides
            assert record.padding == attributes.pads
            assert record.groups == attributes.group
            assert record.channels == stored.shape[0]
            assert record.depthwise == (attributes.group > 1)


def one(op: str, operands: list[X], *results: Any, **attributes: Any) -> Record:
    m = Model()
    m.add(op, operands, *results, **attributes)
    found = records(m.load())
    assert len(found) == 1
    return found[0]


def image(p: QuantParams = S8, *shape: int) -> X:
    return X(codes(shape or (1, 4, 6, 6), str(p.storage_dtype)), p)


def test_transposed_convolutions_with_groups() -> None:
    scale = np.asarray([0.5, 0.25, 0.125], np.float32)
    w = X(codes((4, 3, 2, 3), "int8", 1), params("int8", scale, np.zeros(3), 1), fixed=True)
    r = one("ConvTranspose", [image(), w], U8, strides=[2, 1], group=2, output_padding=[1, 0])
    assert isinstance(r, Convolution) and r.transposed
    assert (r.channels, r.groups, r.kernel_size) == (6, 2, (2, 3))
    assert r.strides == (2, 1) and r.output_padding == (1, 0)
    assert r.kernel_layout == "IOHW" and r.weight.axis == 1
    np.testing.assert_array_equal(r.accumulator_scale, np.tile(np.float32(0.5) * scale, 2))


def test_sums_with_float_results() -> None:
    w = X(codes((5, 4), "int8", 1), params("int8", 0.25), fixed=True)
    r = one("Gemm", [image(S8, 2, 4), w], None, transB=1)
    assert isinstance(r, Dense) and r.output.is_float and r.multiplier is None
    assert r.rounding is None and r.units == 5


def test_operators_of_two_operands() -> None:
    r = one("Add", [image(), X(codes((4, 1, 1), "uint8"), U8, fixed=True)], S8)
    assert isinstance(r, Binary) and r.op == "qnn.add"
    same(r.lhs, S8)
    same(r.rhs, shifted_params(U8))  # as signed as the sum
    assert r.rhs.is_constant and not r.lhs.is_constant and r.output.same_params(r.lhs)


def test_functions_and_rows() -> None:
    r = one("LeakyRelu", [image()], U8, alpha=0.25)
    assert isinstance(r, Unary) and r.op == "qnn.leaky_relu" and r.attributes == {"alpha": 0.25}
    r = one("Softmax", [image()], params("int8", 1 / 256, -128), axis=1)
    assert isinstance(r, Softmax) and r.axes == (1,)
    gamma = const(np.linspace(0.5, 2, 6, dtype=np.float32))
    r = one("LayerNormalization", [image(), gamma], U8, epsilon=1e-3, axis=-1)
    assert isinstance(r, Normalization) and r.axis == 3
    assert r.epsilon == float(np.float32(1e-3)) and r.gamma.data is not None
    same(r.input, S8)


def test_windows_and_resizes() -> None:
    r = one("AveragePool", [image()], U8, kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 1])
    assert isinstance(r, Pool) and not r.maximum and r.pool_size == (3, 2)
    assert r.padding == (1, 0, 1, 0) and not r.count_include_pad
    r = one("MaxPool", [image()], S8, kernel_shape=[2, 2])
    assert isinstance(r, Pool) and r.maximum and r.data_layout == "NCHW"
    sizes = const([1, 4, 12, 12], np.int64)
    r = one("Resize", [image(), None, None, sizes], S8, mode="linear")  # type: ignore[list-item]
    assert isinstance(r, Resize) and r.size == (12, 12) and r.method == "linear"
    assert r.coordinate_transformation_mode == "half_pixel"


def test_joins_and_movers() -> None:
    r = one("Concat", [image(), image(params("int8", 0.25, 1), 1, 2, 6, 6)], S8, axis=1)
    assert isinstance(r, Concatenation) and r.axis == 1 and len(r.operands) == 2
    same(r.operands[1], params("int8", 0.25, 1))
    r = one("Transpose", [image()], S8, perm=[0, 2, 3, 1])
    assert isinstance(r, DataMovement) and r.op == "transpose"
    assert r.attributes["axes"] == (0, 2, 3, 1) and r.output.shape == (1, 6, 6, 4)


def test_a_reshape_of_a_symbolic_batch_states_its_extents() -> None:
    m = Model()
    x = X(codes((2, 4, 6), "int8"), S8, shape=("n", 4, 6))
    m.add("Reshape", [x, const([0, -1], np.int64)], S8)
    (record,) = records(m.load())
    assert isinstance(record, DataMovement)
    assert record.attributes["newshape"][1] == 24 and isinstance(record.output.shape, tuple)
    assert record.output.dtype == "int8"


def test_weights_in_blocks() -> None:
    scale = np.linspace(0.1, 0.2, 8, dtype=np.float32).reshape(4, 2)
    blocks = QuantParams(S8.storage_dtype, scale, np.zeros((4, 2), np.int32), 1, 3)
    w = X(codes((4, 6), "int8"), blocks, fixed=True, block=3)
    m = Model()
    m.add("Add", [const(np.ones((4, 6), np.float32)), w], None, whole=False)
    found = [r for r in records(m.load()) if isinstance(r, BlockedDequantize)]
    for record in found:
        np.testing.assert_array_equal(record.scale, scale)
        assert (record.axis, record.block_size) == (1, 3)


def test_sums_share_their_fields() -> None:
    x, y = image(S8, 2, 3, 4), image(U8, 2, 4, 5)
    r = one("MatMul", [x, y], U8)
    assert isinstance(r, Accumulation) and r.family == "batch_matmul" and r.weights == ()
    same(r.weight, U8)


@pytest.mark.parametrize("bias", [False, True])
def test_a_dynamic_product_is_one_composite(bias: bool) -> None:
    x, w = graphs.plain("x", ("n", "m", 6)), np.arange(24, dtype=np.int8).reshape(4, 6)
    scale = graphs.quant(DType.INT8, np.array([0.5, 1, 2, 4], np.float32), 3, axis=0)
    added = [graphs.const(np.arange(4, dtype=np.float32))] if bias else []
    type_, attributes = graphs.typed(("n", "m", 4)), DynamicAttrs()
    y = graphs.apply(
        "DynamicDense", x, graphs.const(w, scale), *added, type_=type_, attributes=attributes
    )
    (record,) = records(graphs.graph([x], y))
    assert isinstance(record, DynamicDense)
    assert (record.units, record.rows, record.output.dtype) == (4, False, "float32")
    assert record.inputs[0].dtype == "float32"
    same(record.weight, scale)
    assert (record.float_bias is not None) == bias


@pytest.mark.parametrize("bias", [False, True])
def test_a_dynamic_convolution_is_one_composite(bias: bool) -> None:
    x, w = graphs.plain("x", ("n", 4, 6, 6)), np.arange(108, dtype=np.int8).reshape(6, 2, 3, 3)
    added = [graphs.const(np.arange(6, dtype=np.float32))] if bias else []
    type_, attributes = graphs.typed(("n", 6, 6, 6)), ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1), 2)
    operands = [graphs.const(w, graphs.quant(DType.INT8, np.float32(0.5)))]
    y = graphs.apply("DynamicConv", x, *operands, *added, type_=type_, attributes=attributes)
    (record,) = records(graphs.graph([x], y))
    assert isinstance(record, DynamicConvolution)
    assert (record.channels, record.groups, record.kernel_size) == (6, 2, (3, 3))
    assert (record.padding, record.data_layout, record.output.dtype) == (
        (1, 1, 1, 1), "NCHW", "float32",
    )  # fmt: skip
    assert (record.float_bias is not None) == bias
