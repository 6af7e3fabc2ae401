"""What the profiles write: what they promise of it, and what they refuse to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqbridge.app.pipeline import export_costs
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.canonical.unquantized import unquantized
from qdqbridge.core.graph.copying import symbolic_extents, with_numbers
from qdqbridge.core.graph.diff import diff
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.options import ProfileName
from qdqbridge.targets.profiles import Effect, check
from qdqbridge.targets.profiles.export import export, exported_proto
from qdqbridge.targets.profiles.legalization import recentered
from qdqbridge.targets.profiles.symmetric import around_zero
from tests.onnx_io.writer_models import (
    CNN,
    IMAGES,
    MATRICES,
    S8,
    U8,
    Array,
    Net,
    network,
    run,
    samples,
)
from tests.places import MODELS
from tests.targets.profiles.test_profiles import SYMMETRIC, conv, with_bias

OWN_MODELS = sorted(path.name for path in MODELS.glob("*.onnx"))
NETWORKS = [*IMAGES, *MATRICES]
AROUND_128 = (0.02, 128, U8)


def source(name: str, folder: Path) -> Path:
    path = folder / "source.onnx"
    onnx.save(network(name), path)
    return path


def built(build: Callable[[Net], str], folder: Path, opset: int = 17) -> Graph:
    net, path = Net(opset), folder / "built.onnx"
    onnx.save(net.model([build(net)], CNN), path)
    return canonicalize(read(path))


def written(graph: Graph, profile: str, folder: Path) -> Path:
    path = folder / f"{profile}.onnx"
    export(graph, path, profile=profile)
    return path


def data(graph: Graph, seed: int = 5) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else 2 for d in value.type.shape or ()]
        feeds[value.name] = random.normal(size=shape).astype(value.type.dtype.numpy)
    return feeds


def kinds(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


# ---- every profile --------------------------------------------------------------------------


LEGALIZED = {
    "qnn": {
        "conv_relu_signed": 0.0, "conv_float_result": 1e-4, "gemm_float_result": 1e-4,
        "matmul_float_result": 1e-4,
        "digits_attention_u8s8_per_channel.onnx": 0.0361, "digits_attention_float.onnx": 1e-5,
    },
}  # fmt: skip
"""What is put otherwise for a runtime, and how far results are off then: sums of floats in another
order; a step of the scores for a Gelu that is rounded once and not four times; erf in steps, which
is 4e-7 off."""


def same_graph(graph: Graph, path: Path, *, off: float | None) -> None:
    """Checks that a file holds the graph it was written from, or computes the same."""
    again = canonicalize(read(path))
    if off is None:
        assert diff(graph, again) == []
        assert again.digest == graph.digest
        return
    assert again.digest != graph.digest
    feeds = data(with_numbers(graph, dict.fromkeys(symbolic_extents(graph), 2)))
    ours, theirs = evaluate(graph, feeds)[0], evaluate(again, feeds)[0]
    for name, array in ours.items():
        # How far, and why, stands at LEGALIZED; what is off by nothing is equal.
        np.testing.assert_allclose(theirs[name], array, rtol=1e-4 if off else 0, atol=off)


@pytest.mark.parametrize("profile", ["qnn", "openvino", "qoperator"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_written_is_the_same_graph(name: str, profile: str, tmp_path: Path) -> None:
    graph = canonicalize(read(source(name, tmp_path)))
    text = graph.text()
    path = written(graph, profile, tmp_path)
    assert graph.text() == text
    same_graph(graph, path, off=LEGALIZED.get(profile, {}).get(name))
    assert not [f for f in check(path, profile) if f.effect is Effect.REFUSED]


@pytest.mark.parametrize("profile", ["qnn", "openvino", "qoperator"])
@pytest.mark.parametrize("name", OWN_MODELS)
def test_own_models(name: str, profile: str, tmp_path: Path) -> None:
    graph = canonicalize(read(MODELS / name))
    path = written(graph, profile, tmp_path)
    same_graph(graph, path, off=LEGALIZED.get(profile, {}).get(name))


# ---- qoperator ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_qoperators_compute_the_contract(name: str, tmp_path: Path) -> None:
    graph = canonicalize(read(source(name, tmp_path)))
    path = written(graph, "qoperator", tmp_path)
    feeds = samples(onnx.load(path))
    expected, _ = evaluate(graph, feeds)
    floats = kinds(path) & {"AveragePool", "Softmax", "Gemm", "MatMul", "Conv", "ConvTranspose"}
    for name_, actual in zip(graph.output_names, run(path, feeds), strict=True):
        if floats:  # float sums of onnxruntime: a tie may fall to the other side
            steps = np.abs(expected[name_].astype(np.float64) - actual.astype(np.float64))
            assert np.mean(steps > 1e-5) < 0.1
        else:
            np.testing.assert_array_equal(expected[name_], actual)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("conv_derived_bias", "QLinearConv"),
        ("gemm_rows", "QGemm"),
        ("matmul", "QGemm"),
        ("add", "QLinearAdd"),
        ("shared", "QLinearMul"),
        ("concat", "QLinearConcat"),
        ("sigmoid", "QLinearSigmoid"),
        ("leaky_relu", "QLinearLeakyRelu"),
        ("global_average_pool", "QLinearGlobalAveragePool"),
    ],
)
def test_qlinear_operators_are_used(name: str, operator: str, tmp_path: Path) -> None:
    graph = canonicalize(read(source(name, tmp_path)))
    assert operator in kinds(written(graph, "qoperator", tmp_path))


def test_qoperator_cnn_has_no_float_product(tmp_path: Path) -> None:
    graph = canonicalize(read(MODELS / "digits_cnn_u8s8_per_channel.onnx"))
    path = written(graph, "qoperator", tmp_path)
    assert not kinds(path) & {"Conv", "Gemm", "MatMul", "Add"}
    assert {f.operator for f in check(path, "qoperator")} <= {"AveragePool", "MaxPool"}


def relu(net: Net) -> str:
    return net.fake(net.op("Relu", conv(net, x=SYMMETRIC, y=None)), 0.05, 0, S8)


def test_narrow_ranges_are_clipped_on_integers(tmp_path: Path) -> None:
    graph = built(relu, tmp_path)
    path = written(graph, "qoperator", tmp_path)
    assert canonicalize(read(path)).digest == graph.digest
    model = onnx.load(path)
    (clip,) = (node for node in model.graph.node if node.op_type == "Clip")
    low, high = (
        onnx.numpy_helper.to_array(tensor)
        for name in clip.input[1:]
        for tensor in model.graph.initializer
        if tensor.name == name
    )
    assert (low.dtype, int(low), int(high)) == (S8, 0, 127)


# ---- tensorrt -------------------------------------------------------------------------------


def symmetric(net: Net) -> str:
    return conv(net, x=SYMMETRIC, bias=net.floats(4), y=(0.05, 0, S8))


def test_symmetric_graphs_are_written(tmp_path: Path) -> None:
    graph = built(symmetric, tmp_path)
    path = written(graph, "tensorrt", tmp_path)
    assert canonicalize(read(path)).digest == graph.digest
    assert check(path, "tensorrt") == []


def test_uint8_around_128_becomes_int8(tmp_path: Path) -> None:
    graph = built(lambda n: conv(n, x=AROUND_128, y=(0.05, 128, U8)), tmp_path)
    text = graph.text()
    path = written(graph, "tensorrt", tmp_path)
    assert graph.text() == text
    assert check(path, "tensorrt") == []
    again = canonicalize(read(path))
    assert again.digest == recentered(graph).digest != graph.digest
    feeds = data(graph)
    actual, _ = evaluate(again, feeds)
    for name, expected in evaluate(graph, feeds)[0].items():
        np.testing.assert_array_equal(expected, actual[name])


def clipped(net: Net) -> str:
    bounds = net.constant(np.float32(-1)), net.constant(np.float32(1))
    return net.fake(net.op("Clip", conv(net, x=AROUND_128, y=None), *bounds), 0.05, 128, U8)


def constants_around_128(net: Net) -> str:
    stored = net.constant(net.random.integers(0, 256, (1, 4, 6, 6)).astype(U8))
    table = net.dq(stored, 0.03, 128, U8)
    return net.fake(net.op("Add", net.fake("x", *AROUND_128), table), 0.05, 128, U8)


def moved(net: Net) -> str:
    x = net.fake(net.op("MaxPool", net.fake("x", *AROUND_128), kernel_shape=[2, 2]), *AROUND_128)
    return net.fake(net.op("Transpose", x, perm=[0, 2, 3, 1]), *AROUND_128)


@pytest.mark.parametrize("build", [clipped, constants_around_128, moved])
def test_recentering_computes_the_same(build: Callable[[Net], str], tmp_path: Path) -> None:
    graph = built(build, tmp_path)
    again = recentered(graph)
    assert not [v for v in again.values() if str(v.type.dtype) == "uint8"]
    feeds = data(graph)
    for name, expected in evaluate(graph, feeds)[0].items():
        np.testing.assert_array_equal(expected, evaluate(again, feeds)[0][name])


@pytest.mark.parametrize("name", sorted(p.name for p in MODELS.glob("*s8s8*.onnx")))
def test_int8_activations_are_written_as_uint8(name: str, tmp_path: Path) -> None:
    graph, path = canonicalize(read(MODELS / name)), tmp_path / "unsigned.onnx"
    export(graph, path, recenter=True)
    again = canonicalize(read(path))
    kept = [v for v in again.values() if v.constant is None and str(v.type.dtype) == "int8"]
    assert not kept
    feeds = data(graph)
    for found, expected in zip(run(path, feeds), run(MODELS / name, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_demands_int8_is_not_recentered(tmp_path: Path) -> None:
    graph = canonicalize(read(source("quantized_output", tmp_path)))
    with pytest.raises(UnsupportedTargetError, match="uint8"):
        export(graph, tmp_path / "out.onnx", profile="tensorrt", recenter=True)
    assert not (tmp_path / "out.onnx").exists()


def test_stored_inputs_and_outputs_keep_their_type(tmp_path: Path) -> None:
    graph = canonicalize(read(source("quantized_output", tmp_path)))
    assert recentered(graph).outputs[0].type == graph.outputs[0].type


def test_int32_biases_become_float(tmp_path: Path) -> None:
    def build(net: Net) -> str:
        weight = net.dq(net.constant(np.ones((4, 4, 3, 3), S8)), 0.01, 0, S8)
        bias = net.dq(net.constant(np.array([5, -7, 900, 0], np.int32)), np.float32(0.02) *
                      np.float32(0.01), 0, np.int32)  # fmt: skip
        return conv(net, x=SYMMETRIC, weight=weight, bias=bias, y=(0.05, 0, S8))

    graph = built(build, tmp_path)
    path = written(graph, "tensorrt", tmp_path)
    assert canonicalize(read(path)).digest == graph.digest
    assert all(t.data_type != onnx.TensorProto.INT32 for t in onnx.load(path).graph.initializer)


def test_everything_that_tensorrt_refuses_is_listed(tmp_path: Path) -> None:
    graph = canonicalize(read(MODELS / "digits_cnn_u8s8_per_channel.onnx"))
    with pytest.raises(UnsupportedTargetError, match="TensorRT cannot take") as caught:
        export(graph, tmp_path / "no.onnx", profile="tensorrt")
    assert not (tmp_path / "no.onnx").exists()
    lines = caught.value.why.splitlines()
    stored = [v for v in graph.values() if v.quant is not None and str(v.quant.dtype) == "uint8"]
    named = [v for v in stored if v.name and any(f"'{v.name}'" in line for line in lines)]
    assert named and len(named) == len([v for v in stored if v.name])
    assert len(lines) == len(set(lines))
    assert "export with --symmetric" in caught.value.fix


@pytest.mark.parametrize("axis", [0, 1])
def test_transposed_convolutions(axis: int, tmp_path: Path) -> None:
    def build(net: Net) -> str:
        operands = net.fake("x", *SYMMETRIC), net.weight(4, 4, 3, 3, axis=axis)
        return net.fake(net.op("ConvTranspose", *operands), 0.05, 0, S8)

    graph = built(build, tmp_path)
    if axis:
        with pytest.raises(UnsupportedTargetError) as caught:
            written(graph, "tensorrt", tmp_path)
        assert "along axis 1, not 0" in caught.value.why
    else:
        assert check(written(graph, "tensorrt", tmp_path), "tensorrt") == []


# ---- qnn ------------------------------------------------------------------------------------


def wide(net: Net) -> str:
    x = net.fake("x", 0.001, 30000, np.uint16)
    result = net.op("Conv", x, net.weight(4, 4, 1, 1, axis=0))
    return net.fake(result, 0.002, 31000, np.uint16)


def test_16_bits_below_opset_21_are_contrib(tmp_path: Path) -> None:
    net, path = Net(17), tmp_path / "contrib.onnx"
    model = net.model([wide(net)], CNN)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for node in model.graph.node:
        if "Linear" in node.op_type:
            node.domain = "com.microsoft"
    onnx.save(model, path)
    graph = canonicalize(read(path))
    for profile, opset, domain in (("qnn", 17, "com.microsoft"), ("portable", 21, "")):
        again = onnx.load(written(graph, profile, tmp_path))
        assert again.opset_import[0].version == opset
        linear = {n.domain for n in again.graph.node if "Linear" in n.op_type}
        assert linear == {domain}
        assert canonicalize(read(tmp_path / f"{profile}.onnx")).digest == graph.digest


def test_16_bits_at_opset_21_are_not(tmp_path: Path) -> None:
    path = written(built(wide, tmp_path, 21), "qnn", tmp_path)
    assert {node.domain for node in onnx.load(path).graph.node} == {""}


def test_float_biases_become_int32(tmp_path: Path) -> None:
    graph = with_numbers(built(lambda n: conv(n, bias=n.floats(4)), tmp_path), {"batch": 1})
    assert {each.rule for each in check(graph, "ort")} == {"pairs-fit"}
    path = written(graph, "qnn", tmp_path)
    assert check(path, "qnn") == []
    assert canonicalize(read(path)).digest == graph.digest
    assert any(t.data_type == onnx.TensorProto.INT32 for t in onnx.load(path).graph.initializer)


def clamped(net: Net, low: int, high: int, zero: int) -> str:
    """A Conv whose result's codes are clipped to ``[low, high]`` behind a pair."""
    y = (0.05, zero, S8)
    numbers = [np.float32((end - zero) * np.float32(0.05)) for end in (low, high)]
    bounds = [net.constant(number) for number in numbers]
    return net.fake(net.op("Clip", conv(net, x=SYMMETRIC, y=y), *bounds), *y)


@pytest.mark.parametrize(
    ("low", "high", "zero", "clamps"),
    [
        (0, 127, 0, ["Relu"]),
        (-128, 39, 0, ["Min"]),
        (-128, 104, -128, ["Min"]),
        (-39, 127, 0, ["Max"]),
        (-40, 40, 0, ["Max", "Min"]),
        (20, 97, 20, ["Max", "Min"]),
        (-128, 127, -128, []),
    ],
)
def test_hexagon_gets_clamps_that_it_computes(
    low: int, high: int, zero: int, clamps: list[str], tmp_path: Path
) -> None:
    graph = with_numbers(built(lambda n: clamped(n, low, high, zero), tmp_path), {"batch": 1})
    path = written(graph, "qnn", tmp_path)
    nodes = onnx.load(path).graph.node
    assert [n.op_type for n in nodes if n.op_type in ("Relu", "Clip", "Min", "Max")] == clamps
    assert check(path, "qnn") == []
    assert canonicalize(read(path)).digest == graph.digest
    feeds = samples(onnx.load(path))
    (want,), (got,) = run(tmp_path / "built.onnx", feeds), run(path, feeds)
    np.testing.assert_array_equal(got, want)


# ---- openvino -------------------------------------------------------------------------------


def concat_rounded_twice(net: Net) -> str:
    """A Concat that is quantized, and quantized again with another scale."""
    x = net.fake("x", *AROUND_128)
    pair = net.op("Concat", x, net.fake(net.op("Sigmoid", x), *AROUND_128), axis=1)
    return net.fake(net.fake(pair, *AROUND_128), 0.03, 37)


def test_openvino_gets_a_max_between_two_roundings_of_a_concat(tmp_path: Path) -> None:
    graph = built(concat_rounded_twice, tmp_path)
    assert {f.rule for f in check(tmp_path / "built.onnx", "openvino")} == {"rounded-once"}
    path = written(graph, "openvino", tmp_path)
    assert check(path, "openvino") == []
    assert "Max" in kinds(path)
    assert "Max" not in kinds(written(graph, "portable", tmp_path))
    assert canonicalize(read(path)).digest == graph.digest
    feeds = samples(onnx.load(path))
    (want,), (got,) = run(tmp_path / "built.onnx", feeds), run(path, feeds)
    np.testing.assert_array_equal(got, want)


def averaged(net: Net) -> str:
    pooled = net.op("AveragePool", net.fake("x", *AROUND_128), kernel_shape=[2, 2])
    return net.fake(net.op("Flatten", net.fake(pooled, *AROUND_128)), *AROUND_128)


def test_openvino_gets_a_zero_point_for_each_tensor(tmp_path: Path) -> None:
    graph = built(averaged, tmp_path)
    assert {f.rule for f in check(written(graph, "portable", tmp_path), "openvino")} == {
        "own-zero-point"
    }
    path = written(graph, "openvino", tmp_path)
    assert check(path, "openvino") == []
    zeros = [n.input[2] for n in onnx.load(path).graph.node if n.op_type == "QuantizeLinear"]
    assert len(zeros) == len(set(zeros)) == 3
    assert canonicalize(read(path)).digest == graph.digest


def shifted_convolution(net: Net) -> str:
    return net.fake(conv(net, x=(0.05, 5, S8), y=(0.5, 0, S8)), 0.5, 0, S8)


def test_openvino_gets_uint8_where_int8_has_a_zero_point(tmp_path: Path) -> None:
    graph = built(shifted_convolution, tmp_path)
    assert {f.rule for f in check(tmp_path / "built.onnx", "openvino")} == {"shifted-products"}
    path = written(graph, "openvino", tmp_path)
    assert check(path, "openvino") == []
    feeds = samples(onnx.load(path))
    (want,), (got,) = run(tmp_path / "built.onnx", feeds), run(path, feeds)
    np.testing.assert_array_equal(got, want)


def test_openvino_gets_a_clip_where_a_range_of_16_bits_is_a_relu(tmp_path: Path) -> None:
    graph = built(lambda net: net.fake("x", 0.0001, 0, np.uint16), tmp_path, opset=21)
    path = written(graph, "openvino", tmp_path)
    assert "Clip" in kinds(path)
    assert "Clip" not in kinds(written(graph, "portable", tmp_path))
    assert canonicalize(read(path)).digest == graph.digest


def shifted_weight(net: Net) -> str:
    weight = net.constant(np.arange(0, 252, 7, dtype=np.uint8).reshape(4, 1, 3, 3).repeat(4, 1))
    product = net.op("Conv", net.fake("x", *AROUND_128), net.dq(weight, 0.01, 40), pads=[1] * 4)
    return net.fake(product, 0.5, 128)


def test_openvino_gets_float_weights_where_they_do_not_fit_around_zero(tmp_path: Path) -> None:
    graph = built(shifted_weight, tmp_path)
    assert "signed-weights" in {f.rule for f in check(tmp_path / "built.onnx", "openvino")}
    path = written(graph, "openvino", tmp_path)
    assert {f.rule for f in check(path, "openvino")} == {"both-operands-quantized"}
    feeds = samples(onnx.load(path))
    (want,), (got,) = run(tmp_path / "built.onnx", feeds), run(path, feeds)
    np.testing.assert_array_equal(got, want)


# ---- graphs ---------------------------------------------------------------------------------


def test_a_graph_is_checked_as_it_would_be_written(tmp_path: Path) -> None:
    graph = built(lambda n: with_bias(n, 1.0), tmp_path)
    assert {f.rule for f in check(tmp_path / "built.onnx", "qoperator")} == {"qlinear-form"}
    assert check(graph, "qoperator") == []
    assert exported_proto(graph, "qoperator").graph.node[1].op_type == "QLinearConv"


def test_what_onnxruntime_makes_of_a_portable_file_is_told(tmp_path: Path) -> None:
    """It makes a product of a float and a dequantized matrix one that rounds the float."""
    net = Net()
    product = net.op("MatMul", "x", net.weight(8, 16))
    onnx.save(net.model([product], [2, 8]), tmp_path / "built.onnx")
    graph = canonicalize(read(tmp_path / "built.onnx"))
    expected: tuple[tuple[ProfileName, int], ...] = (("portable", 1), ("ort", 0), ("tensorrt", 0))
    for profile, told in expected:
        found = export_costs(graph, profile, written(graph, profile, tmp_path))
        assert len(found) == told
        assert all("onnxruntime rounds activations to 8 bits" in each.after for each in found)
    assert check(tmp_path / "portable.onnx", "portable") == []


def uncentred(seed: int) -> Callable[[Net], str]:
    """A product of data, weights and perhaps a bias with zero points anywhere, and what follows."""

    def build(net: Net) -> str:
        net.random = random = np.random.default_rng(seed)
        dtype = [U8, S8][seed % 2]
        low = -128 if dtype is S8 else 0

        def params(scale: float) -> tuple[float, int, type]:
            return scale, int(random.choice([0, 60, 120, 128, 200])) + low, dtype

        x = net.fake("x", *params(0.02))
        point = int(random.choice([0, 128, 90])) if dtype is U8 else int(random.integers(-9, 9))
        codes = random.integers(low, low + 256, (4, 4, 3, 3)).astype(dtype)
        weight = net.dq(net.constant(codes), 0.004, point, dtype)
        bias = [net.floats(4)] if random.random() < 0.5 else []
        made = net.op("Conv", x, weight, *bias, pads=[1, 1, 1, 1])
        made = net.op("Relu", made) if random.random() < 0.4 else made
        stored = params(0.05)
        made = net.fake(made, *stored)
        for kind in random.choice(["MaxPool", "AveragePool", "Add", "Transpose"], 2):
            if kind == "Add":
                made = net.fake(net.op("Add", made, made), *params(0.1))
            elif kind == "Transpose":
                made = net.fake(net.op("Transpose", made, perm=[0, 1, 3, 2]), *stored)
            else:
                same = stored if kind == "MaxPool" else params(0.05)
                made = net.fake(net.op(kind, made, kernel_shape=[2, 2]), *same)
                stored = same
        return made

    return build


@pytest.mark.parametrize("seed", range(100))
def test_a_symmetric_graph_is_taken_and_as_close_as_its_steps(seed: int, tmp_path: Path) -> None:
    graph = built(uncentred(seed), tmp_path)
    made = around_zero(graph)
    assert not refused(written(made.graph, "tensorrt", tmp_path))
    activations = [
        v for v in made.graph.values() if v.quant is not None and v.constant is None
    ]  # fmt: skip
    assert all(v.quant and v.quant.params.symmetric for v in activations)
    assert all(factor <= 2.01 for factor in made.wider.values())
    feeds = data(graph)
    real, ours, theirs = (
        next(iter(evaluate(each, feeds)[0].values()))
        for each in (unquantized(graph), made.graph, graph)
    )
    if made.graph.digest == recentered(graph).digest:
        np.testing.assert_array_equal(ours, theirs)
    # Ranges are as wide or wider, and steps at most 2.01 times as large, 0.1 before.
    off, was = (float(np.sqrt(np.mean((each - real) ** 2))) for each in (ours, theirs))
    assert off <= 2.1 * was + 0.1


def refused(path: Path) -> bool:
    return any(each.effect is Effect.REFUSED for each in check(path, "tensorrt"))
