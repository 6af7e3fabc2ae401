"""What ``relay.emit`` writes is read back as the same graph, unless its calls were changed."""

import numpy as np
import onnx
import pytest
from tvm import IRModule, relay
from tvm.relay import ExprMutator

import qdqbridge
from qdqbridge.core.graph.diff import diff
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.qnn.origin import converted, provenance_of
from qdqbridge.tvm.relay import emit, from_relay
from tests.onnx_models import Builder, canonical
from tests.places import MODELS
from tests.tvm.relay.emitted import calls, extents_of, model_of
from tests.tvm.relay.networks import classifier
from tests.tvm.relay.relay_side import fixed, run
from tests.tvm.relay.test_emit_operators import ALL, FLOATING

NETWORKS = (
    "digits_cnn_u8s8_per_channel",
    "digits_cnn_s8s8_per_tensor",
    "digits_attention_u8s8_per_channel",
    "classifier",
)
SPELLINGS = ("canonical", "tflite", "dnnl", "fq2i")


@pytest.fixture(scope="module", params=NETWORKS)
def graph(request, tmp_path_factory):
    if request.param == "classifier":
        return classifier()[0]
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    onnx.save(fixed(MODELS / f"{request.param}.onnx"), path)
    return qdqbridge.load(path)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("variant", SPELLINGS)
def test_every_spelling_keeps_the_digest(graph, variant, layout):
    module, params = emit(graph, variant, layout, keep_params=True)
    read = from_relay(module, params)
    assert diff(read, graph) == []
    assert read.digest == graph.digest
    assert [v.name for v in read.inputs] == [v.name for v in graph.inputs]
    assert read.output_names == graph.output_names


CHANNELS_LAST = [("canonical", "NHWC"), ("tflite", "NHWC")]
OPERATORS = {
    ("test_emit_accumulate", "test_convolutions"): [("tflite", "NCHW")],
    ("test_emit_accumulate", "test_transposed_convolutions"): [("tflite", "NCHW")],
    ("test_emit_accumulate", "test_matrix_products_with_a_constant"): CHANNELS_LAST,
    ("test_emit_rows", "test_average_pools"): CHANNELS_LAST[:1],
    ("test_emit_rows", "test_reductions"): CHANNELS_LAST,
    ("test_emit_rows", "test_softmax"): CHANNELS_LAST,
    ("test_emit_rows", "test_channel_norms"): CHANNELS_LAST,
    ("test_emit_rows", "test_resize"): CHANNELS_LAST,
    ("test_emit_elementwise", "test_tables"): CHANNELS_LAST,
    ("test_emit_elementwise", "test_several_operands"): CHANNELS_LAST,
    ("test_emit_data_movement", "test_maxima"): CHANNELS_LAST,
    ("test_emit_data_movement", "test_resize_of_the_nearest"): CHANNELS_LAST,
    ("test_emit_floating", "test_unary"): CHANNELS_LAST,
    ("test_emit_floating", "test_windows"): [("canonical", "NCHW")],
}
"""Models of the tests of Relax emission, and forms in which all of their nodes come back."""


@pytest.mark.parametrize(("module", "test"), OPERATORS)
def test_operators_keep_the_digest(module, test, monkeypatch):
    graph = model_of(module, test, monkeypatch).load()
    for variant, layout in OPERATORS[module, test]:
        assert diff(from_relay(*emit(graph, variant, layout)), graph) == [], (variant, layout)


@pytest.mark.parametrize(("module", "test"), [*ALL, *(("test_emit_floating", n) for n in FLOATING)])
def test_operators_compute_what_they_did(module, test, monkeypatch):
    """Also those that come back in another variant: vectors, stacks, 1-D images, crops."""
    model = model_of(module, test, monkeypatch)
    graph = model.load()
    extents = extents_of(graph, model.inputs)
    wanted = qdqbridge.evaluate(graph, model.inputs)
    for variant in ("canonical", "tflite"):
        read = from_relay(*emit(graph, variant, "NHWC", extents=extents))
        for name, found in qdqbridge.evaluate(read, model.inputs).items():
            if found.dtype.kind == "f":  # means of other axes add in another order
                np.testing.assert_allclose(found, wanted[name], rtol=2**-22, atol=2**-22)
            else:
                assert found.tobytes() == wanted[name].tobytes(), (variant, name)


def test_parameters_that_were_left_behind_are_asked_for():
    n = Builder(18)
    w = n.init(np.ones((160, 160), np.float32))
    n.output(n.op("MatMul", n.input("x", [2, 160]), w))
    module, params = emit(canonical(n.model()), keep_params=True)
    assert len(params) == 1
    with pytest.raises(UnsupportedModelError, match="has no value"):
        from_relay(module)


# ---- what the calls say counts -----------------------------------------------------------------


class Changed(ExprMutator):  # pyright: ignore[reportUntypedBaseClass]
    """Rewrites the calls of one operator, and leaves their spans."""

    def __init__(self, op, rewrite):
        super().__init__()
        self.op, self.rewrite = op, rewrite

    def visit_call(self, call):
        made = super().visit_call(call)
        if getattr(made.op, "name", "") != self.op:
            return relay.Call(made.op, made.args, made.attrs, made.type_args, call.span)
        new = self.rewrite(made)
        return relay.Call(new.op, new.args, new.attrs, new.type_args, call.span)


def image_net(op, **attributes):
    n = Builder(18)
    inputs = [n.qdq(n.input("x", [1, 2, 4, 4]), 0.05, 3, np.int8)]
    inputs += attributes.pop("more", lambda n: [])(n)
    n.output(n.qdq(n.op(op, *inputs, **attributes), 0.05, 3, np.int8))
    return canonical(n.model())


def resize(method):
    def rewrite(call):
        return relay.image.resize2d(
            call.args[0], (8, 8), layout="NHWC", method="nearest_neighbor",
            coordinate_transformation_mode=method, rounding_method="floor",
        )  # fmt: skip

    return rewrite


CHANGES = {
    "Flatten": (
        {"axis": 2}, "reshape", lambda call: relay.reshape(call.args[0], (4, 8)),
        {"shape": (-1, 8)},
    ),
    "Transpose": (
        {"perm": [0, 2, 3, 1]}, "transpose",
        lambda call: relay.transpose(call.args[0], (0, 2, 1, 3)), {"perm": (0, 2, 1, 3)},
    ),
    "Resize": (
        {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric",
         "more": lambda n: ["", n.init(np.array([1, 1, 2, 2], np.float32))]},
        "image.resize2d", resize("half_pixel"), {"coordinate_transformation_mode": "half_pixel"},
    ),
    "MaxPool": (
        {"kernel_shape": [2, 2], "strides": [2, 2]}, "nn.max_pool2d",
        lambda call: relay.nn.max_pool2d(call.args[0], (3, 3), (2, 2), padding=(1, 1),
                                         layout="NHWC"),
        {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", CHANGES)
def test_a_call_that_was_changed_is_read_as_it_is(op):
    attributes, name, rewrite, wanted = CHANGES[op]
    graph = image_net(op, **attributes)
    module, _ = emit(graph, "tflite")
    function = Changed(name, rewrite).visit(module["main"])
    function = relay.Function(function.params, function.body, attrs=function.attrs)
    read = from_relay(relay.transform.InferType()(IRModule.from_expr(function)))
    assert read.digest != graph.digest
    found = [
        node.attributes for node in read.nodes
        if all(getattr(node.attributes, key, None) == value for key, value in wanted.items())
    ]  # fmt: skip
    assert found, read.text()


def test_another_scale_than_that_of_the_product_is_refused():
    """Weights with a scale per channel, and one number for the accumulator."""
    module, _ = emit(classifier()[0])

    def rewrite(call):
        if not call.args[1].data.shape:
            return call
        args = [call.args[0], relay.const(np.float32(0.7)), *call.args[2:]]
        return relay.Call(call.op, args, call.attrs)

    function = Changed("qnn.requantize", rewrite).visit(module["main"])
    with pytest.raises(UnsupportedModelError, match="not the product of its operands'"):
        from_relay(relay.Function(function.params, function.body))


def test_a_layout_that_a_span_claims_changes_no_result():
    """Spans of another module's nodes: what is computed stays."""
    graph, data = classifier()
    module, _ = emit(graph, "canonical", "NHWC")
    texts = [call.span.source_name.name for call in calls(module)]
    assert all(provenance_of(text) is not None or converted(text) is not None for text in texts)
    spans = [call.span for call in calls(module)]

    class Shuffled(ExprMutator):  # pyright: ignore[reportUntypedBaseClass]
        def visit_call(self, call):
            made = super().visit_call(call)
            return relay.Call(made.op, made.args, made.attrs, made.type_args, spans[hash_of(call)])

    def hash_of(call):
        return (len(call.args) * 7 + len(str(call.op))) % len(spans)

    function = Shuffled().visit(module["main"])
    read = from_relay(relay.Function(function.params, function.body))
    (expected,) = qdqbridge.evaluate(graph, data).values()
    (actual,) = qdqbridge.evaluate(read, data).values()
    np.testing.assert_array_equal(actual, expected)


# ---- channels-last modules of others -----------------------------------------------------------


def kernel(*shape):
    return relay.const(np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32))


def last(x, outer, inner):
    return relay.nn.conv2d(
        x, kernel(3, 3, inner, outer), data_layout="NHWC", kernel_layout="HWIO",
        kernel_size=(3, 3), channels=outer, padding=(1, 1),
    )  # fmt: skip


def check(body, x, transposes):
    function = relay.Function([x], body)
    graph = from_relay(function)
    assert sum(node.op.name == "Transpose" for node in graph.nodes) == transposes
    shape = [int(extent) for extent in x.type_annotation.shape]
    data = {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    (expected,) = run(IRModule.from_expr(function), data, opt_level=1)
    (actual,) = qdqbridge.evaluate(graph, data).values()
    # Float convolutions: up to some hundred products of about 1, added in another order.
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


X = relay.var("x", shape=(1, 6, 8, 4))


def test_what_lies_between_convolutions_follows_them():
    a = relay.nn.relu(relay.nn.bias_add(last(X, 6, 4), kernel(6), axis=3))
    b = relay.add(last(a, 6, 6), a)
    c = relay.concatenate((b, relay.nn.pad(a, ((0, 0), (0, 0), (0, 0), (0, 0)))), axis=-1)
    check(last(relay.clip(c, -1, 1), 5, 12), X, 2)


def test_a_mean_over_space_ends_the_layout():
    check(relay.mean(last(X, 6, 4), axis=[1, 2]), X, 1)


def test_an_operator_on_rows_keeps_the_transposes_that_it_needs():
    rows = relay.reshape(relay.nn.relu(last(X, 6, 4)), (48, 6))
    check(relay.nn.softmax(rows), X, 2)


def test_a_transpose_that_was_there_is_used():
    first = relay.var("x", shape=(1, 4, 6, 8))
    body = relay.transpose(last(relay.transpose(first, (0, 2, 3, 1)), 6, 4), (0, 3, 1, 2))
    check(body, first, 0)


def test_constants_of_fewer_axes_follow():
    scaled = relay.multiply(last(X, 6, 4), kernel(8, 1))
    check(last(relay.subtract(kernel(6), scaled), 5, 6), X, 2)
