"""The dialect as part of Relay modules: registration, JSON, patterns, layouts, shared kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.ir import Op
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard

from qdqbridge.errors import GraphError, InputDataError, UnsupportedTargetError
from qdqbridge.tvm.qnn.dialect import QNN_OPS
from qdqbridge.tvm.relay import build
from qdqbridge.tvm.relay.dialect import call, half_even, lookup, register
from qdqbridge.tvm.relay.dialect.host import names_of
from qdqbridge.tvm.relay.dialect.registration import NATIVE
from tests.tvm.dialect.contract import Array, every_code, params
from tests.tvm.relay.relay_cases import TARGETS, Cases, all_args, const, scale_of, zero_of

P = params("int8", 0.1, 3)


def _network(weights: list[Array]) -> Any:
    """Convolution, bias, requantize and GELU, once per weight; then add, resize and mean."""
    value: Any = relay.var("x", shape=(2, 4, 6, 6), dtype="int8")
    for w in weights:
        conv = call(
            "qnn.conv2d",
            [
                value,
                const(w, "int8"),
                zero_of(P),
                const(0, "int32"),
                scale_of(P),
                const([0.02] * len(w), "float32"),
            ],
            {"padding": [1, 1, 1, 1], "kernel_size": [3, 3], "channels": len(w)},
        )
        value = relay.nn.bias_add(conv, const([9] * len(w), "int32"))
        value = call(
            "qnn.requantize",
            [
                value,
                const([0.002] * len(w), "float32"),
                const(0, "int32"),
                *all_args(P),
            ],
            {"axis": 1},
        )
        value = call("qnn.gelu", [value, *all_args(P, P)])
    value = call("qnn.divide", [value, value, *all_args(P, P, P)])
    value = call("qnn.resize2d", [value, *all_args(P, P)], {"size": [9, 9]})
    value = call("qnn.mean", [value, *all_args(P, P)], {"axis": [2, 3], "keepdims": True})
    return relay.transform.InferType()(tvm.IRModule.from_expr(value))


@pytest.fixture
def weights() -> list[Array]:
    rng = np.random.default_rng(0)
    return [every_code(rng, "int8", (4, 4, 3, 3)) for _ in range(2)]


def _calls(module: Any) -> list[str]:
    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relay.Call) and isinstance(node.op, Op):
            names.append(node.op.name)

    relay.analysis.post_order_visit(module["main"], visit)
    return names


def test_every_operator_is_registered() -> None:
    register()
    natives = {row.name for row in NATIVE}
    for op in QNN_OPS:
        handle = Op.get(op.name)
        assert handle.num_inputs == len(op.arguments)
        if op.name not in natives:
            assert [info.name for info in handle.arguments] == list(op.arguments)
            assert handle.get_attr("FTVMQnnCanonicalize") is not None
        else:
            assert Op.get(op.name.replace("qnn.", "qnn.qdq_")).num_inputs == len(op.arguments)
    with pytest.raises(GraphError):
        lookup("qnn.no_such_operator")


def test_json_round_trip(weights: list[Array]) -> None:
    module = _network(weights)
    again = tvm.ir.load_json(tvm.ir.save_json(module))
    tvm.ir.assert_structural_equal(module, again)


def _constants(count: int) -> list[Any]:
    return [is_constant() for _ in range(count)]


def test_patterns_match_and_make_composites(weights: list[Array]) -> None:
    conv = is_op("qnn.conv2d")(wildcard(), *_constants(5))
    pattern = is_op("qnn.requantize")(is_op("nn.bias_add")(conv, is_constant()), *_constants(4))
    gelu = is_op("qnn.gelu")(wildcard(), *_constants(4)).has_attr({"approximate": "none"})
    table = [("unit.conv2d", pattern), ("unit.gelu", gelu)]
    module = relay.transform.MergeComposite(table)(_network(weights))
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relay.Function) and "Composite" in names_of(node.attrs):
            found.append(str(node.attrs["Composite"]))

    relay.analysis.post_order_visit(module["main"], visit)
    assert sorted(found) == ["unit.conv2d"] * 2 + ["unit.gelu"] * 2


def test_canonicalization_leaves_no_dialect(weights: list[Array]) -> None:
    with half_even(), tvm.target.Target(TARGETS[0]):
        module = relay.qnn.transform.CanonicalizeOps()(_network(weights))
    names = [name for name in _calls(module) if name.startswith("qnn.")]
    assert set(names) == {"qnn.kernel"}
    keys: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, relay.Call) and "key" in names_of(node.attrs):
            keys.add(str(node.attrs["key"]))

    relay.analysis.post_order_visit(module["main"], visit)
    assert len(keys) == 6  # equal calls share one, whatever their weights


def test_convert_layout_goes_through(weights: list[Array]) -> None:
    module = _network(weights)
    desired = {"qnn.conv2d": ["NHWC", "HWIO"], "qnn.resize2d": ["NHWC"]}
    with tvm.transform.PassContext(opt_level=3):
        converted = tvm.transform.Sequential(
            [
                relay.transform.ConvertLayout(desired),
                relay.transform.FoldConstant(),
            ]
        )(module)
    names = _calls(converted)
    assert names.count("layout_transform") == 2  # the input, and the result
    x = every_code(np.random.default_rng(1), "int8", (2, 4, 6, 6))
    (before,), (after,) = (build(m).run({"x": x}).values() for m in (module, converted))
    np.testing.assert_array_equal(before, after)


def test_layouts_move_the_axes_of_attributes() -> None:
    """Channel axes, reductions that keep their axes, and operands of another rank."""
    rng = np.random.default_rng(2)
    x = relay.var("x", shape=(2, 4, 5, 6), dtype="float32")
    value: Any = relay.nn.max_pool2d(x, (1, 1))
    q = params("int8", [0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], axis=1)
    value = call(
        "qnn.qdq_quantize", [value, scale_of(q), zero_of(q)], {"axis": 1, "out_dtype": "int8"}
    )
    other = const(every_code(rng, "int8", (6,)), "int8")
    value = call("qnn.minimum", [value, other, *all_args(q, P, P)], {"lhs_axis": 1})
    value = call("qnn.softmax", [value, *all_args(P, P)], {"axis": [1]})
    value = call("qnn.maximum", [value, value, *all_args(P, P, P)])
    kept = call("qnn.mean", [value, *all_args(P, P)], {"axis": [1]})
    gone = call("qnn.sum", [value, *all_args(P, P)], {"axis": [2, 3]})
    body = relay.Tuple([value, kept, gone])
    module = relay.transform.InferType()(tvm.IRModule.from_expr(body))
    with tvm.transform.PassContext(opt_level=3):
        converted = relay.transform.ConvertLayout({"nn.max_pool2d": ["NHWC"]})(module)
    assert "layout_transform" in _calls(converted)
    data = rng.normal(size=(2, 4, 5, 6)).astype(np.float32)
    before, after = (build(m).run({"x": data}) for m in (module, converted))
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


def test_parameters_must_be_constants_to_build() -> None:
    x, s = relay.var("x", shape=(2, 3), dtype="int8"), relay.var("s", shape=(), dtype="float32")
    module = tvm.IRModule.from_expr(call("qnn.gelu", [x, s, zero_of(P), *all_args(P)]))
    with pytest.raises(UnsupportedTargetError) as error:
        build(module)
    assert "input_scale is not a constant" in str(error.value)
    data = np.zeros((2, 3), np.int8)
    assert build(module, {"s": np.float32(0.1)}).run({"x": data})["output0"].shape == (2, 3)


def test_wrong_inputs_say_what_is_wrong() -> None:
    cases = Cases()
    cases.add("qnn.tanh", [np.zeros((2, 3), np.int8), *all_args(P, P)], {}, np.zeros(1))
    executable = build(cases.module())
    assert executable.input_names == ["x0"]
    for inputs, reason in (
        ({}, "give exactly"),
        ({"x0": np.zeros((2, 3), np.uint8)}, "give int8[2, 3]"),
        ({"x0": np.zeros((2, 4), np.int8)}, "give int8[2, 3]"),
    ):
        with pytest.raises(InputDataError) as error:
            executable.run(inputs)
        assert reason in str(error.value)
    for target in ("no_such_target", "cuda", "llvm -no-such-option"):
        with pytest.raises(UnsupportedTargetError):
            build(cases.module(), target=target)


@pytest.mark.parametrize(
    ("name", "args", "attrs", "reason"),
    [
        ("qnn.nothing", [], {}, "has no operator"),
        ("qnn.gelu", [1], {}, "1 arguments given"),
        ("qnn.gelu", [1, 2, 3, 4, 5], {"alpha": 1}, "unknown attributes ['alpha']"),
        ("qnn.leaky_relu", [1, 2, 3, 4, 5], {}, "missing attributes ['alpha']"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    name: str, args: list[Any], attrs: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GraphError) as error:
        call(name, args, attrs)
    assert reason in str(error.value)


def test_wrong_types_say_what_is_wrong() -> None:
    x = relay.var("x", shape=(2, 3), dtype="int32")
    with pytest.raises(GraphError, match="data has dtype int32"):
        relay.transform.InferType()(tvm.IRModule.from_expr(call("qnn.gelu", [x, *all_args(P, P)])))
