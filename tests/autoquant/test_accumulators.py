"""Accumulator bits: bounds against brute force and onnxruntime, pairs against the instruction."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qdqbridge as qb
from qdqbridge.autoquant.hardware.products import (
    accumulators,
    bits_of,
    bounds,
    codes_used,
    dynamic_accumulators,
    observe,
    products,
)
from qdqbridge.autoquant.profiling.samples import Samples
from qdqbridge.autoquant.profiling.stats import TensorStats
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.numerics import dequantize, quantize
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.onnx_io.runtime.products import can_saturate, paired, remedy, saturating
from tests.autoquant.test_collect import MODELS
from tests.onnx_models import Builder, canonical


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_partial_sum_lies_within_the_bounds(seed):
    rng = np.random.default_rng(seed)
    low, high = sorted(int(v) for v in rng.integers(-128, 256, 2))
    weights = rng.integers(-128, 128, (3, 6))
    bias = rng.integers(-1000, 1000, 3)
    smallest, largest = bounds(weights, (low, high), bias)
    inputs = rng.integers(min(low, 0), max(high, 0) + 1, (50, 6))
    for x in inputs:
        terms = np.concatenate([bias[:, None], weights * x], axis=1)
        sums = np.cumsum(terms[:, rng.permutation(7)], axis=1)
        assert (sums >= smallest[:, None]).all() and (sums <= largest[:, None]).all()


def test_the_bounds_are_attained():
    weights, inputs, bias = np.array([[3, -5, 0, 2]]), (-2, 7), np.array([4])
    smallest, largest = bounds(weights, inputs, bias)
    sums = [
        sum(w * x for w, x in zip(weights[0], xs, strict=True))
        for xs in itertools.product(inputs, repeat=4)
    ]
    assert largest == max(sums) + 4 and smallest == min(sums)


@pytest.mark.parametrize(
    ("smallest", "largest", "bits"),
    [(0, 0, 1), (-1, 0, 1), (-2, 1, 2), (0, 127, 8), (-128, 0, 8), (-129, 0, 9), (0, 2**31, 33)],
)
def test_bits_of_twos_complement(smallest, largest, bits):
    assert bits_of(np.array([smallest]), np.array([largest])).tolist() == [bits]


def vpmaddubsw(x, w):
    """What the instruction computes of unsigned and signed bytes, and whether it saturated."""
    exact = (x.astype(np.int32) * w.astype(np.int32)).reshape(*x.shape[:-1], -1, 2).sum(axis=-1)
    result = np.clip(exact, -32768, 32767)
    return result.astype(np.int16), (result != exact).any()


def test_pairs_are_those_that_saturate_in_16_bits():
    values = np.array([-128, -127, -65, -64, 0, 1, 63, 64, 65, 127])
    for a, b in itertools.product(values, values):
        inputs = itertools.product([0, 255], repeat=2)
        emulated = any(vpmaddubsw(np.array(x), np.array([a, b]))[1] for x in inputs)
        assert saturating(np.array([[a, b]]))[0] == emulated


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_pairs_within_a_range_of_codes(seed):
    rng = np.random.default_rng(seed)
    low, high = sorted(int(v) for v in rng.integers(0, 256, 2))
    pair = rng.integers(-128, 128, 2)
    inputs = itertools.product(range(low, high + 1, max(1, (high - low) // 7)), [low, high])
    emulated = any(
        vpmaddubsw(np.array(x), pair)[1] for x in itertools.product([low, high], [low, high])
    )
    assert can_saturate(pair, (low, high)) == emulated
    assert emulated or not any(vpmaddubsw(np.array(x), pair)[1] for x in inputs)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_remedy_is_enough_and_no_more(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(-128, 128, (5, 8)) // rng.integers(1, 4, (5, 1))
    factor = remedy(rows)
    for row, f in zip(rows, factor, strict=True):
        before = per_tensor(DType.INT8, np.float32(rng.uniform(1e-3, 1)))
        after = per_tensor(DType.INT8, np.float32(float(before.scale) * np.float32(f)))
        again = quantize(dequantize(row, before), after)
        assert not saturating(again[None])[0]
        assert (f == 1) == (not saturating(row[None])[0]) and 1 <= f <= 2
        if f > 1:
            assert saturating(np.rint(row / max(f * (1 - 1e-5), 1.0))[None])[0]


def test_a_term_that_is_left_over_cannot_saturate():
    assert paired(np.array([[1, 2, 127]])).tolist() == [[[1, 2]]]
    assert not vpmaddubsw(np.array([255, 0]), np.array([-128, 0]))[1]


def codes_of(graph, images):
    name = graph.inputs[0].name
    values = [v for n in graph.nodes for v in n.outputs if v.quant is not None]
    _, seen = evaluate(graph, {name: images}, wanted=values)
    return {v.name: TensorStats.of(dequantize(seen[v], v.quant.params)) for v in values if v.quant}


IMAGES = np.load(MODELS / "digits_test.npz")["x"][:64]


@pytest.mark.parametrize("name", ["cnn_u8s8_per_channel", "cnn_s8s8_per_tensor"])
def test_a_network(name):
    graph = qb.load(MODELS / f"digits_{name}.onnx")
    stats = codes_of(graph, IMAGES)
    samples = Samples.of(graph.inputs, {graph.inputs[0].name: IMAGES})
    seen = observe(graph, samples)
    rows = accumulators(graph, stats, seen=seen)
    assert [row.operator for row in rows] == ["Conv"] * 5 + ["Dense"]
    for row, other in zip(rows, accumulators(graph, stats), strict=True):
        assert row.calibrated_bits is not None and row.observed is not None
        assert row.calibrated_pairs is not None and row.observed_bits is not None
        assert (row.observed_bits <= row.calibrated_bits).all()
        assert (row.calibrated_bits <= row.bits).all() and row.bits.max() <= row.naive_bits <= 32
        assert (row.smallest <= row.observed[0]).all() and (row.observed[1] <= row.largest).all()
        assert (row.calibrated_pairs <= row.saturating_pairs).all()
        assert (row.saturating_pairs <= row.pairs).all()
        assert ((row.remedy > 1) == (row.saturating_pairs > 0)).all()
        assert row.headroom == 32 - row.bits.max()
        assert (other.calibrated_bits == row.calibrated_bits).all()  # the same data either way
    for codes in codes_used(graph, stats):
        assert 1 <= codes.used <= codes.available <= 256


def test_observing_does_not_depend_on_batches():
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    whole = observe(graph, Samples.of(graph.inputs, {"input": IMAGES[:20]}))
    parts = [
        observe(graph, Samples.of(graph.inputs, {"input": part}))
        for part in (IMAGES[:3], IMAGES[3:20])
    ]
    for node, seen in whole.items():
        merged = parts[0][node].merged(parts[1][node])
        assert (seen.low, seen.high) == (merged.low, merged.high)
        assert (seen.smallest == merged.smallest).all() and (seen.largest == merged.largest).all()


def test_attention_has_products_of_two_activations():
    graph = qb.load(MODELS / "digits_attention_u8s8_per_channel.onnx")
    seen = observe(graph, Samples.of(graph.inputs, {graph.inputs[0].name: IMAGES[:8]}))
    rows = [row for row in accumulators(graph, seen=seen) if row.operator == "MatMul"]
    assert rows
    for row in rows:
        assert row.bits.shape == (1,) and row.pairs == 0 and row.dead_channels == ()
        assert row.observed is not None
        assert row.smallest[0] <= row.observed[0][0] <= row.observed[1][0] <= row.largest[0]


def integer_model(kind, attributes, w, wz, x_shape, xz):
    """Returns an onnxruntime session of an integer product, and a QDQ model of the same one."""
    consts = [
        helper.make_tensor("w", TensorProto.INT8, w.shape, w.tobytes(), raw=True),
        helper.make_tensor("xz", TensorProto.UINT8, [], [xz]),
        helper.make_tensor("wz", TensorProto.INT8, [], [wz]),
    ]
    node = helper.make_node(f"{kind}Integer", ["x", "w", "xz", "wz"], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, x_shape)
    y = helper.make_tensor_value_info("y", TensorProto.INT32, None)
    shifted = (w.astype(np.int16) + 128).astype(np.uint8)  # older ones have no ConvInteger of int8
    bytes_ = [
        helper.make_tensor("w", TensorProto.UINT8, w.shape, shifted.tobytes(), raw=True),
        consts[1],
        helper.make_tensor("wz", TensorProto.UINT8, [], [wz + 128]),
    ]
    integers = helper.make_graph([node], "g", [x], [y], bytes_)
    scales = [
        helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in (("sx", 0.5), ("sw", 2))
    ]
    qdq = [
        helper.make_node("DequantizeLinear", ["x", "sx", "xz"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "wz"], ["wr"]),
        helper.make_node(kind, ["xr", "wr"], ["yr"], **attributes),
    ]
    yr = helper.make_tensor_value_info("yr", TensorProto.FLOAT, None)
    real = helper.make_graph(qdq, "g", [x], [yr], [*consts, *scales])
    opset = [helper.make_opsetid("", 17)]
    models = [helper.make_model(g, opset_imports=opset, ir_version=8) for g in (integers, real)]
    return onnxruntime.InferenceSession(models[0].SerializeToString()), models[1]


CASES = {
    "Conv": ("Conv", {"pads": [1, 1, 1, 1], "strides": [2, 2]}, (6, 3, 3, 3), (4, 3, 7, 7)),
    "grouped": ("Conv", {"group": 2}, (4, 2, 3, 2), (4, 4, 5, 5)),
    "depthwise": ("Conv", {"group": 3}, (3, 1, 3, 3), (4, 3, 6, 6)),
    "MatMul": ("MatMul", {}, (5, 4), (4, 3, 5)),
    "stacked": ("MatMul", {}, (3, 5, 4), (3, 2, 5)),
    "vector": ("MatMul", {}, (5,), (7, 5)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("zero", [0, 3])
def test_sums_are_those_of_onnxruntimes_integer_operators(case, zero, tmp_path):
    kind, attributes, shape, x_shape = CASES[case]
    rng = np.random.default_rng(len(case))
    w = rng.integers(-127, 128, shape).astype(np.int8)
    session, model = integer_model(kind, attributes, w, zero, x_shape, 7)
    onnx.save(model, tmp_path / "m.onnx")
    graph = qb.load(tmp_path / "m.onnx")
    x = rng.integers(0, 256, x_shape).astype(np.uint8)
    sums = np.asarray(session.run(None, {"x": x})[0])
    (product,) = products(graph)
    (row,) = accumulators(graph, seen=observe(graph, Samples({"x": x}, len(x))))
    assert row.observed is not None
    if product.axis is None:
        assert (row.observed[0], row.observed[1]) == (sums.min(), sums.max())
    else:
        others = tuple(i for i in range(sums.ndim) if i != product.axis % sums.ndim)
        assert (row.observed[0] == sums.min(axis=others)).all()
        assert (row.observed[1] == sums.max(axis=others)).all()
    assert (row.smallest <= row.observed[0]).all() and (row.observed[1] <= row.largest).all()


def test_an_input_made_for_it_attains_the_bounds(tmp_path):
    rng = np.random.default_rng(3)
    w = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    session, model = integer_model("Conv", {}, w, 0, ("n", 3, 3, 3), 7)
    onnx.save(model, tmp_path / "m.onnx")
    (row,) = accumulators(qb.load(tmp_path / "m.onnx"))
    worst = np.concatenate([np.where(w > 0, 255, 0), np.where(w > 0, 0, 255)]).astype(np.uint8)
    sums = np.asarray(session.run(None, {"x": worst})[0]).reshape(8, 4)
    assert sums[range(4), range(4)].tolist() == row.largest.tolist()
    assert sums[range(4, 8), range(4)].tolist() == row.smallest.tolist()


def test_pairs_of_a_convolution_are_neighbouring_channels(tmp_path):
    w = np.zeros((1, 4, 1, 2), np.int8)
    w[0, 0, 0, 1] = w[0, 1, 0, 1] = 100  # channels 0 and 1 at one tap
    _, model = integer_model("Conv", {}, w, 0, ("n", 4, 4, 4), 0)
    onnx.save(model, tmp_path / "m.onnx")
    graph = qb.load(tmp_path / "m.onnx")
    assert accumulators(graph)[0].saturating_pairs.tolist() == [1]
    assert accumulators(graph, order="channels-first")[0].saturating_pairs.tolist() == [0]
    # A remedy is more by 2 ** -20 than what is needed, so that its rounding to float32 is enough.
    assert accumulators(graph)[0].remedy[0] == pytest.approx(200 / 129, rel=2**-19)


def test_depthwise_convolutions_form_no_pairs(tmp_path):
    w = np.full((3, 1, 3, 3), 127, np.int8)
    w[1] = 0
    _, model = integer_model("Conv", {"group": 3}, w, 0, ("n", 3, 4, 4), 0)
    onnx.save(model, tmp_path / "m.onnx")
    (row,) = accumulators(qb.load(tmp_path / "m.onnx"))
    assert row.pairs == 0 and not row.saturating_pairs.any() and (row.remedy == 1).all()
    assert row.dead_channels == (1,)
    assert row.terms == 9 and row.largest.tolist() == [9 * 127 * 255, 0, 9 * 127 * 255]


def _dynamic_model(kind: str, seed: int) -> onnx.ModelProto:
    b, rng = Builder(17), np.random.default_rng(seed)
    signed = bool(rng.integers(2))
    dtype = np.int8 if signed else np.uint8
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    zero = b.init(np.array(rng.integers(low, high), dtype)) if rng.integers(2) else ""
    if kind != "matrix":
        image = kind == "image"
        x = b.input("x", ["n", 2, 3, 3] if image else ["n", 6])
        shape = (3, 2, 2, 2) if image else (6, 3)
        weight = b.init(rng.integers(low, high, shape).astype(dtype))
        codes = b.op("DynamicQuantizeLinear", x, outputs=3)
        name = "ConvInteger" if image else "MatMulInteger"
        sums = b.op(name, codes, weight, f"{codes}:2", zero)
        scale = b.op("Mul", f"{codes}:1", b.init(np.float32(0.01)))
        b.output(b.op("Mul", b.op("Cast", sums, to=1), scale), None)
    else:
        x = b.input("x", ["n", 6], TensorProto.UINT8)
        weight = b.init(rng.integers(low, high, (6, 3)).astype(dtype))
        point = b.input("z", [], TensorProto.UINT8) if rng.integers(2) else ""
        b.output(b.op("MatMulInteger", x, weight, point, zero), None, TensorProto.INT32)
    return b.model()


@pytest.mark.parametrize("kind", ["quantized", "matrix", "image"])
def test_sums_of_dynamic_products_lie_within_their_bounds(kind: str) -> None:
    """By the file's own integers, of every end of codes and zero points: the bounds are met."""
    for seed in range(12):
        model = _dynamic_model(kind, seed)
        (row,) = dynamic_accumulators(canonical(model))
        held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        node = next(n for n in model.graph.node if n.op_type.endswith("Integer"))
        weight = held[node.input[1]].astype(np.int64)
        zero = int(held[node.input[3]]) if len(node.input) > 3 and node.input[3] else 0
        rows = weight.reshape(len(weight), -1) if kind == "image" else weight.T
        points = (0, 255) if len(node.input) > 2 and node.input[2] else (0,)
        ends = [
            np.where((rows - zero > 0) == up, 255 - point, -point) * (rows - zero)
            for point in points for up in (True, False)
        ]  # fmt: skip
        sums = np.array([end.sum(axis=1) for end in ends])
        np.testing.assert_array_equal(row.largest, np.maximum(sums.max(axis=0), 0))
        np.testing.assert_array_equal(row.smallest, np.minimum(sums.min(axis=0), 0))
        assert row.terms == rows.shape[1]
        assert (row.bits <= row.naive_bits).all()
