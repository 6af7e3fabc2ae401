"""The contract of emitted modules: names, argument order, attributes, round trips, parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, wildcard

import qdqbridge as qb
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import QuantParams
from qdqbridge.core.ops.table import OPERATORS
from qdqbridge.tvm.qnn.emit.nodes import KNOWN
from tests.tvm.relax.single_ops import (
    Array,
    Model,
    X,
    call_names,
    calls,
    codes,
    const,
    number,
    params,
    qnn_calls,
)

pytestmark = pytest.mark.relax

SX, SW, SY = np.float32(0.5), np.array([0.25, 0.125, 0.75], np.float32), np.float32(1.5)
PX, PY = params("uint8", SX, 131), params("int8", SY, -5)
PB = params("int8", 0.7, 9)
WEIGHT = X(codes((3, 2, 3, 3), "int8"), params("int8", SW, [0] * 3, 0), fixed=True)
BIAS = X(
    np.array([5, -7, 900], np.int32), QuantParams(DType.INT32, SX * SW, np.zeros(3, np.int32), 0),
    fixed=True,
)  # fmt: skip


def data(*shape: int, p: QuantParams = PX) -> X:
    return X(codes(shape, str(p.storage_dtype), len(shape)), p)


def module_of(op: str, operands: list[X | None], y: QuantParams | None = PY, **rest: Any) -> Any:
    m = Model()
    m.add(op, operands, y, **rest)
    return qb.to_relax(m.load())[0]


def attributes(call: Any) -> dict[str, Any]:
    return {key: call.attrs[key] for key in call.attrs.keys()}  # noqa: SIM118 # a TVM map


def numbers(call: Any, *indices: int) -> list[Any]:
    return [number(call.args[i]).tolist() for i in indices]


def test_convolution() -> None:
    module = module_of(
        "Conv", [data(1, 2, 6, 6), WEIGHT, BIAS], then="Relu", strides=[2, 1], pads=[1, 0, 1, 2]
    )
    assert call_names(module) == ["qnn.conv2d", "relax.add", "qnn.requantize", "relax.clip"]
    conv, add, requantize, clip = calls(module)
    x, w, *_ = conv.args
    assert isinstance(x, relax.Var)
    np.testing.assert_array_equal(number(w), WEIGHT.values)
    assert numbers(conv, 2, 3, 4, 5) == [131, [0] * 3, 0.5, SW.tolist()]
    attrs = attributes(conv)
    assert list(attrs["kernel_size"]) == [3, 3]
    assert list(attrs["strides"]) == [2, 1]
    assert list(attrs["padding"]) == [1, 0, 1, 2]
    assert (attrs["channels"], attrs["groups"]) == (3, 1)
    assert (attrs["data_layout"], attrs["kernel_layout"]) == ("NCHW", "OIHW")
    assert attrs["out_dtype"] == "int32"
    assert number(add.args[1]).tolist() == [[[5]], [[-7]], [[900]]]
    assert numbers(requantize, 1, 2, 3, 4) == [(SX * SW).tolist(), 0, 1.5, -5]
    attrs = attributes(requantize)
    assert (attrs["axis"], attrs["rounding"]) == (1, "TONEAREST_EVEN")
    assert (attrs["compute_dtype"], attrs["out_dtype"]) == ("float32", "int8")
    assert [int(a.value) for a in clip.args[1:]] == [-5, 127]


def test_dense_and_batch_matmul() -> None:
    w = X(codes((8, 3), "int8"), params("int8", SW, [0] * 3, 1), fixed=True)
    module = module_of("Gemm", [data(2, 8), w, BIAS])
    assert call_names(module) == ["qnn.dense", "relax.add", "qnn.requantize"]
    dense, _, requantize = calls(module)
    np.testing.assert_array_equal(number(dense.args[1]), w.values.T)  # [units, K]
    assert attributes(dense)["units"] == 3
    assert attributes(requantize)["axis"] == 1
    module = module_of("MatMul", [data(2, 8), data(8, 3, p=PB)])
    assert call_names(module) == ["qnn.batch_matmul", "qnn.requantize"]
    product, requantize = calls(module)
    np.testing.assert_array_equal(numbers(product, 2, 3, 4, 5), [131, 9, 0.5, np.float32(0.7)])
    assert not attributes(product)["transpose_b"]  # the operand is stored (K, N), as ONNX has it
    assert numbers(requantize, 1, 2) == [float(np.float32(0.5) * np.float32(0.7)), 0]


def test_float_result_is_a_dequantized_sum() -> None:
    module = module_of("Conv", [data(1, 2, 6, 6), WEIGHT, BIAS], None)
    assert call_names(module) == ["qnn.conv2d", "relax.add", "qnn.dequantize"]
    *_, dequantize = calls(module)
    assert numbers(dequantize, 1, 2) == [(SX * SW).tolist(), 0]
    assert attributes(dequantize)["axis"] == 1


def test_weight_only_keeps_the_weight_packed() -> None:
    m = Model()
    m.add("Conv", [X(np.ones((1, 2, 4, 4), np.float32)), WEIGHT], None)
    module, _ = qb.to_relax(m.load())
    assert call_names(module) == ["qnn.dequantize", "relax.nn.conv2d"]
    assert number(calls(module)[0].args[0]).dtype == np.int8


@pytest.mark.parametrize(
    ("op", "name"),
    [("Add", "add"), ("Sub", "subtract"), ("Mul", "mul"), ("Div", "divide"), ("Min", "minimum"),
     ("Max", "maximum")],
)  # fmt: skip
def test_binary(op: str, name: str) -> None:
    module = module_of(op, [data(2, 3), data(3, p=PB)])
    assert call_names(module) == [f"qnn.{name}"]
    (call,) = calls(module)
    assert [a.name for a in call.args[:2]] == [p.name for p in module["main"].params]
    assert numbers(call, 2, 3, 4, 5, 6, 7) == [0.5, 131, float(np.float32(0.7)), 9, 1.5, -5]
    assert {"lhs_axis", "rhs_axis"} <= attributes(call).keys()


def test_concatenate() -> None:
    module = module_of("Concat", [data(2, 3, p=PB), data(2, 3, p=params("int8", 0.1))], axis=-1)
    (call,) = calls(module)
    assert call.op.name == "qnn.concatenate"
    assert [len(call.args[i].fields) for i in (0, 1, 2)] == [2, 2, 2]
    assert numbers(call, 3, 4) == [1.5, -5]
    assert attributes(call)["axis"] == 1
    module = module_of("Concat", [data(2, 3, p=PY), data(2, 3, p=PY)], axis=0)
    assert call_names(module) == ["relax.concat"]


def test_one_operand() -> None:
    """Tables, pools, means and softmax: (x, sx, zx, sy, zy)."""
    image = data(1, 2, 4, 4)
    expected: list[tuple[str, str, list[X | None], dict[str, Any]]] = [
        ("Sigmoid", "sigmoid", [image], {}),
        ("LeakyRelu", "leaky_relu", [image], {"alpha": 0.25}),
        ("AveragePool", "avg_pool2d", [image], {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", "mean", [image], {}),
        ("ReduceMean", "mean", [image, const([1], np.int64)], {}),
        ("ReduceSum", "sum", [image, const([1], np.int64)], {}),
        ("Softmax", "softmax", [image], {"axis": 1}),
        ("Resize", "resize2d", [image, None, const([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
    ]
    for op, name, operands, given in expected:
        module = module_of(op, operands, **given)
        (call,) = calls(module)
        assert call.op.name == f"qnn.{name}"
        assert numbers(call, 1, 2, 3, 4) == [0.5, 131, 1.5, -5], op
    pool = calls(module_of("AveragePool", [image], kernel_shape=[3, 2], pads=[1, 0, 1, 0]))[0]
    attrs = attributes(pool)
    assert list(attrs["pool_size"]) == [3, 2]
    assert list(attrs["padding"]) == [1, 0, 1, 0]
    assert not attrs["count_include_pad"]
    assert attrs["layout"] == "NCHW"


def test_norm() -> None:
    gamma = X(codes((4,), "int8"), params("int8", 0.02), fixed=True)
    module = module_of("LayerNormalization", [data(2, 4), gamma, gamma])
    (call,) = calls(module)
    assert call.op.name == "qnn.layer_norm"
    gammas = [float(np.float32(0.02)), 0]
    assert numbers(call, 3, 4, 5, 6, 7, 8, 9, 10) == [0.5, 131, *gammas, *gammas, 1.5, -5]


def test_islands_are_dequantize_float_quantize() -> None:
    m = Model()
    b = m.builder
    x = m.operand(data(2, 3))
    root = b.op("Atan", x)
    m.finish(root, PY)
    module, _ = qb.to_relax(m.load())
    names = call_names(module)
    assert (names[0], names[-1]) == ("qnn.dequantize", "qnn.quantize")


# ---- whole modules ------------------------------------------------------------------------------


def network(batch: int | str = 2, wide: int = 8) -> Model:
    """Two inputs, three outputs: a convolution, an addition, a pool, a product."""
    m = Model()
    image = X(codes((2, 2, 6, 6), "uint8"), PX, shape=[batch, 2, 6, 6])
    b, x = m.builder, m.operand(image)
    y = b.qdq(b.op("Conv", x, m.operand(WEIGHT), m.operand(BIAS), pads=[1] * 4), SY, -5, np.int8)
    other = m.operand(X(codes((2, 3, 6, 6), "int8"), PB, shape=[batch, 3, 6, 6]))
    total = b.qdq(b.op("Add", y, other), 2.0, 0, np.int8)
    b.output(b.qdq(b.op("Sigmoid", total), 1 / 256, 0), None)
    m.finish(b.op("GlobalAveragePool", total), PY)
    w = X(codes((108, wide), "int8"), params("int8", 0.01), fixed=True)
    m.finish(b.op("MatMul", b.op("Flatten", total), m.operand(w)), PY)
    return m


def run(module: Any, *arrays: Array) -> list[Array]:
    cpu: Any = tvm.cpu()
    library = tvm.compile(module, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(library, cpu)
    results = machine["main"](*[tvm.runtime.tensor(array) for array in arrays])
    return [part.numpy() for part in results]


def expected(graph: Graph, m: Model) -> list[Array]:
    return list(qb.evaluate(graph, m.inputs).values())


def test_text_round_trip() -> None:
    module, _ = qb.to_relax(network().load())
    again = tvm.script.from_source(module.script(show_meta=True))
    tvm.ir.assert_structural_equal(module, again, map_free_vars=True)


@pytest.mark.parametrize("batch", [2, "n"])
def test_json_round_trip(batch: int | str) -> None:
    module, _ = qb.to_relax(network(batch).load())
    tvm.ir.assert_structural_equal(module, tvm.ir.load_json(tvm.ir.save_json(module)))


def test_emission_is_deterministic() -> None:
    first, second = (qb.to_relax(network("n").load())[0] for _ in range(2))
    tvm.ir.assert_structural_equal(first, second)


def test_main_keeps_the_names_of_the_model() -> None:
    m = network()
    graph = m.load()
    module, arrays = qb.to_relax(graph)
    main = module["main"]
    assert arrays == {}
    assert [p.name for p in main.params] == list(m.inputs)
    assert list(main.attrs["input_names"]) == list(m.inputs)
    assert list(main.attrs["output_names"]) == graph.output_names
    assert main.attrs["num_input"] == 2
    assert len(main.ret_ty.fields) == 3


def test_parameters_bind_back() -> None:
    m = network(wide=640)  # 108 x 640 bytes is more than is kept in the module
    graph = m.load()
    module, arrays = qb.to_relax(graph, keep_params=True)
    assert [a.shape for a in arrays.values()] == [(640, 108)]
    assert [p.name for p in module["main"].params[2:]] == list(arrays)
    assert all(a.flags.c_contiguous for a in arrays.values())
    given: Any = arrays
    bound = relax.transform.BindParams("main", given)(module)
    assert len(bound["main"].params) == 2
    plain, _ = qb.to_relax(graph)
    tvm.ir.assert_structural_equal(plain["main"].body, bound["main"].body, map_free_vars=True)
    for ours, wanted in zip(run(bound, *m.inputs.values()), expected(graph, m), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    unbound = run(module, *m.inputs.values(), *arrays.values())
    for ours, wanted in zip(unbound, expected(graph, m), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_shared_constants_become_one_parameter() -> None:
    m = Model()
    b = m.builder
    w = b.weight(codes((80, 100, 3, 3), "int8"), 0.01)
    for seed in (1, 2):
        x = m.operand(X(codes((2, 100, 4, 4), "uint8", seed), PX))
        m.finish(b.op("Conv", x, w), PY)
    module, arrays = qb.to_relax(m.load(), keep_params=True)
    assert len(arrays) == 1
    assert len(module["main"].params) == 3


def constants(count: int) -> list[Any]:
    """Patterns of their own: one used twice would have to match one constant twice."""
    return [is_const() for _ in range(count)]


def test_patterns_match_and_partition() -> None:
    module, _ = qb.to_relax(network().load())
    conv = is_op("qnn.conv2d")(wildcard(), *constants(5))
    biased = is_op("qnn.requantize")(is_op("relax.add")(conv, is_const()), *constants(4))
    table = is_op("qnn.sigmoid")(wildcard(), *constants(4))
    product = is_op("qnn.dense")(wildcard(), *constants(5))
    dense = is_op("qnn.requantize")(product, *constants(4))
    patterns: Any = [("npu.conv2d", biased), ("npu.table", table), ("npu.dense", dense)]
    parts = relax.transform.FuseOpsByPattern(patterns, annotate_codegen=True)(module)
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Function) and node.attrs and "Composite" in node.attrs:
            found.append(node.attrs["Composite"])

    for function in parts.functions.values():
        if isinstance(function, relax.Function) and function.attrs["global_symbol"] != "main":
            relax.analysis.post_order_visit(function, visit)
    assert sorted(found) == ["npu.conv2d", "npu.dense", "npu.table"]
    assert [c.op.name for c in qnn_calls(parts)] == ["qnn.add", "qnn.dequantize", "qnn.mean"]


def test_every_row_can_be_emitted() -> None:
    """What is emitted as a function of its own has a module of its own; the rest is in tables."""
    assert {row.name for row in OPERATORS if row.apart}.isdisjoint(row.name for row in KNOWN)
    assert {row for row in OPERATORS if not row.apart} <= KNOWN
