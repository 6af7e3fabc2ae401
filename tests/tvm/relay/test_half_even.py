"""The switch between Relay's own arithmetic and the contract's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.ir import Op

from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.tvm.relay.dialect import call, half_even
from qdqbridge.tvm.relay.dialect.registration import NATIVE
from tests.tvm.dialect.contract import Array, contract, params
from tests.tvm.relay.relay_cases import TARGETS, all_args, const

X: Array = np.arange(-9, 10, dtype=np.float32) / 2


def plain_build(module: Any, x: Array) -> Array:
    """What TVM itself makes of a module."""
    with tvm.transform.PassContext(opt_level=3):
        library = relay.build(module, TARGETS[0])
    machine = graph_executor.GraphModule(library["default"](tvm.cpu()))
    machine.set_input("x", x)
    machine.run()
    return machine.get_output(0).numpy()


def quantize_module(x: Array = X) -> Any:
    variable = relay.var("x", shape=x.shape, dtype="float32")
    body = relay.qnn.op.quantize(
        variable, const(1.0, "float32"), const(0, "int32"), out_dtype="int8"
    )
    return relay.transform.InferType()(tvm.IRModule.from_expr(body))


EVEN = np.rint(X).astype(np.int8)
AWAY = (np.sign(X) * np.floor(np.abs(X) + 0.5)).astype(np.int8)


def test_quantize_rounds_as_the_switch_says() -> None:
    module = quantize_module()
    assert not np.array_equal(EVEN, AWAY)
    np.testing.assert_array_equal(plain_build(module, X), AWAY)
    with half_even():
        np.testing.assert_array_equal(plain_build(module, X), EVEN)
        with half_even(False):
            np.testing.assert_array_equal(plain_build(module, X), AWAY)
        np.testing.assert_array_equal(plain_build(module, X), EVEN)
    np.testing.assert_array_equal(plain_build(module, X), AWAY)


def test_every_function_comes_back_after_an_error() -> None:
    def functions() -> list[Any]:
        keys = ("FTVMQnnCanonicalize", "FTVMQnnLegalize")
        return [Op.get(row.name).get_attr(key) for row in NATIVE for key in keys]

    before, changed = functions(), list[Any]()
    with pytest.raises(RuntimeError), half_even():
        changed = functions()
        raise RuntimeError
    after = functions()
    assert [f is None for f in before] == [f is None for f in after]
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a is not None]
    assert all(a.handle.value == b.handle.value for a, b in pairs)
    assert any(f is None and g is not None for f, g in zip(changed, before, strict=True))


def test_add_of_relay_is_exact_only_with_the_switch() -> None:
    pa, pb, py = params("int8", 0.1, 3), params("int8", 0.07, -5), params("int8", 0.13, 1)
    a = np.arange(-128, 128).astype(np.int8)
    b = np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)
    expected = contract("Add", NO_ATTRIBUTES, (a, b), (pa, pb), py)
    x = relay.var("x", shape=(256,), dtype="int8")
    node = call("qnn.add", [x, const(b, "int8"), *all_args(pa, pb, py)])
    assert node.op.name == "qnn.add"
    module = relay.transform.InferType()(tvm.IRModule.from_expr(node))
    with half_even():
        np.testing.assert_array_equal(plain_build(module, a), expected)
    off = plain_build(module, a)
    wrong = np.abs(off.astype(int) - expected.astype(int))
    assert 0 < np.count_nonzero(wrong) < 128
    assert wrong.max() == 1


def test_a_requantize_keeps_the_rounding_that_it_states() -> None:
    x = np.arange(-9, 10).astype(np.int32)
    variable = relay.var("x", shape=x.shape, dtype="int32")
    expected = {
        "TONEAREST_EVEN": np.rint(x / 2),
        "UPWARD": np.floor(x / 2 + 0.5),
        "TONEAREST": np.sign(x) * np.floor(np.abs(x) / 2 + 0.5),
    }
    one, zero = const(1.0, "float32"), const(0, "int32")
    for rounding, values in expected.items():
        node = call(
            "qnn.requantize",
            [variable, const(0.5, "float32"), zero, one, zero],
            {"rounding": rounding, "out_dtype": "int8"},
        )
        assert str(node.attrs.rounding) == ("None" if rounding.endswith("EVEN") else rounding)
        module = relay.transform.InferType()(tvm.IRModule.from_expr(node))
        with half_even():
            np.testing.assert_array_equal(plain_build(module, x), values.astype(np.int8))


def test_upstreams_python_wrappers_are_there() -> None:
    x = relay.var("x", shape=(1, 4, 4, 3), dtype="int8")
    four = [const(0.1, "float32"), const(0, "int32"), const(0.1, "float32"), const(0, "int32")]
    ops = relay.qnn.op
    for node in (
        ops.softmax(x, *four),
        ops.leaky_relu(x, 0.1, *four),
        ops.avg_pool2d(x, *four, (2, 2), (2, 2), (0, 0), (1, 1)),
    ):
        type_ = relay.transform.InferType()(tvm.IRModule.from_expr(node))["main"].ret_type
        assert type_.dtype == "int8"
    assert [int(e) for e in type_.shape] == [1, 2, 2, 3]
