"""The rules of the ``ort`` profile against what onnxruntime's optimizer really does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.onnx_io.reading.reader import read
from qdqbridge.targets.profiles import Effect, Finding
from qdqbridge.targets.profiles import check as findings_of
from qdqbridge.targets.profiles.export import export
from qdqbridge.targets.profiles.finding import view_of
from qdqbridge.targets.profiles.shared_rules import bare, float_region_nodes
from tests.onnx_io.writer_models import CNN, IMAGES, MATRICES, S8, U8, Net, X, Y, network
from tests.places import MODELS
from tests.targets.profiles import test_profiles
from tests.targets.profiles.test_profiles import BROKEN, KEPT, SYMMETRIC

OWN_MODELS = sorted(path.name for path in MODELS.glob("*.onnx"))
NETWORKS = [*IMAGES, *MATRICES]
LOADS_MORE = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32)
"""1.32 loads and fuses vectors of one scale, and float8 products; up to 1.31 it refuses them."""


def check(path: Path) -> list[Finding]:
    """Returns what a file does not keep, on every processor (``tests/autoquant/test_pairs.py``)."""
    return [each for each in findings_of(path) if each.effect is not Effect.PROCESSOR]


def optimized(path: Path) -> onnx.ModelProto | None:
    """Returns the graph that onnxruntime runs, None where it does not load the file."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    dump = path.with_suffix(".optimized.onnx")
    options.optimized_model_filepath = str(dump)
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime's exceptions share no other base
        return None
    return onnx.load(dump)


def computed(path: Path, x: np.ndarray[Any, Any], level: str) -> np.ndarray[Any, Any]:
    """Returns what onnxruntime computes of ``x`` at a level of optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def assert_agrees(path: Path) -> bool:
    """Checks that findings are empty iff no float compute is left; returns whether none is."""
    found = [f for f in check(path) if f.rule != "no-quantization" and f.effect is not Effect.OTHER]
    model = optimized(path)
    refused = [finding for finding in found if finding.effect.value == "refused"]
    assert (model is None) == bool(refused), refused
    if model is None:
        return False
    left = [bare(node) for node in float_region_nodes(view_of(model, path.parent, path.name))]
    assert bool(left) == bool(found), (left, found)
    return not left


def saved(build: Callable[[Net], str], folder: Path, opset: int = 17) -> Path:
    net = Net(opset)
    path = folder / "model.onnx"
    onnx.save(net.model([build(net)], CNN), path)
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, tmp_path: Path) -> None:
    path = tmp_path / "source.onnx"
    onnx.save(network(name), path)
    assert_agrees(path)


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("name", NETWORKS)
def test_written_networks(name: str, opset: int, tmp_path: Path) -> None:
    source, path = tmp_path / "source.onnx", tmp_path / "written.onnx"
    onnx.save(network(name, opset), source)
    export(canonicalize(read(source)), path)
    assert_agrees(path)


@pytest.mark.parametrize("name", OWN_MODELS)
def test_own_models(name: str, tmp_path: Path) -> None:
    source, path = tmp_path / "source.onnx", tmp_path / "written.onnx"
    source.write_bytes((MODELS / name).read_bytes())
    assert_agrees(source)
    export(canonicalize(read(source)), path)
    assert_agrees(path)


def test_what_is_quantized_throughout_runs_on_integers(tmp_path: Path) -> None:
    path = tmp_path / "written.onnx"
    export(canonicalize(read(MODELS / "digits_cnn_u8s8_per_channel.onnx")), path)
    assert assert_agrees(path)


def test_only_operators_without_a_kernel_stay_float(tmp_path: Path) -> None:
    path = tmp_path / "written.onnx"
    export(canonicalize(read(MODELS / "digits_attention_u8s8_per_channel.onnx")), path)
    found = check(path)
    assert {finding.effect.value for finding in found} == {"no kernel"}
    model = optimized(path)
    assert model is not None
    left = {bare(node) for node in float_region_nodes(view_of(model, tmp_path, "m"))}
    assert left == {finding.operator for finding in found}


BY_ORT = [name for name in BROKEN if name.startswith("ort_") and name != "ort_16_bits"]


@pytest.mark.parametrize("name", BY_ORT)
def test_broken_rules_are_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    path = saved(BROKEN[name][2], tmp_path)
    if name == "ort_rank_one" and LOADS_MORE:
        assert optimized(path) is not None
        assert "up to 1.31" in check(path)[0].source
        return
    (effect,) = {finding.effect for finding in check(path) if finding.rule == BROKEN[name][1]}
    integers = assert_agrees(path)
    assert integers == (effect is Effect.OTHER)
    if integers:
        x = np.random.default_rng(5).normal(size=(2, 4, 6, 6)).astype(np.float32)
        plain, fused = (computed(path, x, f"ORT_{level}_ALL") for level in ("DISABLE", "ENABLE"))
        assert np.abs(plain - fused).max() > 2 * Y[0]


@pytest.mark.parametrize("name", [name for name in KEPT if name.startswith("ort_")])
def test_kept_rules_are_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    assert assert_agrees(saved(KEPT[name][1], tmp_path))


def product(net: Net, x: str, weight: int, *, gemm: bool, turned: bool) -> str:
    """Returns a product of rows of 16 with a dequantized matrix, a scale for each column."""
    codes = np.random.default_rng(3).integers(-7, 8, (6, 16) if turned else (16, 6))
    net.tensors.append(helper.make_tensor("w", weight, codes.shape, codes.ravel().tolist()))
    scale = net.constant(np.linspace(0.01, 0.02, 6, dtype=np.float32))
    w = net.op("DequantizeLinear", "w", scale, axis=0 if turned else 1)
    w = net.op("Transpose", w, perm=[1, 0]) if turned else w
    return net.op("Gemm" if gemm else "MatMul", x, w)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("weight", [TensorProto.INT8, TensorProto.INT4])
@pytest.mark.parametrize("dtype", [None, np.uint8, np.uint16])
def test_products_whose_activations_onnxruntime_rounds_are_told_and_written_otherwise(
    dtype: Any, weight: int, gemm: bool, turned: bool, tmp_path: Path
) -> None:
    wide = dtype is not np.uint8
    rounded = wide and (not turned or (weight == TensorProto.INT8 and not gemm))
    result = (4e-5, 32768, np.uint16) if wide else (0.01, 128, np.uint8)
    net = Net(21, 10)
    x = "x" if dtype is None else net.fake("x", *((1e-4, 32768) if wide else (0.03, 128)), dtype)
    y = net.fake(product(net, x, weight, gemm=gemm, turned=turned), *result)
    path, written = tmp_path / "model.onnx", tmp_path / "written.onnx"
    onnx.save(net.model([y], [5, 16]), path)
    graph = qb.load(path)
    qb.save(graph, written)
    assert qb.load(written).digest == graph.digest
    said = [{finding.rule for finding in check(file)} for file in (path, written)]
    assert ["rounded-activation" in rules for rules in said] == [rounded, False]
    data = np.random.default_rng(5).normal(size=(5, 16)).astype(np.float32)
    (ours,) = qb.evaluate(graph, {"x": data}).values()
    off = [np.abs(computed(file, data, "ORT_ENABLE_ALL") - ours).max() for file in (path, written)]
    step = 1.01 * result[0]  # sums of floats may meet a tie
    assert off[1] <= step
    if LOADS_MORE:
        assert (off[0] > 2 * step) == rounded


def pool(net: Net) -> str:
    x = net.fake("x", *X)
    return net.fake(net.op("AveragePool", x, kernel_shape=[2, 2], dilations=[1, 1]), *Y)


@pytest.mark.parametrize(("factor", "broken"), [(1.15, True), (1.0, False), (1.4, False)])
def test_a_resize_that_keeps_every_extent_is_left_out(
    factor: float, broken: bool, tmp_path: Path
) -> None:
    def build(net: Net) -> str:
        scales = net.constant(np.array([1, 1, factor, factor], np.float32))
        return net.op("Resize", net.fake("x", *X), "", scales, mode="linear")

    path = saved(build, tmp_path)
    assert ("resized-in-place" in {finding.rule for finding in check(path)}) == broken
    feeds = {"x": np.random.default_rng(5).normal(size=(2, 4, 6, 6)).astype(np.float32)}
    plain = computed(path, feeds["x"], "ORT_DISABLE_ALL")
    (ours,) = qb.evaluate(qb.load(path), feeds).values()
    assert (np.abs(plain - ours).max() > X[0]) == broken


@pytest.mark.parametrize(
    ("pads", "include", "broken"),
    [([0, 0, 0, 0], 1, True), ([0, 0, 1, 1], 1, False), ([0, 0, 0, 0], 0, False)],
)
def test_elements_beyond_the_padding_are_counted(
    pads: list[int], include: int, broken: bool, tmp_path: Path
) -> None:
    def build(net: Net) -> str:
        y = net.op(
            "AveragePool", net.fake("x", *X), kernel_shape=[3, 3], strides=[2, 2], pads=pads,
            ceil_mode=1, count_include_pad=include,
        )  # fmt: skip
        return net.fake(y, *Y)

    path = saved(build, tmp_path)
    assert ("counted-padding" in {finding.rule for finding in check(path)}) == broken
    x = np.random.default_rng(5).normal(size=(2, 4, 6, 6)).astype(np.float32)
    plain, fused = (computed(path, x, f"ORT_{level}_ALL") for level in ("DISABLE", "ENABLE"))
    assert (np.abs(plain - fused).max() > 2 * Y[0]) == broken


def int8_past_reshape(net: Net) -> str:
    shape = net.constant(np.array([-1, 6], np.int64))
    x = net.op("Reshape", net.fake("x", *SYMMETRIC), shape)
    return net.fake(net.op("Mul", x, x), 0.1, 0, S8)


def without_zero_points(net: Net) -> str:
    def fake(x: str) -> str:
        scale = net.constant(np.float32(0.1))
        return net.op("DequantizeLinear", net.op("QuantizeLinear", x, scale), scale)

    shape = net.constant(np.array([-1, 6], np.int64))
    x = fake(net.op("Reshape", "x", shape))
    return fake(net.op("Gemm", x, net.weight(3, 6), transB=1))


@pytest.mark.parametrize(
    ("build", "opset", "rule"),
    [(pool, 19, "no-dilations"), (without_zero_points, 17, "zero-points-written")],
)
def test_further_rules(build: Callable[[Net], str], opset: int, rule: str, tmp_path: Path) -> None:
    path = saved(build, tmp_path, opset)
    assert not assert_agrees(path)
    assert rule in {finding.rule for finding in check(path)}


def int8_matmul_add(opset: int) -> onnx.ModelProto:
    """A product of int8 whose bias is an Add of its own: onnxruntime puts a Reshape before it."""
    net = Net(opset)
    product = net.op("MatMul", net.fake("x", *SYMMETRIC), net.weight(24, 7, axis=1))
    result = net.fake(net.op("Add", product, net.floats(7)), 0.3, 0, S8)
    return net.model([result], [2, 5, 24])


def test_int8_past_movers_does_not_load_from_opset_21(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(int8_matmul_add(21), path)
    assert "int8-past-movers" in {finding.rule for finding in check(path)}
    assert optimized(path) is None
    onnx.save(int8_matmul_add(20), path)
    assert not [f for f in check(path) if f.effect.value == "refused"]
    assert optimized(path) is not None


def test_the_writer_falls_back_to_an_opset_that_loads(tmp_path: Path) -> None:
    source, path = tmp_path / "source.onnx", tmp_path / "written.onnx"
    onnx.save(int8_matmul_add(21), source)
    graph = canonicalize(read(source))
    digest = graph.digest
    export(graph, path)
    assert onnx.load(path).opset_import[0].version == 20
    assert canonicalize(read(path)).digest == digest
    assert_agrees(path)


def test_the_writer_leaves_dilations_out(tmp_path: Path) -> None:
    path = tmp_path / "written.onnx"
    export(canonicalize(read(saved(pool, tmp_path, 19))), path)
    assert assert_agrees(path)


def half_scales(opset: int) -> onnx.ModelProto:
    scale = numpy_helper.from_array(np.array(0.1, np.float16), "s")
    zero = numpy_helper.from_array(np.array(3, U8), "z")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dq"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [2, 3]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [scale, zero])
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(("opset", "loads"), [(17, False), (19, True)])
def test_float16_scales_came_with_opset_19(opset: int, loads: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(half_scales(opset), path)
    assert ("known-types" in {f.rule for f in check(path)}) is not loads
    assert (optimized(path) is not None) is loads


def computed_parameter(net: Net) -> str:
    """A scale that is no initializer even after folding: a DQ makes it."""
    scale = net.dq(net.constant(np.array(2, U8)), 0.01)
    zero = net.constant(np.array(120, U8))
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", "x", scale, zero), scale, zero)
    weight, bias = test_profiles.int32_bias(net)
    return net.fake(net.op("Conv", x, weight, bias), *Y)


def test_scales_must_be_initializers(tmp_path: Path) -> None:
    path = saved(computed_parameter, tmp_path)
    assert "constant-scalar-parameters" in {finding.rule for finding in check(path)}
    assert not assert_agrees(path)


def overridable(path: Path) -> None:
    """Makes every initializer a graph input as well, so that a caller may replace it."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    onnx.save(model, path)


def test_initializers_that_are_inputs_are_no_constants(tmp_path: Path) -> None:
    path = saved(lambda n: test_profiles.with_bias(n, 1.0), tmp_path)
    assert assert_agrees(path)
    overridable(path)
    assert not assert_agrees(path)


def small_floats() -> onnx.ModelProto:
    dtype = helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN)
    weight = np.ones((4, 6)).astype(dtype)
    tensors = [
        numpy_helper.from_array(np.array(0.5, np.float32), "s"),
        numpy_helper.from_array(np.zeros((), dtype), "z"),
        numpy_helper.from_array(weight, "w"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "a"),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "b"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"], "c"),
        helper.make_node("Gemm", ["xd", "wd"], ["h"], "gemm", transB=1),
        helper.make_node("QuantizeLinear", ["h", "s", "z"], ["hq"], "d"),
        helper.make_node("DequantizeLinear", ["hq", "s", "z"], ["y"], "e"),
    ]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4]),
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    imports = [helper.make_opsetid("", 19)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def test_float8_is_fused_into_an_operator_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(small_floats(), path)
    assert "no-small-floats" in {finding.rule for finding in check(path)}
    assert (optimized(path) is not None) == LOADS_MORE


def _float8_behind(clamp: str, opset: int) -> onnx.ModelProto:
    scale = numpy_helper.from_array(np.array(0.05, np.float32), "s")
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    point = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    clamped = ["n"] if clamp == "Relu" else ["n", "zero"]
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "first"),
        helper.make_node(clamp, clamped, ["h"], "clamp"),
        helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dq"),
        helper.make_node("Neg", ["d"], ["y"], "last"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [scale, zero, point])
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(
    ("clamp", "rule"),
    [("Relu", "clamped-float8"), ("Clip", "refused-float8"), ("Max", None)],
)
@pytest.mark.parametrize("opset", [19, 21])
def test_float8_behind_a_clamp(clamp: str, rule: str | None, opset: int, tmp_path: Path) -> None:
    """onnxruntime reads the zero point as an integer's; where there is none, it reads the type."""
    path, written = tmp_path / "model.onnx", tmp_path / "written.onnx"
    onnx.save(_float8_behind(clamp, opset), path)
    assert {f.rule for f in check(path)} == ({rule} if rule else set())
    x = np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32)
    plain = computed(path, x, "ORT_DISABLE_ALL")
    if rule == "refused-float8":
        assert optimized(path) is None
    else:
        same = np.array_equal(computed(path, x, "ORT_ENABLE_ALL"), plain)
        assert same == (rule is None)
    graph = canonicalize(read(path))
    export(graph, written)
    assert not check(written)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(computed(written, x, level), plain)


def test_a_clip_of_an_input_is_not_fused(tmp_path: Path) -> None:
    path, model = tmp_path / "model.onnx", _float8_behind("Clip", 21)
    model.graph.node[1].input[0] = "x"
    del model.graph.node[0]
    onnx.save(model, path)
    assert not check(path) and optimized(path) is not None


def test_int32_bias_of_another_scale_is_not_fused(tmp_path: Path) -> None:
    path = saved(lambda n: test_profiles.with_bias(n, 1.02), tmp_path)
    assert not assert_agrees(path)


# ---- other numbers ----------------------------------------------------------------------------


def _coarse(net: Net, bias: float) -> str:
    """A Conv whose accumulator counts in steps of ten of the result's."""
    weight = net.dq(net.constant(np.ones((4, 4, 1, 1), S8)), 0.5, 0, S8)
    numbers = net.constant(np.full(4, bias, np.float32))
    return net.fake(net.op("Conv", net.fake("x", 1.0, 120), weight, numbers), 0.05, 100)


def _twice(net: Net, second: tuple[float, int]) -> str:
    return net.op("Sqrt", net.op("Abs", net.fake(net.fake("x", *X), *second)))


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda n: _coarse(n, 0.3), "float-bias-kept"),
        (lambda n: _coarse(n, 0.5), None),
        (lambda n: _twice(n, (0.031, 100)), "two-roundings"),
        (lambda n: _twice(n, X), None),
    ],
    ids=["bias beyond the bound", "bias in units", "two scales", "one scale"],
)
def test_where_optimizations_change_the_numbers(
    build: Callable[[Net], str], rule: str | None, tmp_path: Path
) -> None:
    path = saved(build, tmp_path)
    found = {f.rule for f in check(path) if f.effect is Effect.OTHER}
    assert found == ({rule} if rule else set())
    x = np.random.default_rng(3).normal(size=(1, 4, 6, 6)).astype(np.float32)
    results = [computed(path, x, level) for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")]
    assert bool(np.abs(results[0] - results[1]).max() > 1e-6) == bool(rule)
