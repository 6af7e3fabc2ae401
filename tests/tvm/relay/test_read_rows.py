"""Every plain operator: what is read computes what Relay computes."""

import numpy as np
import pytest
import tvm
from tvm import relay

from qdqbridge import evaluate
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.relay.read import from_relay
from tests.tvm.relay.relay_side import run

X = relay.var("x", shape=(2, 4, 6, 8))
Y = relay.var("y", shape=(2, 4, 6, 8))
LAST = relay.var("x", shape=(2, 6, 8, 4))
THREE = relay.var("x", shape=(2, 4, 6))
MATRIX = relay.var("x", shape=(3, 8))
RANDOM = np.random.default_rng(3)


def const(*shape):
    return relay.const(RANDOM.uniform(0.5, 1.5, shape).astype(np.float32))


CASES = {
    "relu": relay.nn.relu(X),
    "sigmoid": relay.sigmoid(X),
    "tanh": relay.tanh(X),
    "exp": relay.exp(X),
    "log": relay.log(relay.abs(X) + relay.const(0.5)),
    "sqrt": relay.sqrt(relay.abs(X)),
    "rsqrt": relay.rsqrt(relay.abs(X) + relay.const(0.5)),
    "erf": relay.erf(X),
    "negative": relay.negative(X),
    "floor": relay.floor(X),
    "ceil": relay.ceil(X),
    "sin": relay.sin(X),
    "cos": relay.cos(X),
    "clip": relay.clip(X, -0.5, 0.75),
    "leaky_relu": relay.nn.leaky_relu(X, 0.1),
    "prelu": relay.nn.prelu(X, const(4)),
    "prelu_last": relay.nn.prelu(LAST, const(4), axis=3),
    "add": relay.add(X, Y),
    "subtract": relay.subtract(X, const(4, 1, 1)),
    "multiply": relay.multiply(X, const(8)),
    "divide": relay.divide(X, relay.abs(Y) + relay.const(1.0)),
    "power": relay.power(relay.abs(X), relay.const(2.0)),
    "maximum": relay.maximum(X, Y),
    "minimum": relay.minimum(X, Y),
    "cast": relay.cast(relay.cast(X, "int32"), "float32"),
    "zeros": relay.add(X, relay.zeros((2, 4, 6, 8), "float32")),
    "full": relay.add(X, relay.full(relay.const(2.0), (8,), "float32")),
    "bias_add": relay.nn.bias_add(X, const(4)),
    "bias_add_last": relay.nn.bias_add(LAST, const(4), axis=-1),
    "conv2d": relay.nn.conv2d(X, const(6, 4, 3, 3), padding=(1, 1), channels=6, kernel_size=(3, 3)),
    "conv2d_bias": relay.nn.bias_add(
        relay.nn.conv2d(X, const(6, 4, 1, 1), channels=6, kernel_size=(1, 1)), const(6)
    ),
    "conv2d_groups": relay.nn.conv2d(
        X, const(6, 2, 3, 3), groups=2, channels=6, kernel_size=(3, 3)
    ),
    "conv2d_last": relay.nn.conv2d(
        LAST, const(3, 3, 4, 6), data_layout="NHWC", kernel_layout="HWIO", padding=(1, 0, 2, 1),
        strides=(2, 1), kernel_size=(3, 3), channels=6,
    ),
    "conv2d_depthwise_last": relay.nn.conv2d(
        LAST, const(3, 3, 4, 2), data_layout="NHWC", kernel_layout="HWOI", groups=4,
        kernel_size=(3, 3), channels=8,
    ),
    "conv1d": relay.nn.conv1d(THREE, const(5, 4, 3), padding=1, kernel_size=3, channels=5),
    "conv2d_transpose": relay.nn.conv2d_transpose(
        X, const(4, 5, 3, 3), strides=(2, 2), padding=(1, 1), output_padding=(1, 1),
        kernel_size=(3, 3), channels=5,
    ),
    "dense": relay.nn.dense(MATRIX, const(5, 8)),
    "matmul": relay.nn.matmul(MATRIX, const(5, 8), transpose_b=True),
    "batch_matmul": relay.nn.batch_matmul(THREE, const(2, 5, 6)),
    "batch_matmul_nn": relay.nn.batch_matmul(THREE, const(2, 6, 5), transpose_b=False),
    "max_pool2d": relay.nn.max_pool2d(X, (3, 2), strides=(2, 2), padding=(1, 0, 1, 1)),
    "max_pool2d_last": relay.nn.max_pool2d(LAST, (2, 2), strides=(2, 2), layout="NHWC"),
    "avg_pool2d": relay.nn.avg_pool2d(X, (3, 3), padding=(1, 1)),
    "avg_pool2d_padding": relay.nn.avg_pool2d(X, (3, 3), padding=(1, 1), count_include_pad=True),
    "avg_pool1d": relay.nn.avg_pool1d(THREE, 2, strides=2),
    "global_avg_pool2d": relay.nn.global_avg_pool2d(X),
    "global_avg_pool2d_last": relay.nn.global_avg_pool2d(LAST, layout="NHWC"),
    "global_max_pool2d": relay.nn.global_max_pool2d(X),
    "adaptive_avg_pool2d": relay.nn.adaptive_avg_pool2d(X, (1, 1)),
    "mean": relay.mean(X, axis=(1, -1)),
    "mean_all": relay.mean(X),
    "mean_exclude": relay.mean(X, axis=1, exclude=True, keepdims=True),
    "sum": relay.sum(X, axis=2, keepdims=True),
    "max": relay.max(X, axis=3),
    "min": relay.min(X, axis=1),
    "variance": relay.variance(X, axis=2, keepdims=True),
    "softmax": relay.nn.softmax(X, axis=1),
    "log_softmax": relay.nn.log_softmax(X),
    "layer_norm": relay.nn.layer_norm(X, const(8), const(8), epsilon=1e-3),
    "layer_norm_without_beta": relay.nn.layer_norm(X, const(8), const(8), center=False),
    "instance_norm": relay.nn.instance_norm(X, const(4), const(4)),
    "group_norm": relay.nn.group_norm(X, const(4), const(4), num_groups=2),
    "batch_norm": relay.nn.batch_norm(X, const(4), const(4), const(4), const(4))[0],
    "l2_normalize": relay.nn.l2_normalize(X, 1e-6, axis=[1]),
    "reshape": relay.reshape(X, (0, -1, 8)),
    "transpose": relay.transpose(X, (0, 2, 3, 1)),
    "transpose_all": relay.transpose(X),
    "layout_transform": relay.layout_transform(X, "NCHW", "NHWC"),
    "squeeze": relay.squeeze(relay.mean(X, axis=2, keepdims=True), axis=[2]),
    "expand_dims": relay.expand_dims(X, -1, 2),
    "strided_slice": relay.strided_slice(X, [0, 1, 0, -3], [2, 4, 6, 8], [1, 1, 2, 1]),
    "strided_slice_size": relay.strided_slice(
        X, [0, 1, 0, 4], [2, 2, -1, 3], slice_mode="size"
    ),
    "split": relay.concatenate(tuple(relay.split(X, (1, 3), axis=1)), 1),
    "concatenate": relay.concatenate((X, Y), axis=-1),
    "stack": relay.stack((X, Y), axis=1),
    "take": relay.take(X, relay.const(np.array([3, 0], "int32")), axis=3),
    "take_flat": relay.take(X, relay.const(np.array([7, 100], "int32"))),
    "pad": relay.nn.pad(X, ((0, 0), (0, 0), (1, 2), (0, 1)), 0.5),
    "pad_edge": relay.nn.pad(X, ((0, 0), (0, 0), (1, 2), (0, 1)), pad_mode="edge"),
    "mirror_pad": relay.nn.mirror_pad(X, ((0, 0), (0, 0), (1, 1), (2, 0)), "REFLECT"),
    "tile": relay.tile(X, (1, 2)),
    "broadcast_to": relay.broadcast_to(relay.mean(X, axis=0, keepdims=True), (3, 4, 6, 8)),
    "batch_flatten": relay.nn.batch_flatten(X),
    "depth_to_space": relay.nn.depth_to_space(X, 2),
    "space_to_depth": relay.nn.space_to_depth(X, 2),
    "where": relay.where(relay.const(RANDOM.random((6, 8)) < 0.5), X, Y),
    **{
        f"resize_{method}_{mode}": relay.image.resize2d(X, (12, 8), None, "NCHW", method, mode)
        for method, mode in (
            ("linear", "half_pixel"), ("linear", "align_corners"), ("linear", "asymmetric"),
            ("cubic", "half_pixel"),
        )
    },
    "resize_nearest": relay.image.resize2d(
        X, (12, 16), None, "NCHW", "nearest_neighbor", "asymmetric", "floor"
    ),
    "resize_last": relay.image.resize2d(LAST, (9, 16), None, "NHWC", "linear", "half_pixel"),
    "upsampling": relay.nn.upsampling(X, 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_row(name):
    body = CASES[name]
    variables = {v.name_hint: v for v in relay.analysis.free_vars(body)}
    function = relay.Function([variables[key] for key in sorted(variables)], body)
    data = {
        key: np.random.default_rng(9).standard_normal([int(d) for d in v.type_annotation.shape])
        .astype(np.float32)
        for key, v in variables.items()
    }  # fmt: skip
    graph = from_relay(function)
    (expected,) = run(
        relay.transform.InferType()(tvm.IRModule.from_expr(function)), data, opt_level=1
    )
    (actual,) = evaluate(graph, data).values()
    assert actual.shape == expected.shape
    # Sums and transcendental functions are rounded in another order.
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_everything_without_a_counterpart_is_listed():
    body = relay.nn.relu(relay.cumsum(relay.argsort(X), axis=1))
    with pytest.raises(UnsupportedModelError) as caught:
        from_relay(relay.Function([X], body))
    assert "cumsum" in str(caught.value)
    assert "argsort" in str(caught.value)


def test_a_form_without_a_counterpart_says_why():
    body = relay.nn.adaptive_avg_pool2d(X, (4, 5))
    with pytest.raises(UnsupportedModelError, match="several elements"):
        from_relay(relay.Function([X], body))


def test_control_flow_is_refused():
    flag = relay.var("flag", shape=(), dtype="bool")
    body = relay.If(flag, X, relay.nn.relu(X))
    with pytest.raises(UnsupportedModelError, match="If"):
        from_relay(relay.Function([flag, X], body))
