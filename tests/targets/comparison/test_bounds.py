"""The bounds hold for float32 arithmetic in any order, and are too tight to hide a fault."""

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import qdqbridge
from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.interpreter import evaluate_node
from qdqbridge.core.graph.numerics import dequantize
from qdqbridge.core.graph.operator import NO_ATTRIBUTES
from qdqbridge.core.graph.types import QuantParams, QuantType, TensorType, per_tensor
from qdqbridge.core.ops.attributes import NormAttrs, SoftmaxAttrs
from qdqbridge.core.ops.composition import COMPOSITION, CompositionAttrs, Step
from qdqbridge.core.ops.table import BY_NAME
from qdqbridge.targets.comparison import bounds
from qdqbridge.targets.comparison.causes import ACCUMULATION, BIAS, TIE, UNEXPLAINED, blame
from tests.onnx_io.writer_models import Net

X = per_tensor(DType.UINT8, 0.017, 131)
W = per_tensor(DType.INT8, 0.0093)
Y = per_tensor(DType.UINT8, 0.05, 120)


def value(params, *shape, constant=None):
    type_ = QuantType(params, shape) if isinstance(params, QuantParams) else params
    return Value(type_, constant=None if constant is None else Constant.of(constant))


def dense(count, units, *, bias=None, result=Y):
    inputs = [value(X, 2, count), value(W, units, count)] + ([] if bias is None else [bias])
    return Node(BY_NAME["Dense"], NO_ATTRIBUTES, inputs, [value(result, 2, units)])


def operands(rng, count, units):
    x = rng.integers(0, 256, (2, count)).astype(np.uint8)
    return x, rng.integers(-128, 128, (units, count)).astype(np.int8)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 2**32 - 1))
def test_float32_sums_in_any_order_stay_within_the_bound(count, seed):
    rng = np.random.default_rng(seed)
    x, w = operands(rng, count, 3)
    known = exact(dense(count, 3), (x, w))
    real_x, real_w = dequantize(x, X), dequantize(w, W)
    order = rng.permutation(count)
    products = (real_x[:, None, :] * real_w[None])[..., order]
    one_by_one = np.add.accumulate(products, axis=-1, dtype=np.float32)[..., -1]
    for total in (one_by_one, products.sum(-1, dtype=np.float32), real_x @ real_w.T):
        assert (np.abs(total - known.real) <= known.accumulated).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.floats(1e-3, 1.0), st.integers(0, 2**32 - 1))
def test_float32_layer_norm_stays_within_the_bound(count, scale, seed):
    rng = np.random.default_rng(seed)
    params = per_tensor(DType.UINT8, scale, 7)
    x = rng.integers(0, 256, (2, count)).astype(np.uint8)
    gamma, beta = rng.normal(size=(2, count)).astype(np.float32)
    float_type = TensorType(DType.FLOAT32, (count,))
    inputs = [value(params, 2, count), value(float_type), value(float_type)]
    node = Node(BY_NAME["LayerNormalization"], NormAttrs(1, 1e-5), inputs, [value(Y, 2, count)])
    known = exact(node, (x, gamma, beta))
    real = dequantize(x, params)
    mean = real.mean(axis=1, keepdims=True, dtype=np.float32)
    square = (real * real).mean(axis=1, keepdims=True, dtype=np.float32)
    deviation = np.sqrt(np.maximum(square - mean * mean, 0) + np.float32(1e-5))
    y = (real - mean) / deviation * gamma + beta
    spread = np.var(real.astype(np.float64), axis=1, keepdims=True)
    reliable = spread > 1e-3 * square  # below, E[x*x] - E[x]**2 cancels beyond first order
    assert (np.abs(y - known.real) <= known.accumulated)[reliable[:, 0]].all()


def test_float32_softmax_stays_within_the_bound():
    x = np.random.default_rng(3).integers(0, 256, (50, 40)).astype(np.uint8)
    params = per_tensor(DType.UINT8, 0.1, 0)
    node = Node(BY_NAME["Softmax"], SoftmaxAttrs((1,)), [value(params, 50, 40)], [value(Y, 50, 40)])
    known = exact(node, (x,))
    real = dequantize(x, params)
    powers = np.exp(real - real.max(1, keepdims=True))
    assert (np.abs(powers / powers.sum(1, keepdims=True) - known.real) <= known.accumulated).all()


@pytest.mark.parametrize(
    "name", ["Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Abs", "Neg", "Add", "Mul"]
)
def test_bounds_of_elementwise_operators_are_far_below_one_lsb(name):
    """Otherwise a bound would explain anything."""
    count = 2 if name in ("Add", "Mul") else 1
    codes = np.arange(131, 256, dtype=np.uint8)
    inputs = [value(X, len(codes)) for _ in range(count)]
    node = Node(BY_NAME[name], NO_ATTRIBUTES, inputs, [value(Y, len(codes))])
    known = exact(node, [codes] * count)
    assert float(known.accumulated.max()) < 1e-3 * float(Y.scale)


def exact(node, feeds):
    known = bounds.exact(node, feeds)
    assert known is not None
    return known


def explain(node, feeds, theirs):
    (ours,) = evaluate_node(node, feeds)
    differs = np.asarray(ours != theirs)
    return blame(ours, theirs, differs, exact(node, feeds), node.output.type).causes


def test_one_lsb_off_a_tie_is_a_tie():
    """acc * M = 2.5 exactly: rint gives 2, a hair of float error gives 3."""
    node = Node(
        BY_NAME["Dense"],
        NO_ATTRIBUTES,
        [value(per_tensor(DType.UINT8, 1.0), 1, 1), value(per_tensor(DType.INT8, 1.0), 1, 1)],
        [value(per_tensor(DType.UINT8, 2.0), 1, 1)],
    )
    feeds = (np.array([[5]], np.uint8), np.array([[1]], np.int8))
    assert explain(node, feeds, np.array([[3]], np.uint8)) == {TIE: 1}
    assert explain(node, feeds, np.array([[1]], np.uint8)) == {UNEXPLAINED: 1}
    off_the_tie = (np.array([[4]], np.uint8), feeds[1])
    assert explain(node, off_the_tie, np.array([[3]], np.uint8)) == {UNEXPLAINED: 1}


def cancelling(count):
    """A long sum of large terms that cancel to 0.5 - 2**-14."""
    x = np.full((1, count), 255, np.uint8)
    w = np.tile(np.array([127, -127], np.int8), count // 2)[None]
    w[0, 0], x[0, 0] = 1, 1
    w[0, 1], x[0, 1] = 0, 0
    params = per_tensor(DType.UINT8, 0.5 - 2.0**-14), per_tensor(DType.INT8, 1.0)
    inputs = [value(params[0], 1, count), value(params[1], 1, count)]
    result = value(per_tensor(DType.UINT8, 1.0, 9), 1, 1)
    return Node(BY_NAME["Dense"], NO_ATTRIBUTES, inputs, [result]), (x, w)


def test_cancelling_sums_are_float_accumulation():
    node, feeds = cancelling(12)
    assert explain(node, feeds, np.array([[10]], np.uint8)) == {ACCUMULATION: 1}
    assert explain(node, feeds, np.array([[11]], np.uint8)) == {UNEXPLAINED: 1}


def test_a_bound_that_would_explain_anything_explains_nothing():
    node, feeds = cancelling(4096)
    assert float(exact(node, feeds).accumulated.max()) > 100
    for stored in (8, 11, 60):
        assert explain(node, feeds, np.array([[stored]], np.uint8)) == {UNEXPLAINED: 1}


def test_a_bias_rounded_to_the_accumulator_is_named():
    one = per_tensor(DType.INT32, 1.0)
    bias = value(one, 1, constant=np.array([2], np.int32))
    bias.written = Constant.of(np.array([2.4], np.float32))
    node = Node(
        BY_NAME["Dense"],
        NO_ATTRIBUTES,
        [value(per_tensor(DType.UINT8, 1.0), 1, 1), value(per_tensor(DType.INT8, 1.0), 1, 1), bias],
        [value(per_tensor(DType.UINT8, 0.5), 1, 1)],
    )
    feeds = (np.array([[3]], np.uint8), np.array([[1]], np.int8), np.array([2], np.int32))
    assert explain(node, feeds, np.array([[11]], np.uint8)) == {BIAS: 1}
    assert explain(node, feeds, np.array([[12]], np.uint8)) == {UNEXPLAINED: 1}


def test_saturated_results_are_compared_with_the_saturated_ideal():
    feeds = (np.array([[255] * 9], np.uint8), np.array([[127] * 9], np.int8))
    node = dense(9, 1)
    assert explain(node, feeds, np.array([[254]], np.uint8)) == {UNEXPLAINED: 1}


def test_a_composition_may_be_off_by_what_its_steps_cancel():
    """``1 + erf(x)`` near -1: little is left of numbers that were rounded near 1."""
    params = per_tensor(DType.UINT16, 1e-4, 60000)
    type_ = QuantType(params, (4,))
    steps = (
        Step(BY_NAME["Erf"], NO_ATTRIBUTES, (0,)),
        Step(BY_NAME["Add"], NO_ATTRIBUTES, (1, 2)),
    )
    one = Value(TensorType(DType.FLOAT32, ()), constant=Constant.of(np.ones((), np.float32)))
    node = Node(COMPOSITION, CompositionAttrs(steps), [Value(type_), one], [Value(type_)])
    codes = np.array([0, 5000, 30000, 60000], np.uint16)
    known = exact(node, [codes, np.float32(1)])
    real = dequantize(codes, params).astype(np.float64)
    for nearby in (1 - 2.0**-24, 1 + 2.0**-23):  # an erf that is off by an ulp
        other = 1 + np.vectorize(math.erf)(real) * nearby
        assert (np.abs(other - known.real) <= known.accumulated).all()
    assert float(known.accumulated.max()) < 0.05 * float(params.scale)


def test_sums_of_codes_whose_zero_points_are_one_number(tmp_path):
    """onnxruntime's QLinearAdd: results near a boundary are off by what large codes round to."""
    net, chance, outputs = Net(17), np.random.default_rng(8), []
    for _ in range(100):
        scale = float(chance.uniform(0.004, 0.02))
        zeros = [int(zero) for zero in chance.choice([90, 117, 128, 160], 3)]
        near = 2 * scale * (1 + float(chance.uniform(-1, 1)) * 2.0**-22)  # every other one is a tie
        off = scale * (1 + float(chance.uniform(-1, 1)) * 2.0**-20)
        other = net.constant(chance.integers(0, 256, shape_beside(chance)).astype(np.uint8))
        pairs = [(net.q("x", scale, zeros[0]), scale), (other, off), ("", near)]
        parts = []
        for (name, size), zero in zip(pairs, zeros, strict=True):
            params = net.constant(np.float32(size)), net.constant(np.uint8(zero))
            parts += [*([name] if name else []), *params]
        made = net.op("QLinearAdd", *parts, domain="com.microsoft")
        outputs.append(net.op("DequantizeLinear", made, *parts[-2:]))
    model = net.model(outputs, [4, 64])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path := tmp_path / "sums.onnx")
    data = {"x": chance.normal(scale=0.5, size=(4, 64)).astype(np.float32)}
    found = qdqbridge.compare(qdqbridge.load(path), path, data, local=True)
    assert found.unexplained == 0
    assert sum(value.causes.get(TIE, 0) for value in found.values) > 100


def shape_beside(chance):
    """Returns the shape of a second operand."""
    return ((), (64,), (4, 64))[int(chance.integers(3))]
