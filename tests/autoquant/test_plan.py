"""Which values a plan quantizes, and what becomes of them."""

from dataclasses import replace

import numpy as np
import pytest

from qdqbridge.autoquant.planning.formats import Format
from qdqbridge.autoquant.planning.plan import Fixed, Observed, Overrides, Shared, plan
from qdqbridge.autoquant.planning.targets import ORT, PER_TENSOR, QNN, TENSORRT, OperatorRule
from qdqbridge.autoquant.quantize import QuantizeOptions
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.graph.types import per_tensor
from qdqbridge.errors import InputDataError
from tests.autoquant.float_models import quantize_plainly
from tests.onnx_models import Builder, canonical

RNG = np.random.default_rng(0)
FLOATING = replace(ORT, outputs=False)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def conv(b, x, channels, out=8, size=3):
    pad = size // 2
    weight = b.init(drawn(out, channels, size, size) / (channels * size))
    return b.op("Conv", x, weight, b.init(drawn(out) / 4), pads=[pad] * 4)


def graph_of(make, *shape):
    b = Builder(17)
    b.output(make(b, b.input("x", ["n", *shape])))
    return canonical(b.model())


def planned(make, *shape, target=ORT):
    graph = graph_of(make, *shape)
    return graph, plan(graph, target)


def made_by(value):
    return "input" if value.producer is None else value.producer.op.name


def params_of(value):
    assert value.quant is not None
    return value.quant.params


def specs(result):
    """Returns by operator what is decided about its result."""
    return {made_by(v): type(spec).__name__ for v, spec in result.specs.items()}


def test_a_product_its_bias_and_clamp_are_one_unit():
    def make(b, x):
        y = b.op("Relu", conv(b, x, 3))
        return b.op("Relu", b.op("Add", b.op("MatMul", y, b.init(drawn(6, 6))), b.init(drawn(6))))

    _, result = planned(make, 3, 6, 6)
    assert [v.producer.op.name for v in result.specs if v.producer] == ["Relu", "Relu"]
    assert sorted(type(w.spec).__name__ for w in result.weights) == [
        "Derived",
        "Derived",
        "Observed",
        "Observed",
    ]


def test_a_clamp_that_is_not_alone_is_no_part_of_the_unit():
    def make(b, x):
        y = conv(b, x, 3)
        return b.op("Concat", b.op("Relu", y), y, axis=1)

    _, result = planned(make, 3, 6, 6)
    assert specs(result) == dict.fromkeys(("input", "Conv", "Relu", "Concat"), "Observed")


def test_a_function_of_one_tensor_is_rounded_once():
    def gelu(b, x):
        y = conv(b, x, 3)
        erf = b.op("Erf", b.op("Div", y, b.init(np.float32(1.4142135))))
        return b.op(
            "Mul", b.op("Mul", y, b.op("Add", erf, b.init(np.float32(1)))), b.init(np.float32(0.5))
        )

    graph, result = planned(gelu, 3, 6, 6)
    assert specs(result) == {"input": "Observed", "Conv": "Observed", "Mul": "Observed"}
    quantized = quantize_plainly(graph, {"x": drawn(4, 3, 6, 6)}, ORT).graph
    assert [n.op.name for n in quantized.nodes] == ["quantize", "Conv", "Gelu", "dequantize"]


def test_movers_share_and_known_ranges_are_fixed():
    def make(b, x):
        y = b.op("MaxPool", conv(b, x, 3), kernel_shape=[2, 2], strides=[2, 2])
        y = b.op("Flatten", y)
        return b.op("Softmax", b.op("MatMul", y, b.init(drawn(72, 5))))

    _, result = planned(make, 3, 6, 6, target=QNN)
    kinds = specs(result)
    assert kinds["MaxPool"] == kinds["Flatten"] == "Shared" and kinds["Softmax"] == "Fixed"
    fixed = next(spec for spec in result.specs.values() if isinstance(spec, Fixed))
    assert fixed.params.scale == np.float32(1 / 256) and fixed.params.zero_point == 0
    shared = [spec for spec in result.specs.values() if isinstance(spec, Shared)]
    assert made_by(shared[1].source) == "MaxPool"


def test_fixed_ranges_by_storage():
    def make(b, x):
        return b.op("Tanh", conv(b, b.op("Sigmoid", conv(b, x, 3)), 8))

    def fixed(target):
        specs = plan(graph_of(make, 3, 6, 6), target).specs.values()
        return [spec.params for spec in specs if isinstance(spec, Fixed)]

    sigmoid, tanh = fixed(QNN)
    assert (float(sigmoid.scale), int(sigmoid.zero_point)) == (1 / 256, 0)
    assert (float(tanh.scale), int(tanh.zero_point)) == (1 / 128, 128)
    symmetric = replace(QNN, activations=TENSORRT.activations)
    assert len(fixed(symmetric)) == 2
    assert all(params.symmetric for params in fixed(symmetric))
    assert not fixed(ORT)  # its kernels take any scale


def test_float_results_of_the_last_product():
    def make(b, x):
        return b.op("Flatten", conv(b, x, 3))

    assert "Conv" in specs(planned(make, 3, 4, 4)[1])
    assert specs(planned(make, 3, 4, 4, target=FLOATING)[1]) == {"input": "Observed"}


def test_what_has_no_rule_stays_float_and_says_why():
    def make(b, x):
        return conv(b, b.op("CumSum", conv(b, x, 3), b.init(np.int64(1))), 8)

    graph, result = planned(make, 3, 4, 4)
    assert list(result.floats.values()) == ["target ort leaves CumSum in float"]
    quantized = quantize_plainly(graph, {"x": drawn(4, 3, 4, 4)}, ORT).graph
    names = [n.op.name for n in quantized.nodes]
    assert names.count("Conv") == 2 and all(
        n.op.name != "Conv" or n.operand(0).quant for n in quantized.nodes
    )


def test_what_computes_with_extents_alone_is_not_left_float():
    """Half of an extent, through floats, is nothing that anybody would quantize."""

    def make(b, x):
        extent = b.op("Cast", b.op("Gather", b.op("Shape", x), b.init(np.int64(3))), to=1)
        half = b.op("Cast", b.op("Floor", b.op("Div", extent, b.init(np.float32(2)))), to=7)
        ends = b.op("Unsqueeze", half, b.init(np.array([0])))
        part = b.op("Slice", x, b.init(np.array([0])), ends, b.init(np.array([3])))
        return conv(b, b.op("CumSum", part, b.init(np.int64(1))), 3)

    _, result = planned(make, 3, 4, "w")
    assert [node.op.name for node in result.floats] == ["ai.onnx::Slice", "CumSum"]


def two_convs(b, x):
    return conv(b, b.op("Relu", conv(b, x, 3)), 8)


def test_requests_by_name_and_pattern():
    graph = graph_of(two_convs, 3, 4, 4)
    _, relu, last = graph.nodes
    given = per_tensor(DType.UINT8, 0.125, 3)
    wanted = {"exclude": [last.name], "fixed": {relu.output.name: given}}
    quantized = quantize_plainly(graph, {"x": drawn(4, 3, 4, 4)}, ORT, **wanted).graph
    convs = [n for n in quantized.nodes if n.op.name == "Conv"]
    assert params_of(convs[0].output).scale == 0.125
    assert convs[1].output.quant is None and convs[1].operand(1).quant is None
    assert not any(value.quant for value in graph.values())
    only = QuantizeOptions(only=["*conv_3", "Relu"]).overrides(graph)
    assert set(only.floats) == {last}


@pytest.mark.parametrize(
    "options",
    [
        QuantizeOptions(exclude=["nothing*"]),
        QuantizeOptions(only=["x"]),
        QuantizeOptions(fixed={"y": per_tensor(DType.UINT8, 1)}),
        QuantizeOptions(formats={"MatMul": ORT.activations}),
    ],
)
def test_requests_about_nothing_are_mistakes(options):
    with pytest.raises(InputDataError):
        options.overrides(graph_of(two_convs, 3, 4, 4))


def test_rules_look_at_nodes():
    """Point-wise convolutions per tensor, all others per channel."""

    def make(b, x):
        return conv(b, conv(b, x, 3), 8, size=1)

    pointwise = OperatorRule(
        "pointwise",
        ("Conv",),
        when=lambda n: (n.operand(1).type.shape or ())[2:] == (1, 1),
        weights=PER_TENSOR,
    )
    target = replace(ORT, rules=(pointwise, *ORT.rules))
    quantized = quantize_plainly(graph_of(make, 3, 4, 4), {"x": drawn(4, 3, 4, 4)}, target).graph
    weights = [params_of(n.operand(1)) for n in quantized.nodes if n.op.name == "Conv"]
    assert [params.per_tensor for params in weights] == [False, True]


@pytest.mark.parametrize("storage", [DType.INT16, DType.UINT8])
def test_a_node_may_have_its_own_format(storage):
    def make(b, x):
        return b.op("Sigmoid", conv(b, b.op("Relu", conv(b, x, 3)), 8))

    graph = graph_of(make, 3, 4, 4)
    last = graph.nodes[2]
    assert isinstance(ORT.activations, Format)
    format = replace(ORT.activations, storage=storage)
    result = plan(graph, ORT, Overrides(formats={last: format}))
    formats = {
        v.producer: s.format.storage for v, s in result.specs.items() if isinstance(s, Observed)
    }
    assert formats[last] is storage and formats[graph.nodes[1]] is storage
    assert formats[None] is DType.UINT8


def test_batch_norms_go_into_weights():
    def make(b, x):
        y = conv(b, x, 3)
        statistics = [b.init(v) for v in (drawn(8) + 2, drawn(8), drawn(8), np.abs(drawn(8)) + 0.5)]
        return b.op("Relu", b.op("BatchNormalization", y, *statistics))

    graph = graph_of(make, 3, 6, 6)
    data = {"x": drawn(8, 3, 6, 6)}
    before = evaluate(graph, data)[0]
    quantized = quantize_plainly(graph, data, ORT).graph
    assert [n.op.name for n in quantized.nodes] == ["quantize", "Conv", "dequantize"]
    (name,) = before
    after = evaluate(quantized, data)[0][name]
    scale = float(params_of(quantized.nodes[1].output).scale)
    assert np.abs(after - before[name]).mean() < scale


@pytest.mark.parametrize("target", [ORT, TENSORRT, QNN], ids=lambda target: target.name)
def test_what_a_relu_behind_movers_cuts_off_has_no_codes(target):
    """``Relu(Flatten(MaxPool(Conv(x))))`` is rounded once, to the range of the Relu."""

    def make(b, x):
        y = b.op("MaxPool", conv(b, x, 3), kernel_shape=[2, 2], strides=[2, 2])
        y = b.op("Relu", b.op("Flatten", y))
        return b.op("MatMul", y, b.init(drawn(128, 4)))

    graph, result = planned(make, 3, 8, 8, target=target)
    roots = {made_by(v): made_by(result.root(v)) for v in result.specs}
    assert roots["Conv"] == roots["MaxPool"] == roots["Flatten"] == roots["Relu"] == "Relu"
    x = drawn(16, 3, 8, 8)
    done = quantize_plainly(graph, {"x": x}, target).graph
    names = [node.op.name for node in done.nodes]
    assert "requantize" not in names and "Relu" not in names
    (real,), (rough,) = (evaluate(g, {"x": x})[0].values() for g in (graph, done))
    assert np.mean((real - rough) ** 2) < 1e-3 * np.mean(real**2)


CUT = {
    "read twice": lambda b, y: b.op("Add", b.op("Relu", b.op("Flatten", y)), b.op("Flatten", y)),
    "padded": lambda b, y: b.op("Relu", b.op("Pad", y, b.init(np.array([0, 0, 1, 1] * 2)))),
    "an output": lambda b, y: b.op("Relu", b.output(b.op("Flatten", y))),
}


@pytest.mark.parametrize("make", CUT.values(), ids=CUT)
def test_what_others_read_as_well_is_not_cut(make):
    graph, result = planned(lambda b, x: make(b, conv(b, x, 3)), 3, 8, 8, target=QNN)
    (source,) = (node.output for node in graph.nodes if node.op.name == "Conv")
    assert isinstance(result.specs[source], Observed)


@pytest.mark.parametrize("name", ["MatMul", "Gemm", "ConvTranspose"])
def test_outputs_stay_as_they_are_added_up_where_that_costs_nothing(name):
    def make(b, x):
        if name == "ConvTranspose":
            return b.op(name, conv(b, x, 3), b.init(drawn(8, 2, 2, 2)), strides=[2, 2])
        y, weight, bias = b.op("Flatten", conv(b, x, 3)), b.init(drawn(512, 4)), b.init(drawn(4))
        if name == "Gemm":
            return b.op(name, y, weight, bias)
        return b.op("Add", b.op(name, y, weight), bias)

    for target, rounded in ((QNN, True), (ORT, False), (TENSORRT, False)):
        graph = graph_of(make, 3, 8, 8)
        assert (graph.outputs[0] in plan(graph, target).specs) == rounded
    done = quantize_plainly(graph_of(make, 3, 8, 8), {"x": drawn(8, 3, 8, 8)}, ORT).graph
    (end,) = done.outputs
    assert end.quant is None and end.producer is not None
    assert end.producer.op.name == ("ConvTranspose" if name == "ConvTranspose" else "Dense")
    assert all(v.quant is not None for _, v in end.producer.data_operands())


def test_a_convolution_at_the_end_is_rounded_where_its_kernel_wants_that():
    for target, rounded in ((ORT, 2), (TENSORRT, 1)):
        result = planned(lambda b, x: conv(b, x, 3), 3, 8, 8, target=target)[1]
        assert len(result.specs) == rounded
