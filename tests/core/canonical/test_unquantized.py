"""A graph without quantization: the operators, and the clamps that types stood for."""

from __future__ import annotations

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.unquantized import is_quantized, unquantized
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import ClipAttrs
from tests.core.graph.graphs import S8, U8, apply, const, dq, graph, names, plain, q, typed
from tests.places import MODELS

POSITIVE = per_tensor(DType.UINT8, 0.25, 0)


def added(x: Value, params: QuantParams, to: QuantParams) -> Value:
    return apply("Add", q(x, params), const(np.array([1, 2], np.int8), S8), type_=typed((3, 2), to))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (U8, None), (S8, None),
        (POSITIVE, "Relu"),
        (per_tensor(DType.INT8, 0.25, -128), "Relu"),
        (per_tensor(DType.UINT8, 6 / 255, 0), ClipAttrs(0.0, 6.0)),
        (per_tensor(DType.UINT8, 0.25, 100).with_range(96, 255), ClipAttrs(-1.0, None)),
        (per_tensor(DType.UINT8, 0.25, 100).with_range(96, 104), ClipAttrs(-1.0, 1.0)),
        (per_tensor(DType.INT8, 0.25).with_range(-127, 127), None),
        (per_tensor(DType.INT32, 0.25), None),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_clamps_gets_its_clamp_back(
    params: QuantParams, expected: str | ClipAttrs | None
) -> None:
    x = plain("x", (3, 2))
    found = unquantized(canonicalize(graph([x], dq(added(x, U8, params)))))
    verify(found)
    assert names(found)[0] == "Add"
    assert not is_quantized(found)
    if expected is None:
        assert names(found) == ["Add"]
    elif isinstance(expected, str):
        assert names(found) == ["Add", expected]
    else:
        clip = found.nodes[1].record(ClipAttrs)
        # scales are float32, so 255 steps of 6 / 255 are not quite 6
        assert (clip.low, clip.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_what_cannot_be_negative_gets_none() -> None:
    x = plain("x", (3, 2))
    first = added(x, U8, POSITIVE)
    twice = apply("Add", first, first, type_=typed((3, 2), POSITIVE))
    curve = apply("Sigmoid", dq(twice))
    g = canonicalize(graph([x], dq(q(curve, per_tensor(DType.UINT8, 1 / 256, 0)))))
    assert names(unquantized(g)) == ["Add", "Relu", "Add", "Sigmoid"]


def test_an_input_that_is_cut_off_is_not() -> None:
    x = plain("x", (3, 2))
    assert names(unquantized(canonicalize(graph([x], dq(added(x, POSITIVE, U8)))))) == ["Add"]


def test_constants_are_what_their_integers_stand_for() -> None:
    x = plain("x", (3, 2))
    found = unquantized(canonicalize(graph([x], dq(added(x, U8, S8)))))
    feed = {"x": np.array([[1, 2], [3, 4], [5, 6]], np.float32)}
    assert np.array_equal(
        evaluate(found, feed)[0]["y0"], feed["x"] + np.array([1, 2], np.float32) / 64
    )


def test_the_source_stays_as_it_is() -> None:
    g = qb.load(MODELS / "digits_attention_u8s8_per_channel.onnx")
    before = g.digest
    found = qb.unquantize(g)
    assert is_quantized(g) and g.digest == before
    assert not is_quantized(found)
    assert qb.unquantize(found).digest == found.digest


def decibels(expected: np.ndarray, found: np.ndarray) -> float:
    noise = np.square(expected.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(expected.astype(np.float64)).sum() / noise))


@pytest.mark.parametrize(
    ("original", "stored"),
    [
        ("digits_cnn_float", "digits_cnn_u8s8_per_channel"),
        ("digits_cnn_float", "digits_cnn_s8s8_per_tensor"),
        ("digits_attention_float", "digits_attention_u8s8_per_channel"),
    ],
)
def test_it_is_closer_to_the_float_model_than_the_quantized_one(original: str, stored: str) -> None:
    with np.load(MODELS / "digits_test.npz") as arrays:
        data = {"input": arrays["x"][:32].astype(np.float32)}
    models = [qb.load(MODELS / f"{name}.onnx") for name in (original, stored)]
    models.append(qb.unquantize(models[1]))
    expected, rounded, real = (next(iter(qb.evaluate(m, data).values())) for m in models)
    assert decibels(expected, real) >= decibels(expected, rounded)
