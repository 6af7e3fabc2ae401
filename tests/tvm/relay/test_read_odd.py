"""Forms of Relay's operators that importers seldom write: read as TVM computes them, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

import qdqbridge as qb
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.relay import from_relay
from tests.tvm.relay.relay_side import run

RANDOM = np.random.default_rng(3)


def const(array: Any, dtype: str = "float32") -> Any:
    return relay.const(np.asarray(array, dtype), dtype)


def quantized(x: Any, scale: float = 0.1, zero: int = 7) -> Any:
    return relay.qnn.op.quantize(x, const(scale), const(zero, "int32"), out_dtype="int8")


def real(x: Any, scale: float = 0.1, zero: int = 7) -> Any:
    return relay.qnn.op.dequantize(x, const(scale), const(zero, "int32"))


def _swapped_codes(x: Any) -> Any:
    return real(relay.clip(quantized(x), 6, -6))


def _taken(mode: str) -> Callable[[Any], Any]:
    return lambda x: relay.take(x, const([0, 7, -1], "int32"), axis=1, mode=mode)


def _batch_norm(x: Any) -> Any:
    rows = [const(RANDOM.uniform(0.5, 1.5, 5)) for _ in range(4)]
    return relay.nn.batch_norm(x, *rows, axis=3)[0]


def _instance_norm(x: Any) -> Any:
    rows = [const(RANDOM.uniform(0.5, 1.5, 5)) for _ in range(2)]
    return relay.nn.instance_norm(x, *rows, axis=3)


SAME: dict[str, Callable[[Any], Any]] = {
    "clip swapped": lambda x: relay.clip(x, 1, -1),
    "clip of codes swapped": _swapped_codes,
    "take clip": _taken("clip"),
    "take wrap": _taken("wrap"),
    "batch norm": _batch_norm,
    "instance norm": _instance_norm,
}


@pytest.mark.parametrize("case", SAME)
def test_same_as_tvm(case: str) -> None:
    x = relay.var("x", shape=(2, 3, 4, 5))
    module = tvm.IRModule.from_expr(relay.Function([x], SAME[case](x)))
    data = {"x": RANDOM.normal(0, 3, (2, 3, 4, 5)).astype(np.float32)}
    (actual,) = qb.evaluate(from_relay(module), data).values()
    (expected,) = run(relay.transform.InferType()(module), data)
    # Functions and sums that TVM rounds in its own way.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def _other_layout(x: Any) -> Any:
    w = const(RANDOM.normal(0, 1, (4, 3, 3, 3)))
    return relay.nn.conv2d(x, w, kernel_size=(3, 3), channels=4, out_layout="NHWC")


def _computed_pad(x: Any) -> Any:
    widths = ((0, 0), (0, 0), (1, 1), (1, 1))
    return relay.nn.pad(x, widths, pad_value=relay.max(x))


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "out_layout": (_other_layout, "its data has layout NCHW, its result NHWC"),
    "pad": (_computed_pad, "the number that it pads with is computed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, words = REFUSED[case]
    x = relay.var("x", shape=(1, 3, 5, 5))
    with pytest.raises(UnsupportedModelError, match=words):
        from_relay(relay.Function([x], make(x)))


def test_inputs_of_one_name_are_told_apart() -> None:
    x, y, z = (relay.var("x", shape=(2,)) for _ in range(3))
    body = relay.subtract(x, relay.multiply(y, z))
    graph = from_relay(relay.Function([x, y, z], body))
    assert [value.name for value in graph.inputs] == ["x", "x_2", "x_3"]
    rows = {f"x{end}": np.array([n, 1], np.float32) for end, n in (("", 9), ("_2", 2), ("_3", 3))}
    np.testing.assert_array_equal(qb.evaluate(graph, rows)["output"], [3, 0])


def test_an_average_whose_codes_are_taken_for_others() -> None:
    """The requantize says zero point 0 of an average of codes whose zero point is 7."""
    x = relay.var("x", shape=(6, 4))
    mean = relay.mean(relay.cast(quantized(x), "int32"), axis=1)
    y = relay.qnn.op.requantize(
        mean, const(0.1), const(0, "int32"), const(0.1), const(7, "int32"), out_dtype="int8"
    )
    data = {"x": RANDOM.normal(0, 3, (6, 4)).astype(np.float32)}
    (actual,) = qb.evaluate(from_relay(relay.Function([x], real(y))), data).values()
    (expected,) = run(tvm.IRModule.from_expr(relay.Function([x], real(y))), data)
    # TVM drops the rest of the division by 4, the graph rounds it.
    assert np.abs(actual - expected).max() < 0.11
