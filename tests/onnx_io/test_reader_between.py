"""What files put between a Q and its DQ, and integers at the interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import QuantParams, QuantType, per_tensor
from tests.onnx_models import (
    Array,
    Builder,
    canonical,
    conv_input,
    conv_model,
    ints,
    load,
    ops,
    run,
)

SCALE = 2**-5


def params_of(g: Graph) -> QuantParams:
    (type_,) = {n.output.type for n in g.nodes if n.op.name == "quantize"}
    assert isinstance(type_, QuantType)
    return type_.params


@pytest.mark.idiom("A16")
def test_clip_between_is_a_range() -> None:
    for opset in (10, 13):
        b = Builder(opset)
        stored = b.q(b.input("x", [400]), 0.5, 3, np.int8)
        if opset == 13:
            clipped = b.op("Clip", stored, b.init(np.int8(-7)), b.init(np.int8(90)))
        else:
            clipped = b.op("Clip", stored, min=-7.0, max=90.0)
        b.output(b.dq(clipped, 0.5, 3, np.int8))
        g = canonical(b.model())
        assert ops(g) == ["quantize", "dequantize"]
        assert params_of(g) == per_tensor(DType.INT8, 0.5, 3, qmin=-7, qmax=90)
        x = np.arange(-200, 200).astype(np.float32)
        (y,) = run(g, {"x": x})
        np.testing.assert_array_equal(y, (np.clip(np.rint(x / 0.5) + 3, -7, 90) - 3) * 0.5)


def test_clip_with_one_bound_and_relu_between() -> None:
    b = Builder(14)
    stored = b.q(b.input("x", [4]), 0.5, 3, np.int8)
    upper = b.op("Clip", b.op("Relu", stored), "", b.init(np.int8(9)))
    b.output(b.dq(upper, 0.5, 3, np.int8))
    g = canonical(b.model())
    assert params_of(g) == per_tensor(DType.INT8, 0.5, 3, qmin=0, qmax=9)


@pytest.mark.idiom("A17", "B9")
def test_clip_of_a_stored_weight() -> None:
    b = Builder()
    w = b.op(
        "Clip",
        b.init(np.array([-128, 5, 127], np.int8)),
        b.init(np.int8(-127)),
        b.init(np.int8(100)),
    )
    b.output(b.op("Add", b.input("x", [3]), b.dq(w, 0.5, 0, np.int8)))
    (y,) = run(canonical(b.model()), {"x": np.zeros(3, np.float32)})
    assert y.tolist() == [-63.5, 2.5, 50]


@pytest.mark.idiom("A19")
@pytest.mark.parametrize("count", [1, 3])
def test_casts_to_the_same_type_between_are_nothing(count: int) -> None:
    b = Builder()
    stored = b.q(b.input("x", [4]), SCALE)
    for _ in range(count):
        stored = b.op("Cast", stored, to=TensorProto.UINT8)
    b.output(b.dq(stored, SCALE))
    assert ops(load(b.model())) == ["quantize", "dequantize"]


MOVES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("Transpose", [], {"perm": [0, 2, 3, 1]}),
    ("Reshape", [np.array([1, 2, -1], np.int64)], {}),
    ("Flatten", [], {}),
    ("Slice", [np.array([0], np.int64), np.array([2], np.int64), np.array([2], np.int64)], {}),
    ("Squeeze", [np.array([0], np.int64)], {}),
    ("Unsqueeze", [np.array([0], np.int64)], {}),
    ("MaxPool", [], {"kernel_shape": [2, 2]}),
    ("DepthToSpace", [], {"blocksize": 2}),
    ("Gather", [np.array([1, 0], np.int64)], {"axis": 1}),
    ("Tile", [np.array([1, 2, 1, 1], np.int64)], {}),
    ("Expand", [np.array([2, 1, 1, 1], np.int64)], {}),
]


@pytest.mark.idiom("G10", "K9")
@pytest.mark.parametrize(("op", "extra", "attributes"), MOVES, ids=[m[0] for m in MOVES])
def test_movers_of_stored_integers_and_of_floats_are_one(
    op: str, extra: list[Array], attributes: dict[str, Any]
) -> None:
    digests: set[str] = set()
    for between in (False, True):
        b = Builder()
        x = b.q(b.input("x", [1, 4, 4, 4]), SCALE, 100)
        names = [b.init(e) for e in extra]
        if between:
            y = b.dq(b.op(op, x, *names, **attributes), SCALE, 100)
        else:
            real = b.op(op, b.dq(x, SCALE, 100), *names, **attributes)
            y = b.qdq(real, SCALE, 100)
        b.output(y)
        g = canonical(b.model())
        assert ops(g) == ["quantize", op, "dequantize"]
        digests.add(g.digest)
    assert len(digests) == 1


def test_concat_of_stored_integers() -> None:
    b = Builder()
    x = b.input("x", [2, 2])
    stored = b.op("Concat", b.q(x, SCALE, 9), b.q(x, SCALE, 9), axis=1)
    b.output(b.dq(stored, SCALE, 9))
    g = canonical(b.model())
    (y,) = run(g, {"x": np.array([[1, 2], [3, -9]], np.float32)})
    assert y.tolist() == [[1, 2, 1, 2], [3, -9 / 32, 3, -9 / 32]]


# ---- integer interfaces, two readings of one Q ------------------------------------------------


@pytest.mark.idiom("J4")
def test_integer_inputs_and_outputs_are_quantized_types() -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 3, 6, 6], TensorProto.UINT8), SCALE, 120)
    y = b.op("Relu", b.op("Conv", x, b.weight(ints((4, 3, 3, 3)), 2**-7)))
    b.output(b.q(y, 0.25), None, TensorProto.UINT8)
    g = canonical(b.model())
    assert ops(g) == ["Conv"]
    assert g.inputs[0].type == QuantType(per_tensor(DType.UINT8, SCALE, 120), (1, 3, 6, 6))
    assert isinstance(g.outputs[0].type, QuantType)
    (y_codes,) = run(g, {"x": ints((1, 3, 6, 6), dtype=np.uint8)})
    assert y_codes.dtype == np.uint8


def test_an_integer_input_that_also_leaves_is_typed() -> None:
    b = Builder()
    x = b.input("x", [4], TensorProto.UINT8)
    b.output(b.dq(x, SCALE))
    b.output(x, [4], TensorProto.UINT8)
    g = canonical(b.model())
    assert g.inputs[0].type == QuantType(per_tensor(DType.UINT8, SCALE, 0), (4,))
    y, codes = run(g, {"x": np.array([0, 1, 2, 255], np.uint8)})
    assert y.tolist() == [0, SCALE, 2 * SCALE, 255 * SCALE]
    assert codes.tolist() == [0, 1, 2, 255]


def test_two_readings_of_one_q_are_reinterpretations() -> None:
    b = Builder()
    stored = b.q(b.input("x", [3]), 0.5, 10)
    b.output(b.dq(stored, 0.5, 10))
    b.output(b.dq(stored, 2.0, 0))
    g = canonical(b.model())
    assert ops(g).count("reinterpret") == 1
    same, other = run(g, {"x": np.array([1, 2, 400], np.float32)})
    assert same.tolist() == [1, 2, 122.5]
    assert other.tolist() == [24, 28, 510]


@pytest.mark.idiom("J6")
def test_a_q_of_int32_data() -> None:
    b = Builder()
    x = b.input("x", [4], TensorProto.INT32)
    b.output(b.q(x, 2.0, 1), None, TensorProto.UINT8)
    (y,) = run(load(b.model()), {"x": np.array([1, 3, -9, 7], np.int32)})
    assert y.tolist() == [1, 3, 0, 5]


def test_the_reader_and_the_canonical_form_compute_the_same() -> None:
    for seed in range(3):
        raw, rewritten = load(conv_model()), canonical(conv_model())
        data = conv_input(seed)
        np.testing.assert_array_equal(run(raw, data)[0], run(rewritten, data)[0])
