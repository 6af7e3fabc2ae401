"""The interpreter: contract and ideal, wanted values, and inputs that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.core.ops.attributes import TransposeAttrs
from qdqbridge.errors import InputDataError
from tests.core.graph.graphs import (
    OUT,
    U8,
    W8,
    apply,
    const,
    dq,
    graph,
    plain,
    q,
    quant,
    rq,
    stored,
    typed,
)


def test_every_step_is_rounded_once() -> None:
    x = plain("x", (4,))
    g = graph([x], dq(q(x, per_tensor(DType.UINT8, 1.0, 1))))
    data = np.array([0.5, 1.5, -9, 300], np.float32)
    (y,) = evaluate(g, {"x": data})[0].values()
    assert y.dtype == np.float32
    assert y.tolist() == [0, 2, -1, 254]


def test_two_roundings_stay_two() -> None:
    x = stored("x", per_tensor(DType.INT8, 1.0), (3,))
    coarse, fine = per_tensor(DType.INT8, 4.0), per_tensor(DType.INT8, 1.0)
    g = graph([x], rq(rq(x, coarse), fine))
    (y,) = evaluate(g, {"x": np.array([5, 7, 127], np.int8)})[0].values()
    assert y.tolist() == [4, 8, 127]


def test_contract_and_ideal_differ_where_float32_rounds() -> None:
    params = per_tensor(DType.INT16, np.float32(0.1))
    x = plain("x", (400,))
    g = graph([x], q(x, params))
    data = ((np.arange(400) + 0.5) * float(np.float32(0.1))).astype(np.float32)
    contract = evaluate(g, {"x": data})[0]["y0"]
    ideal = evaluate(g, {"x": data}, exact=True)[0]["y0"]
    assert contract.dtype == ideal.dtype == np.int16
    assert (contract != ideal).any()
    assert np.abs(contract.astype(int) - ideal).max() == 1
    np.testing.assert_array_equal(contract, np.rint(data / np.float32(0.1)))
    np.testing.assert_array_equal(ideal, np.rint(data.astype(np.float64) / float(np.float32(0.1))))


def test_the_ideal_keeps_floats_in_float64() -> None:
    x = plain("x", (1,))
    g = graph([x], apply("Add", x, const(np.array([2.0**-30], np.float32))))
    one = {"x": np.ones(1, np.float32)}
    assert evaluate(g, one)[0]["y0"].tolist() == [1.0]
    assert evaluate(g, one)[0]["y0"].dtype == np.float32
    ideal = evaluate(g, one, exact=True)[0]["y0"]
    assert ideal.tolist() == [1 + 2.0**-30]
    assert ideal.dtype == np.float64


def test_accumulators_are_exact() -> None:
    # 2**16 products of 255 * 127 overflow int32 by 2**8 and float32 by far.
    n = 1 << 18
    x = stored("x", per_tensor(DType.UINT8, 1.0), (1, n))
    w = const(np.full((1, n), 127, np.int8), per_tensor(DType.INT8, 1.0))
    y = per_tensor(DType.UINT8, np.float32(2.0**27))
    g = graph([x], apply("Dense", x, w, type_=typed((1, 1), y)))
    data = np.full((1, n), 255, np.uint8)
    expected = round(255 * 127 * n / 2**27)
    assert evaluate(g, {"x": data})[0]["y0"].tolist() == [[expected]]


def test_wanted_values_come_back_as_stored() -> None:
    x = plain("x", (2,))
    a = q(x, U8)
    b = rq(a, OUT)
    c = const(np.array([1, 2], np.uint8), OUT)
    g = graph([x], dq(apply("Add", b, c, type_=typed((2,), OUT))))
    data = np.array([0.5, -1], np.float32)
    outputs, wanted = evaluate(g, {"x": data}, wanted=[a, x, c])
    assert list(outputs) == ["y0"]
    assert wanted[a].tolist() == [144, 96]
    assert wanted[x].tolist() == data.tolist()
    assert wanted[c].tolist() == [1, 2]
    assert b not in wanted


def test_visit_sees_every_node_in_order() -> None:
    x = plain("x", (2,))
    g = graph([x], dq(rq(q(x, U8), OUT)))
    seen: list[str] = []
    evaluate(g, {"x": np.zeros(2, np.float32)}, visit=lambda n: seen.append(n.op.name))
    assert seen == ["quantize", "requantize", "dequantize"]


def test_an_input_may_be_an_output_and_a_constant_too() -> None:
    x, c = plain("x", (1,)), const(np.array([4.0], np.float32))
    g = graph([x], x, c)
    outputs, _ = evaluate(g, {"x": np.array([3], np.float32)})
    assert [outputs[n].tolist() for n in ("y0", "y1")] == [[3.0], [4.0]]


def test_movers_move_stored_integers() -> None:
    x = stored("x", U8, (2, 3))
    y = apply("Transpose", x, type_=typed((3, 2), U8), attributes=TransposeAttrs((1, 0)))
    g = graph([x], y)
    data = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for exact in (False, True):
        got = evaluate(g, {"x": data}, exact=exact)[0]["y0"]
        assert got.dtype == np.uint8
        np.testing.assert_array_equal(got, data.T)


def test_reinterpret_keeps_bits() -> None:
    x = stored("x", U8, (3,))
    y = apply("reinterpret", x, type_=typed((3,), W8))
    g = graph([x], y)
    for exact in (False, True):
        got = evaluate(g, {"x": np.array([0, 127, 255], np.uint8)}, exact=exact)[0]["y0"]
        assert got.tolist() == [0, 127, -1]


@pytest.mark.parametrize(
    ("inputs", "what", "why"),
    [
        ({}, "not those of the model", "missing: ['x']"),
        ({"x": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, "not those", "unknown: ['z']"),
        ({"x": np.zeros((2, 3))}, "element type", "float64"),
        ({"x": np.zeros((2, 4), np.float32)}, "shape", "(2, 4)"),
        ({"x": np.zeros(3, np.float32)}, "shape", "(3,)"),
    ],
    ids=["missing", "unknown", "dtype", "extent", "rank"],
)
def test_inputs_that_do_not_fit(inputs: dict[str, np.ndarray], what: str, why: str) -> None:
    x = plain("x", ("n", 3))
    with pytest.raises(InputDataError, match=what) as caught:
        evaluate(graph([x], x), inputs)
    assert why in caught.value.why
    assert caught.value.fix


def test_lists_of_different_lengths_are_no_array() -> None:
    x = plain("x", (2, 2))
    g = graph([x], x)
    ragged: Any = [[1.0, 2.0], [3.0]]
    with pytest.raises(InputDataError, match="input 'x' is not an array"):
        evaluate(g, {"x": ragged})


def test_extents_of_one_name_must_agree() -> None:
    x, y = plain("x", ("n",)), plain("y", ("n",))
    g = graph([x, y], apply("Add", x, y))
    ones = {"x": np.ones(2, np.float32), "y": np.ones(2, np.float32)}
    assert evaluate(g, ones)[0]["y0"].tolist() == [2, 2]
    with pytest.raises(InputDataError, match="'y' has the wrong shape"):
        evaluate(g, {**ones, "y": np.ones(1, np.float32)})


def test_inputs_are_not_changed() -> None:
    x = plain("x", (3,))
    data = np.array([1, 2, 3], np.float32)
    data.flags.writeable = False
    g = graph([x], dq(q(apply("Relu", x), U8)))
    evaluate(g, {"x": data})
    assert data.tolist() == [1, 2, 3]


def test_stored_numbers_outside_the_range_of_an_input_are_refused() -> None:
    """What reads an input relies on its range: the rewrites leave out what it excludes."""
    params = quant(DType.INT8, 0.1, qmin=-20, qmax=30)
    g = graph([x := stored("x", params, (3,))], dq(x))
    evaluate(g, {"x": np.array([-20, 0, 30], np.int8)})
    empty = graph([x := stored("x", params, (0,))], dq(x))
    evaluate(empty, {"x": np.zeros(0, np.int8)})
    with pytest.raises(InputDataError, match="from -20 to 31") as told:
        evaluate(g, {"x": np.array([-20, 0, 31], np.int8)})
    assert "array.clip(-20, 30)" in str(told.value)
