"""What exporters and optimizers write instead of a product, an activation or a reshape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from qdqbridge.onnx_io.writer import to_proto
from tests.onnx_models import Builder, canonical, load, ops, run


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ints(b: Builder, *numbers: int) -> str:
    return b.init(np.array(numbers, np.int64))


# ---- a view by strides -------------------------------------------------------------------------


def strided(shape: Sequence[Any], *, step: int = 1, late: bool = False) -> Builder:
    """PyTorch's ``as_strided``: all that x holds, by sums of a Range per axis."""
    b = Builder(18)
    x = b.input("x", list(shape))
    flat = b.op("Reshape", x, ints(b, -1))
    behind, total = step, ""
    for axis in reversed(range(len(shape))):
        extent = b.op("Squeeze", b.op("Shape", x, start=axis, end=axis + 1), ints(b, 0))
        places = b.op("Range", b.init(np.array(0)), extent, b.init(np.array(1)))
        places = b.op("Mul", places, b.init(np.array(behind)))
        if later := len(shape) - 1 - axis:
            places = b.op("Unsqueeze", places, ints(b, *range(1, 1 + later)))
        total = b.op("Add", places, total) if total else places
        behind *= shape[axis] if isinstance(shape[axis], int) else 1
    total = b.op("Add", total, b.init(np.array([int(late)])))
    b.output(b.op("Flatten", b.op("Gather", flat, total)), [None, None])  # type: ignore[list-item]
    return b


@pytest.mark.parametrize("shape", [["n", 8, 1, 1], [2, 8, 1, 1], ["n", 2, 3, 4], [3, 1, 5], [1, 4]])
def test_a_view_of_all_by_strides_is_a_reshape(shape: list[Any]) -> None:
    b = strided(shape)
    found = canonical(b.model())
    assert set(ops(found)) <= {"Flatten"}
    x = floats(*(2 if extent == "n" else extent for extent in shape))
    np.testing.assert_array_equal(run(found, {"x": x})[0], x.reshape(len(x), -1))


@pytest.mark.parametrize("shape", [["n", 8, 1, 1], [2, 8], [3, 2, 2]])
@pytest.mark.parametrize("more", [{"step": 0}, {"late": True}])
def test_indices_that_skip_or_repeat_stay_a_gather(shape: list[Any], more: Any) -> None:
    assert "Gather" in ops(canonical(strided(shape, **more).model()))


def test_constant_indices_in_order_and_not() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shape = tuple(int(extent) for extent in rng.integers(1, 5, rng.integers(1, 4)))
        index = np.arange(np.prod(shape)).reshape(shape)
        other = seed % 2 == 1
        if other:
            index = rng.permutation(index.reshape(-1)).reshape(shape)
        b = Builder(17)
        x = b.input("x", [index.size])
        b.output(b.op("Gather", b.op("Neg", x), b.init(index)), list(shape))
        found, raw, data = canonical(b.model()), load(b.model()), floats(index.size)
        in_order = np.array_equal(index.reshape(-1), np.arange(index.size))
        assert ("Gather" in ops(found)) != in_order
        np.testing.assert_array_equal(run(found, {"x": data})[0], run(raw, {"x": data})[0])


# ---- products of rows --------------------------------------------------------------------------


def product(shape: Sequence[Any], *, rows: bool, quantized: bool) -> Builder:
    """A product with a bias, of all axes at once or of rows between two Reshapes."""
    b = Builder(17)
    x, count = b.input("x", list(shape)), shape[-1]
    w = b.init(floats(count, 6))
    if quantized:
        x = b.qdq(x, 0.05, 128)
        stored = np.random.default_rng(1).integers(-99, 99, (count, 6)).astype(np.int8)
        w = b.op("DequantizeLinear", b.init(stored), b.init(np.float32(0.02)), b.init(np.int8(0)))
    bias = b.init(floats(6, seed=2))
    if rows:
        y = b.op("Gemm", b.op("Reshape", x, ints(b, -1, count)), w, bias)
        y = b.qdq(y, 0.1, 128) if quantized else y
        left = [extent if isinstance(extent, int) else -1 for extent in shape[:-1]]
        y = b.op("Reshape", y, ints(b, *left, 6))
    else:
        y = b.op("Add", b.op("MatMul", x, w), bias)
        y = b.qdq(y, 0.1, 128) if quantized else y
    b.output(y, [*shape[:-1], 6])
    return b


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("shape", [[2, 3, 4], ["n", 3, 4], [2, 3, 5, 7], [1, 1, 4], [4, 1, 2, 3]])
def test_rows_between_reshapes_are_the_product_itself(shape: list[Any], quantized: bool) -> None:
    whole = canonical(product(shape, rows=False, quantized=quantized).model())
    rows = product(shape, rows=True, quantized=quantized).model()
    found = canonical(rows)
    assert found.digest == whole.digest
    x = {"x": floats(*(2 if extent == "n" else extent for extent in shape))}
    # float products may add in another order; 1e-6 of numbers around 1
    tolerance = 0 if quantized else 1e-6
    np.testing.assert_allclose(run(found, x)[0], run(load(rows), x)[0], tolerance, tolerance)


def drawn_product(seed: int, *, rows: bool) -> Builder:
    """A product of any rank as exporters write it, or as optimizers do: a Gemm between Reshapes."""
    rng = np.random.default_rng(seed)
    b, rank, count, units = Builder(17), int(rng.integers(1, 5)), int(rng.integers(2, 5)), 6
    shape: list[Any] = [*map(int, rng.integers(1, 4, rank - 1)), count]
    if rank > 1 and rng.random() < 0.5:
        shape[0] = "n"
    x, style = b.input("x", shape), seed % 3
    w = b.init(rng.normal(size=(count, units)).astype(np.float32))
    if style:
        stored = rng.integers(-99, 99, (count, units)).astype(np.int8)
        w = b.op("DequantizeLinear", b.init(stored), b.init(np.float32(0.02)), b.init(np.int8(0)))
    x = b.qdq(x, 0.05, 128) if style == 2 or rng.random() < 0.5 else x
    bias = b.init(rng.normal(size=units).astype(np.float32)) if rng.random() < 0.7 else ""
    rounded, moved = rng.random() < 0.7, rng.random() < 0.5
    y = b.op("Gemm", b.op("Reshape", x, ints(b, -1, count)), w, bias) if rows else ""
    y = y or (b.op("Add", b.op("MatMul", x, w), bias) if bias else b.op("MatMul", x, w))
    y = b.qdq(y, 0.1, 128) if rounded and not (rows and moved) else y
    if rows:
        left = [extent if isinstance(extent, int) else -1 for extent in shape[:-1]]
        y = b.op("Reshape", y, ints(b, *left, units))
        y = b.qdq(y, 0.1, 128) if rounded and moved else y
    b.output(b.op("Neg", y), [*shape[:-1], units])
    if seed % 2:  # another reader of the rows
        b.output(b.op("Abs", b.op("Reshape", y, ints(b, -1, 2))), None)
    return b


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_products_of_every_rank_have_one_form(first: int) -> None:
    for seed in range(first, first + 25):
        one, other = (canonical(drawn_product(seed, rows=r).model()) for r in (False, True))
        assert one.text() == other.text(), seed
        shape = [d if isinstance(d, int) else 3 for d in one.inputs[0].type.shape or ()]
        data = {"x": floats(*shape)}
        raw = load(drawn_product(seed, rows=True).model())
        # a step of the result (0.1) where a bias of an integer product is rounded to its unit
        np.testing.assert_allclose(
            run(one, data)[0], run(raw, data)[0], 1e-5, 0.1001, err_msg=f"{seed}"
        )


@pytest.mark.parametrize("quantized", [False, True])
def test_rows_of_one_value_are_written_as_products(quantized: bool) -> None:
    b = Builder(17)
    x = b.input("x", [1, 3, 4])
    x = b.qdq(x, 0.05, 128) if quantized else x
    for _ in range(3):
        rows = b.op("Reshape", x, ints(b, -1, 4))
        rows = b.qdq(rows, 0.05, 128) if quantized else rows
        w, bias = b.init(floats(4, 6)), b.init(floats(6, seed=2))
        if quantized:
            stored = np.random.default_rng(1).integers(-99, 99, (4, 6)).astype(np.int8)
            w = b.op("DequantizeLinear", b.init(stored), b.init(np.float32(1)), b.init(np.int8(0)))
        y = b.op("Gemm", rows, w, bias)
        y = b.qdq(y, 0.1, 128) if quantized else y
        b.output(b.op("Reshape", y, ints(b, 1, 3, 2, 3)), [1, 3, 2, 3])
    found = canonical(b.model())
    products = [node for node in found.nodes if node.op.name in ("Dense", "MatMul", "Gemm")]
    assert {node.operand(0).rank for node in products} == {3}
    again = canonical(to_proto(found))
    assert again.digest == found.digest
    data = {"x": floats(1, 3, 4)}
    for ours, theirs in zip(run(again, data), run(found, data), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_rows_of_other_extents_stay() -> None:
    b = Builder(17)
    x = b.input("x", [2, 3, 4])
    y = b.op("Gemm", b.op("Reshape", x, ints(b, 3, 8)), b.init(floats(8, 6)))
    b.output(b.op("Reshape", y, ints(b, 2, 3, 3)), [2, 3, 3])
    assert ops(canonical(b.model())) == ["Reshape", "Gemm", "Reshape"]


# ---- one operator each -------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_a_hard_swish_is_its_gate_times_its_operand(swapped: bool) -> None:
    graphs = list[Any]()
    for written in (False, True):
        b = Builder(17)
        x = b.input("x", [2, 9])
        y = b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5) if written else b.op("HardSwish", x)
        if written:
            y = b.op("Mul", *((x, y) if swapped else (y, x)))
        b.output(y, [2, 9])
        graphs.append(canonical(b.model()))
    assert graphs[0].digest == graphs[1].digest
    assert ops(graphs[1]) == ["HardSwish"]
    data = {"x": floats(2, 9) * 3}
    np.testing.assert_array_equal(run(graphs[1], data)[0], run(load(b.model()), data)[0])


@pytest.mark.parametrize("more", [{"alpha": 0.2}, {"beta": 0.25}])
def test_another_gate_is_no_hard_swish(more: dict[str, float]) -> None:
    b = Builder(17)
    x = b.input("x", [2, 9])
    attributes: Any = {"alpha": 1 / 6, "beta": 0.5, **more}
    gate = b.op("HardSigmoid", x, **attributes)
    b.output(b.op("Mul", x, gate), [2, 9])
    assert ops(canonical(b.model())) == ["HardSigmoid", "Mul"]


@pytest.mark.parametrize(
    ("op_type", "operands", "more"),
    [
        ("Clip", [floats(2, 5), np.float32(-0.5), np.float32(0.5)], {}),
        ("LeakyRelu", [floats(2, 5)], {"alpha": 0.1}),
        ("PRelu", [floats(2, 5), floats(5)], {}),
        ("Hardmax", [floats(2, 5)], {}),
        ("EyeLike", [floats(2, 5)], {}),
        ("GatherElements", [floats(2, 5), np.array([[1, 0]])], {}),
        ("ReduceMax", [floats(2, 5)], {"axes": [1]}),
        ("ArgMax", [floats(2, 5)], {"axis": 1}),
        ("MatMulInteger", [np.ones((2, 3), np.uint8), np.ones((3, 2), np.int8)], {}),
    ],
)
def test_what_is_exact_of_constants_is_a_constant(op_type: str, operands: Any, more: Any) -> None:
    b = Builder(17)
    y = b.op(op_type, *(b.init(np.asarray(each)) for each in operands), **more)
    b.outputs.append(onnx.ValueInfoProto(name=y))
    assert not canonical(b.model()).nodes


# ---- what is cut twice, or computed twice ------------------------------------------------------


def _axis(cut: tuple[int, int, int]) -> int:
    return cut[2]


@pytest.mark.parametrize("seed", range(20))
def test_slices_of_several_axes_are_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, axes = (5, 6, 7, 8), rng.permutation(4)[: rng.integers(2, 5)]
    cuts = [(int(rng.integers(0, 2)), int(rng.integers(3, 5)), int(a)) for a in axes]
    apart, at_once = Builder(17), Builder(17)
    x = apart.input("x", shape)
    for start, end, axis in cuts:
        x = apart.op("Slice", x, ints(apart, start), ints(apart, end), ints(apart, axis))
    apart.output(x, None)
    y = at_once.input("x", shape)
    parts = (ints(at_once, *column) for column in zip(*sorted(cuts, key=_axis), strict=True))
    at_once.output(at_once.op("Slice", y, *parts), None)
    found, wanted = canonical(apart.model()), canonical(at_once.model())
    assert ops(found) == ["Slice"]
    assert found.digest == wanted.digest
    given = {"x": floats(*shape)}
    expected = given["x"]
    for start, end, axis in cuts:
        expected = expected.take(range(start, end), axis=axis)
    np.testing.assert_array_equal(run(found, given)[0], expected)


def test_slices_of_one_axis_stay_two() -> None:
    b = Builder(17)
    x = b.op("Slice", b.input("x", [9]), ints(b, 1), ints(b, 7), ints(b, 0))
    b.output(b.op("Slice", x, ints(b, 1), ints(b, 3), ints(b, 0)), None)
    assert ops(canonical(b.model())) == ["Slice", "Slice"]


@pytest.mark.parametrize(("op_type", "count"), [("IsNaN", 1), ("Hardmax", 1), ("Bernoulli", 2)])
def test_an_operator_without_a_row_is_there_once_unless_random(op_type: str, count: int) -> None:
    b = Builder(17)
    x = b.input("x", [2, 3])
    for _ in range(2):
        y = b.op("Cast", b.op(op_type, x), to=onnx.TensorProto.FLOAT)
        b.output(b.op("Relu", y), [2, 3])
    found = ops(canonical(b.model()))
    assert sum(op_type in name for name in found) == count


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("op_type", [f"Reduce{name}" for name in ("Max", "Mean", "Min", "Prod")])
def test_a_reduction_of_one_element_is_that_element(op_type: str, kept: int) -> None:
    b = Builder(17)
    x = b.input("x", ["n", 1, 3])
    for axis in (1, 2):
        y = b.op(op_type, b.op("Neg", x), axes=[axis], keepdims=kept)
        b.output(b.op("Relu", y), None)
    graph = canonical(b.model())
    moved = [] if kept else ["Squeeze"]
    assert ops(graph) == ["Neg", *moved, "Relu", op_type, "Relu"]


def test_a_softmax_of_one_quantized_element_is_one() -> None:
    """Of any other float NaN stays NaN."""
    b = Builder(17)
    x = b.input("x", [2, 1, 3])
    b.output(b.op("Softmax", x, axis=1), [2, 1, 3])
    b.output(b.op("Softmax", b.qdq(x, 0.05, 128), axis=1), [2, 1, 3])
    graph = canonical(b.model())
    assert ops(graph) == ["Softmax"]
    assert graph.outputs[1].constant is not None


def test_a_reshape_needs_no_unsqueeze_before_it() -> None:
    b = Builder(17)
    x = b.input("x", ["n", 4])
    wide = b.op("Unsqueeze", b.op("Neg", x), ints(b, 1))
    b.output(b.op("Relu", b.op("Flatten", wide)), ["n", 4])
    b.output(b.op("Reshape", wide, ints(b, 0, 2, 2)), ["n", 2, 2])
    assert ops(canonical(b.model())) == ["Neg", "Relu", "Reshape"]


@pytest.mark.parametrize("number", [-10000.0, -0.24, 0.03, np.inf])
def test_what_a_rounded_where_chooses_is_rounded_already(number: float) -> None:
    """onnxruntime writes such a number as a constant with a scale of its own."""
    texts: set[str] = set()
    for scale in (None, np.float32(abs(number) / 128)):
        b = Builder(17)
        x = b.input("x", [2, 3])
        other = b.init(np.float32(number))
        if scale is not None and np.isfinite(number):
            code = b.init(np.int8(-128)) if number < 0 else b.init(np.uint8(128))
            zero = b.init(np.int8(0) if number < 0 else np.uint8(0))
            other = b.op("DequantizeLinear", code, b.init(scale), zero)
        y = b.op("Where", b.op("IsNaN", x), b.qdq(x, 0.05, 128), other)
        b.output(b.qdq(y, 0.05, 128), [2, 3])
        texts.add(canonical(b.model()).text())
        found = run(canonical(b.model()), {"x": np.full((2, 3), np.nan, np.float32)})[0]
        np.testing.assert_array_equal(found, run(load(b.model()), {"x": found * np.nan})[0])
    assert len(texts) == 1


# ---- a bias of zeros ---------------------------------------------------------------------------


def product_with(op_type: str, bias: str, *, rounded: bool) -> Builder:
    """Writes no bias, or one of zeros in some form."""
    b = Builder(17)
    x = b.qdq(b.input("x", [2, 4] if op_type == "Gemm" else [1, 4, 3, 3]), 0.5, 3)
    shape = (4, 3) if op_type == "Gemm" else (4, 3, 2, 2) if "T" in op_type else (3, 4, 2, 2)
    numbers = np.random.default_rng(0).integers(-9, 9, shape).astype(np.int8)
    given = [x, b.weight(numbers, 0.25)]
    if bias == "float":
        given.append(b.init(np.zeros(3, np.float32)))
    elif bias != "none":
        scale = b.init(np.array(0.125 if bias == "int32" else 0.7, np.float32))
        given.append(b.op("DequantizeLinear", b.init(np.zeros(3, np.int32)), scale))
    y = b.op(op_type, *given)
    b.output(b.qdq(y, 0.75, 7) if rounded else y)
    return b


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("bias", ["float", "int32", "of another scale"])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm"])
def test_a_bias_of_zeros_is_none(op_type: str, bias: str, rounded: bool) -> None:
    without, written = (
        canonical(product_with(op_type, each, rounded=rounded).model()) for each in ("none", bias)
    )
    assert written.digest == without.digest
