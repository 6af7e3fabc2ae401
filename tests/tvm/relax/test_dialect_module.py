"""The dialect as part of Relax modules: text, JSON, patterns, composites, fusion, sharing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax.dpl import is_const, is_op, wildcard

from qdqbridge.core.graph.numerics import multiplier, requantize
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.core.ops.convolution import correlate
from qdqbridge.errors import GraphError
from qdqbridge.tvm.relax import dialect
from qdqbridge.tvm.relax.dialect import tensor_type
from tests.tvm.relax.dialect_cases import Array, every_code, params, scale_of, zero_of


def _scalar(value: Any, dtype: str) -> Any:
    return relax.const(np.asarray(value), dtype)


def _network(batch: Any, weights: list[Array]) -> tvm.IRModule:
    """Convolution, bias, requantize and sigmoid, once per weight."""
    builder, p = relax.BlockBuilder(), params("int8", 0.1, 3)
    x = relax.Var("x", tensor_type([batch, 4, 6, 6], "int8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: Any = x
            for w in weights:
                conv = dialect.call(
                    "qnn.conv2d",
                    [
                        value,
                        relax.const(w),
                        zero_of(p),
                        _scalar(0, "int32"),
                        scale_of(p),
                        _scalar([0.02] * len(w), "float32"),
                    ],
                    {"padding": [1, 1, 1, 1], "kernel_size": [3, 3], "channels": len(w)},
                )
                value = builder.emit(conv)
                bias = _scalar(np.full((1, len(w), 1, 1), 9), "int32")
                value = builder.emit(relax.op.add(value, bias))
                value = builder.emit(
                    dialect.call(
                        "qnn.requantize",
                        [
                            value,
                            _scalar([0.002] * len(w), "float32"),
                            _scalar(0, "int32"),
                            scale_of(p),
                            zero_of(p),
                        ],
                        {"axis": 1, "out_dtype": "int8"},
                    )
                )
            value = builder.emit(
                dialect.call(
                    "qnn.leaky_relu",
                    [value, scale_of(p), zero_of(p), scale_of(p), zero_of(p)],
                    {"alpha": 0.1},
                )
            )
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


@pytest.fixture
def weights() -> list[Array]:
    rng = np.random.default_rng(0)
    return [every_code(rng, "int8", (4, 4, 3, 3)) for _ in range(3)]


def _calls(module: Any) -> list[str]:
    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.ir.Call) and isinstance(node.op, Op):
            operator: Any = node.op
            names.append(operator.name)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return names


def test_every_operator_is_registered() -> None:
    names = [op.name for op in dialect.QNN_OPS]
    assert len(names) == len(set(names))
    for op in dialect.QNN_OPS:
        handle = Op.get(op.name)
        assert handle.num_inputs == len(op.arguments)
        assert [info.name for info in handle.arguments] == list(op.arguments)
        assert handle.get_attr("FPurity")
        assert handle.get_attr("FInferType") is not None
        assert handle.get_attr("FLegalize") is not None
    dialect.register(dialect.QNN_OPS)
    assert all(Op.get(op.name).num_inputs == len(op.arguments) for op in dialect.QNN_OPS)
    with pytest.raises(GraphError):
        dialect.lookup("qnn.no_such_operator")


def test_text_and_json_round_trip(weights: list[Array]) -> None:
    module = _network(2, weights)
    again = tvm.script.from_source(module.script(show_meta=True))
    tvm.ir.assert_structural_equal(module, again, map_free_vars=True)
    for batch in (2, tirx.Var("n", "int64")):
        module = _network(batch, weights)
        tvm.ir.assert_structural_equal(module, tvm.ir.load_json(tvm.ir.save_json(module)))


def test_symbolic_batch_runs_at_several_sizes(weights: list[Array]) -> None:
    module = _network(tirx.Var("n", "int64"), weights[:1])
    cpu: Any = tvm.cpu()
    machine = relax.VirtualMachine(tvm.compile(module, target=tvm.target.Target("llvm")), cpu)
    p = params("int8", 0.1, 3)
    for batch in (1, 5):
        x = every_code(np.random.default_rng(batch), "int8", (batch, 4, 6, 6))
        record = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1))
        total = correlate(record, x.astype(np.int64) - 3, weights[0].astype(np.int64)) + 9
        codes = requantize(total, multiplier(np.asarray(0.002, np.float32), denominator=p.scale), p)
        real = (codes.astype(np.float32) - 3) * np.float32(0.1)
        leaky = np.where(real >= 0, real, real * np.float32(0.1))
        expected = np.clip(np.rint(leaky / np.float32(0.1)) + 3, -128, 127).astype(np.int8)
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(got, expected)


def test_symbolic_image_sizes(weights: list[Array]) -> None:
    """The extents of a convolution's result are expressions that the next call takes."""
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    builder, p = relax.BlockBuilder(), params("int8", 0.1, 3)
    x = relax.Var("x", tensor_type([n, 4, h, w], "int8"))
    with builder.function("main", [x]):
        both = builder.emit(
            dialect.call(
                "qnn.concatenate",
                [
                    (x, x),
                    (scale_of(p), scale_of(p)),
                    (zero_of(p), zero_of(p)),
                    scale_of(p),
                    zero_of(p),
                ],
                {"axis": 0},
            )
        )
        value = builder.emit(
            dialect.call(
                "qnn.conv2d",
                [
                    both,
                    relax.const(weights[0]),
                    zero_of(p),
                    _scalar(0, "int32"),
                    scale_of(p),
                    _scalar(0.02, "float32"),
                ],
                {"strides": [2, 2], "padding": [1, 1, 1, 1]},
            )
        )
        builder.emit_func_output(value)
    cpu: Any = tvm.cpu()
    executable = tvm.compile(builder.get(), target=tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, cpu)
    for shape in ((1, 4, 7, 10), (3, 4, 12, 5)):
        data = every_code(np.random.default_rng(0), "int8", shape)
        codes = np.concatenate([data, data]).astype(np.int64) - 3
        record = ConvAttrs((2, 2), (1, 1), (1, 1, 1, 1))
        expected = correlate(record, codes, weights[0].astype(np.int64))
        got = machine["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_array_equal(got, expected.astype(np.int32))


def test_patterns_match_and_make_composites(weights: list[Array]) -> None:
    conv = is_op("qnn.conv2d")(
        wildcard(), is_const(), is_const(), is_const(), is_const(), is_const()
    )
    biased = is_op("relax.add")(conv, is_const())
    constants = [is_const() for _ in range(4)]
    pattern = is_op("qnn.requantize")(biased, *constants)
    module = _network(2, weights)
    module = relax.transform.FuseOpsByPattern(
        [("unit.qnn_conv2d", pattern)], annotate_codegen=True
    )(module)
    composites = [
        function.attrs["Composite"]
        for function in module.functions.values()
        if isinstance(function, relax.Function) and function.attrs and "Codegen" in function.attrs
        for function in _inner(function)
    ]
    assert composites == ["unit.qnn_conv2d"] * 3
    assert _calls(module).count("qnn.leaky_relu") == 1


def _inner(function: relax.Function) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Function) and node.attrs and "Composite" in node.attrs:
            found.append(node)

    relax.analysis.post_order_visit(function, visit)
    return found


def test_legalization_leaves_no_dialect_and_shares_kernels(weights: list[Array]) -> None:
    module = relax.transform.LegalizeOps()(_network(2, weights))
    assert not [name for name in _calls(module) if name.startswith("qnn.")]
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 4  # convolution, add, requantize, table: equal shapes share one


def test_parameters_must_be_constants_to_legalize() -> None:
    builder, p = relax.BlockBuilder(), params("int8", 0.1, 3)
    x = relax.Var("x", tensor_type([2, 3], "int8"))
    scale = relax.Var("s", tensor_type([], "float32"))
    with builder.function("main", [x, scale]):
        value = builder.emit(
            dialect.call("qnn.tanh", [x, scale, zero_of(p), scale_of(p), zero_of(p)])
        )
        builder.emit_func_output(value)
    module = builder.get()
    with pytest.raises(GraphError) as error:
        relax.transform.LegalizeOps()(module)
    assert "input_scale is not a constant" in str(error.value)
