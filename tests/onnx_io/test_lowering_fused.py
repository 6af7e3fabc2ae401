"""Float operators that onnxruntime fuses, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import qdqbridge
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import UnsupportedModelError, UnsupportedQuantization
from qdqbridge.onnx_io.lowering.rules import ENCODINGS, refusal
from tests.onnx_io.lowering_cases import MS, Case, ort_run
from tests.onnx_models import Builder, canonical, check_carried, load, run

ATOL = 3e-6
"""Float32 sums of up to some 30 terms of about 1, in another order than onnxruntime's."""


def weights(case: Case, shape: list[int], seed: int) -> str:
    data = np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)
    return case.builder.init(data)


def check(case: Case, *outputs: str) -> list[str]:
    """Compares with onnxruntime; returns the operators of the graph."""
    model = case.model(*outputs)
    graph = canonical(model)
    for got, expected in zip(run(graph, case.feeds), ort_run(model, case.feeds), strict=True):
        assert np.allclose(got, expected, rtol=0, atol=ATOL)
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize(
    ("activation", "params"),
    [(None, None), ("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.2]),
     ("Clip", [-0.5, 0.75]), ("HardSigmoid", [0.3, 0.4])],
)  # fmt: skip
@pytest.mark.parametrize("skip", [False, True])
def test_fused_conv(activation, params, skip):
    case = Case(Builder(17))
    x, w = case.float("x", [1, 3, 6, 6], 1), weights(case, [4, 3, 3, 3], 2)
    inputs = [x, w, weights(case, [4], 3)]
    if skip:
        inputs.append(case.float("z", [1, 4, 6, 6], 4))
    at: dict[str, Any] = {"activation": activation, "activation_params": params}
    names = check(case, case.builder.op("FusedConv", *inputs, domain=MS, pads=[1, 1, 1, 1], **at))
    assert names[0] == "Conv" and ("Add" in names) == skip


def test_an_unknown_fused_activation_is_carried():
    case = Case(Builder(17))
    x, w = case.float("x", [1, 3, 6, 6], 1), weights(case, [4, 3, 3, 3], 2)
    model = case.model(case.builder.op("FusedConv", x, w, domain=MS, activation="Swoosh"))
    check_carried(model, "Swoosh")


@pytest.mark.parametrize("alpha", [1.0, 0.35])
@pytest.mark.parametrize(
    ("a", "b", "at"),
    [
        ([2, 3, 4], [2, 4, 5], {}),
        ([2, 4, 3], [2, 4, 5], {"transA": 1}),
        ([2, 3, 4], [2, 5, 4], {"transB": 1}),
        ([3, 2, 4], [2, 4, 5], {"transBatchA": 1}),
        ([4, 2, 3], [2, 4, 5], {"transBatchA": 1, "transA": 1}),
    ],
)
def test_fused_matmul(alpha, a, b, at):
    case = Case(Builder(17))
    inputs = [case.float("a", a, 1), case.float("b", b, 2)]
    check(case, case.builder.op("FusedMatMul", *inputs, domain=MS, alpha=alpha, **at))


def test_fused_matmul_finds_ranks_behind_lowered_nodes():
    case = Case(Builder(17))
    b, x = case.builder, case.float("x", [2, 3, 4], 1)
    first = b.op("BiasGelu", x, weights(case, [4], 2), domain=MS)
    check(case, b.op("FusedMatMul", first, first, domain=MS, transB=1))


@pytest.mark.parametrize("activation", ["Relu", "Tanh"])
def test_fused_gemm(activation):
    case = Case(Builder(17))
    inputs = [case.float("x", [3, 4], 1), weights(case, [5, 4], 2), weights(case, [5], 3)]
    at: dict[str, Any] = {"transB": 1, "alpha": 0.5, "activation": activation}
    check(case, case.builder.op("FusedGemm", *inputs, domain=MS, **at))


@pytest.mark.idiom("K8")
@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("total", [False, True])
def test_skip_layer_normalization(opset, bias, total):
    case = Case(Builder(opset))
    b, x, skip = case.builder, case.float("x", [2, 3, 8], 1), case.float("s", [2, 3, 8], 2)
    inputs = [x, skip, weights(case, [8], 3), weights(case, [8], 4)]
    inputs += [weights(case, [8], 5)] if bias else []
    y = b.op("SkipLayerNormalization", *inputs, domain=MS, outputs=4 if total else 1)
    if total:
        b.nodes[-1].output[1] = b.nodes[-1].output[2] = ""
    names = check(case, y, *([f"{y}:3"] if total else []))
    assert ("LayerNormalization" in names) or opset < 17


@pytest.mark.parametrize("names", ["xs", "sx"])
@pytest.mark.parametrize("simplified", ["", "Simplified"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_skip_of_open_extents_stays_the_skip(names, simplified, bias, tmp_path):
    """Extents do not say which of the two is repeated; sums have an order of their own."""
    b, rng = Builder(17), np.random.default_rng(0)
    x, skip = (b.input(name, [f"{name}0", f"{name}1", 8]) for name in names)
    affine = [b.init(rng.normal(size=8).astype(np.float32))]
    affine += [""] if bias and not simplified else []
    inputs = [x, skip, *affine]
    inputs += [b.init(rng.normal(size=8).astype(np.float32))] if bias else []
    b.output(b.op(f"Skip{simplified}LayerNormalization", *inputs, domain=MS), None)
    model = b.model()
    qdqbridge.save(canonical(model), tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    assert [node.op_type for node in saved.graph.node] == [b.nodes[0].op_type]
    assert [entry.version for entry in saved.opset_import if not entry.domain] == [17]
    feeds = {x: rng.normal(size=(2, 3, 8)), skip: rng.normal(size=(1, 3, 8))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    for found, wanted in zip(ort_run(saved, feeds), ort_run(model, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert qdqbridge.load(tmp_path / "saved.onnx").digest == canonical(model).digest


@pytest.mark.parametrize("asked", [False, True])
def test_a_skip_with_dequantized_parameters_stays_one(asked, tmp_path):
    """Files of quantize_dynamic have them; where the sum is a result, they stand behind it."""
    b, rng = Builder(17), np.random.default_rng(0)
    x, skip = (b.input(name, ["n", 3, 8]) for name in "xs")

    def parameter():
        codes, scale = rng.integers(-99, 99, 8).astype(np.int8), np.float32(0.01)
        return b.op("DequantizeLinear", b.init(codes), b.init(scale), b.init(np.int8(0)))

    norm = [parameter() for _ in range(3)]
    y = b.op("SkipLayerNormalization", x, skip, *norm, domain=MS, outputs=4 if asked else 1)
    if asked:
        b.nodes[-1].output[1] = b.nodes[-1].output[2] = ""
        b.output(f"{y}:3", None)
    b.output(y, None)
    model = b.model()
    qdqbridge.save(canonical(model), tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    assert ("SkipLayerNormalization" in {node.op_type for node in saved.graph.node}) != asked
    feeds = {name: rng.normal(size=(2, 3, 8)).astype(np.float32) for name in "xs"}
    for found, wanted in zip(ort_run(saved, feeds), ort_run(model, feeds), strict=True):
        if asked:  # saved as its parts: onnxruntime's fused kernel rounds the last bits otherwise
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, wanted)
    assert qdqbridge.load(tmp_path / "saved.onnx").digest == canonical(model).digest


@pytest.mark.parametrize("opset", [13, 18])
def test_simplified_norms(opset):
    case = Case(Builder(opset))
    b, x, skip = case.builder, case.float("x", [2, 3, 8], 1), case.float("s", [2, 3, 8], 2)
    scale = weights(case, [8], 3)
    first = b.op("SimplifiedLayerNormalization", x, scale, epsilon=1e-6, axis=-1)
    second = b.op("SkipSimplifiedLayerNormalization", x, skip, scale, domain=MS)
    check(case, first, second)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_before_opset_17(axis):
    case = Case(Builder(13))
    shape = [8] if axis == -1 else [3, 8]
    inputs = [case.float("x", [2, 3, 8], 1), weights(case, shape, 2), weights(case, shape, 3)]
    check(case, case.builder.op("LayerNormalization", *inputs, axis=axis, epsilon=1e-5))


@pytest.mark.idiom("I3")
@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu", "FastGelu with bias"])
def test_gelus(opset, op):
    case = Case(Builder(opset))
    inputs = [case.float("x", [3, 8], 1, 2.0)]
    inputs += [] if op == "FastGelu" else [weights(case, [8], 2)]
    check(case, case.builder.op(op.split()[0], *inputs, domain=MS))


# ---- no counterpart ---------------------------------------------------------------------------


def one_node(op: str, domain: str, inputs: int = 1) -> onnx.ModelProto:
    b = Builder(17)
    names = [b.input(f"x{i}", [4, 4]) for i in range(inputs)]
    b.output(b.op(op, *names, domain=domain), [4, 4])
    return b.model()


CARRIED = [
    ("com.amd.quark", "BFPQuantizeDequantize", "block floating point"),
    ("com.amd.quark", "MXQuantizeDequantize", "block floating point"),
    ("com.amd.quark", "ExtendedLSTM", "Quark"),
    ("com.vai.quantize", "BFPFixNeuron", "block floating point"),
    ("trt", "TRT_FP4QDQ", "float4"),
    ("trt", "SomePlugin", "TensorRT plugin"),
    ("any.domain", "PPQ_Round", "PPQ"),
    ("onnx.brevitas", "FloatQuant", "minifloat"),
    ("qonnx.custom_op.general", "MultiThreshold", "thresholds"),
    ("com.microsoft", "EPContext", "compiled blob"),
    ("com.microsoft", "QAttention", "attention"),
    ("com.microsoft", "DynamicQuantizeLSTM", "LSTM"),
    ("com.microsoft", "MatMulBnb4", "NF4"),
    ("com.microsoft.nchwc", "Conv", "blocked layout"),
    ("com.ms.internal.nhwc", "QLinearConv", "internal layout"),
]


@pytest.mark.parametrize(("domain", "op", "says"), CARRIED)
def test_what_has_no_counterpart_is_carried_and_refused_only_where_it_is_run(domain, op, says):
    g = load(one_node(op, domain))
    (note,) = (note for note in g.notes if note.rule == "opaque-operator")
    known = refusal(domain, op)
    assert known is not None and says in note.reason and known.fix in note.reason
    assert f"{domain}::{op}" in note.reason and note.culprits == (g.nodes[0].name,)
    with pytest.raises(UnsupportedModelError) as caught:
        evaluate(g, {"x0": np.ones((4, 4), np.float32)})
    assert f"{domain}::{op}" in caught.value.what and says in caught.value.why
    assert caught.value.fix == known.fix


def test_a_contrib_operator_in_the_wrong_domain_is_told_its_own():
    with pytest.raises(UnsupportedModelError, match="unknown at opset") as caught:
        load(one_node("QLinearSigmoid", ""))
    assert "set the domain of QLinearSigmoid to com.microsoft" in caught.value.fix


def test_everything_that_onnx_lacks_is_listed_at_once():
    model = one_node("QuantizeFloating", "")
    model.graph.node.append(onnx.helper.make_node("Strange", ["x0"], ["z"]))
    with pytest.raises(UnsupportedModelError) as caught:
        load(model)
    assert not isinstance(caught.value, UnsupportedQuantization)
    assert "ai.onnx::QuantizeFloating" in caught.value.why
    assert "ai.onnx::Strange" in caught.value.why


def test_every_encoding_has_one_rule():
    names = [name for rule in ENCODINGS for name in rule.ops or ()]
    assert len(names) == len(set(names))
    for domain, _, op_type in (name.rpartition("::") for name in names):
        assert refusal(domain, op_type) is None or domain in (
            "com.amd.quark",
            "com.vai.quantize",
            "trt",
        )
