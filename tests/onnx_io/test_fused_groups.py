"""What onnxruntime's optimizations fuse computes what the file says, or is told, or not fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb
from qdqbridge.autoquant.hardware.arithmetic import outputs_in_pairs
from qdqbridge.onnx_io.runtime.products import saturates, saturating_products
from qdqbridge.targets.profiles import Effect, Finding, check, products_in_pairs, profile_of
from qdqbridge.targets.profiles.export import run_otherwise
from tests.exact_sessions import exact_session
from tests.onnx_io.fused_groups import KINDS, group
from tests.onnx_io.writer_models import S8, Net

Array = NDArray[Any]
Session: TypeAlias = "Callable[[Path, ort.SessionOptions], ort.InferenceSession]"
LOADS_MORE = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32)
ROUNDED = 1.01
"""Steps between two orders of the same float32 sum, each rounded once."""
RELATIVES = 6 * len(KINDS)


def strong(source: Path) -> list[Finding]:
    """Returns what onnxruntime refuses, or computes otherwise."""
    return [f for f in check(source) if f.effect in (Effect.REFUSED, Effect.OTHER)]


def optimized(
    path: Path, fed: dict[str, Array], sessions: Sequence[Session] | None = None
) -> Array | None:
    """Returns what onnxruntime computes by default, None where it refuses.

    Where products saturate, the option that keeps them fuses more groups and refuses some of them
    that are left alone by default.
    """
    for opened in sessions or (exact_session, default_session):
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        try:
            return np.asarray(opened(path, options).run(None, fed)[0])
        except Exception:  # onnxruntime's exceptions share no other base
            continue
    return None


def default_session(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def computed(path: Path, fed: dict[str, Array]) -> Array:
    found = optimized(path, fed)
    assert found is not None
    return found


def meant(path: Path, fed: dict[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(default_session(path, options).run(None, fed)[0])


def right(found: Array | None, wanted: Array, model: onnx.ModelProto) -> bool:
    """True where no element is more than a step off; of floats, a thousandth of the largest."""
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    result, step = model.graph.output[0].name, 1.0
    (last,) = (node for node in model.graph.node if result in node.output)
    if last.op_type == "DequantizeLinear":
        scales = {t.name: t for t in model.graph.initializer}
        step = float(numpy_helper.to_array(scales[last.input[1]]).max())
    elif last.op_type != "QuantizeLinear":
        step = float(np.abs(wanted).max(initial=1e-9)) / 1000
    apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    return bool(np.isfinite(found).all() and (apart <= ROUNDED * step).all())


def as_written(path: Path, fed: dict[str, Array], wanted: Array, model: onnx.ModelProto) -> bool:
    """True where onnxruntime computes what a file says.

    No option keeps pairs from saturating where both factors are computed: there it is predicted.
    """
    if right(optimized(path, fed), wanted, model):
        return True
    if not saturates() or not products_in_pairs(path):
        return False
    (predicted,) = outputs_in_pairs(qb.load(path), fed, saturating_products(path)).values()
    return right(optimized(path, fed, [default_session]), predicted, model)


def differences(seed: int, folder: Path) -> list[str]:
    """Returns what is wrong with one model: untold of the file, or of what is exported."""
    model, fed, words = group(seed)
    path, written = folder / "source.onnx", folder / "written.onnx"
    onnx.save(model, path)
    wanted, graph = meant(path, fed), qb.load(path)
    found: list[str] = []
    if not as_written(path, fed, wanted, model) and not strong(path):
        found.append(f"the file is not computed as it says, and nothing tells: {words}")
    qb.save(graph, written, overwrite=True)
    if not as_written(written, fed, wanted, model) and not strong(written):
        found.append(f"the export is not computed as the file says: {words}")
    if qb.load(written).digest != graph.digest:
        found.append(f"the digest moves: {words}")
    qb.save(graph, written, overwrite=True, profile="portable")
    told = run_otherwise(written, profile_of("portable"))
    if not as_written(written, fed, wanted, model) and not told:
        found.append(f"the portable export is not computed as the file says: {words}")
    return found


@pytest.mark.skipif(not LOADS_MORE, reason="what 1.32 fuses; up to 1.31 it refuses more")
@pytest.mark.parametrize("first", range(0, RELATIVES, len(KINDS)))
def test_groups_of_every_kind(first: int, tmp_path: Path) -> None:
    seeds = range(first, first + len(KINDS))
    assert not [text for seed in seeds for text in differences(seed, tmp_path)]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(RELATIVES, 60 * len(KINDS), len(KINDS)))
def test_more_groups_of_every_kind(first: int, tmp_path: Path) -> None:
    test_groups_of_every_kind(first, tmp_path)


@pytest.mark.skipif(not LOADS_MORE, reason="what 1.32 fuses; up to 1.31 it refuses more")
@pytest.mark.parametrize(
    ("seed", "rule"), [(184, "weight-types"), (1300, "weight-types"), (402, "int8-past-movers")]
)
def test_a_portable_file_that_is_refused(seed: int, rule: str, tmp_path: Path) -> None:
    """QLinearConv with a weight of 16 bits; an int8 pair in front of a Gemm made of a MatMul."""
    model, fed, _ = group(seed)
    onnx.save(model, tmp_path / "source.onnx")
    qb.save(qb.load(tmp_path / "source.onnx"), tmp_path / "written.onnx", profile="portable")
    assert optimized(tmp_path / "written.onnx", fed) is None
    assert [f.rule for f in check(tmp_path / "written.onnx", "portable")] == [rule]
    (told,) = run_otherwise(tmp_path / "written.onnx", profile_of("portable"))
    assert rule in told.why and "refuses" in told.after


def on_axis(axis: int, shape: tuple[int, ...]) -> onnx.ModelProto:
    """A Conv whose weight has its scales along an axis."""
    net, numbers = Net(17), np.random.default_rng(0)
    scales = numbers.uniform(0.01, 0.03, shape[axis])
    codes = net.constant(numbers.integers(-90, 91, shape).astype(S8))
    weight = net.dq(codes, scales, np.zeros(shape[axis], int), S8, axis=axis)
    result = net.fake(net.op("Conv", net.fake("x", 0.02, 120), weight), 0.1, 120)
    return net.model([result], [1, shape[1], 7, 7])


@pytest.mark.parametrize(
    ("axis", "shape"), [(1, (6, 6, 3, 3)), (1, (4, 6, 3, 3)), (3, (3, 6, 3, 3))]
)
def test_scales_of_input_channels(axis: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    """QLinearConv has scales of results only: as many of another axis are taken for these."""
    model, path = on_axis(axis, shape), tmp_path / "source.onnx"
    onnx.save(model, path)
    fed = {"x": np.random.default_rng(1).normal(size=(1, shape[1], 7, 7)).astype(np.float32)}
    wanted = meant(path, fed)
    assert not right(optimized(path, fed), wanted, model)
    assert {finding.rule for finding in strong(path)} == {"unsaid-parameters"}
    graph = qb.load(path)
    for profile in ("ort", "portable"):
        written = tmp_path / f"{profile}.onnx"
        qb.save(graph, written, profile=profile)
        told = run_otherwise(written, profile_of(profile))
        kept = right(optimized(written, fed), wanted, model)
        assert (kept, bool(told), bool(strong(written))) == (
            (True, False, False) if profile == "ort" else (False, True, True)
        )
    assert [each.rule for each in check(written, "portable")] == ["unsaid-parameters"]


def test_a_bias_of_another_scale(tmp_path: Path) -> None:
    """QGemm adds an int32 bias as it is; two activations' product has no bias of its own scale."""
    net = Net(17)
    codes = net.constant(np.array([9000, -7000, 5000, 100], np.int32))
    bias = net.dq(codes, 0.0005, 0, np.int32)
    product = net.op("Gemm", net.fake("x", 0.02, 120), net.fake("x", 0.03, 110), bias)
    model = net.model([net.fake(product, 0.1, 120)], [4, 4])
    path, written = tmp_path / "source.onnx", tmp_path / "written.onnx"
    onnx.save(model, path)
    fed = {"x": np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)}
    wanted = meant(path, fed)
    assert not right(optimized(path, fed), wanted, model)
    assert [finding.rule for finding in strong(path)] == ["bias-units"]
    qb.save(qb.load(path), written)
    assert right(optimized(written, fed), wanted, model)
    assert not strong(written)


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_int8_codes_and_a_bias_that_leaves_no_room(op: str, tmp_path: Path) -> None:
    """A MatMul with a bias is a Gemm, which takes int8 twice, and wraps in 32 bits."""
    net, scales = Net(17), np.array([1e-7, 0.01, 1e-7, 0.01], np.float32)
    top = np.iinfo(np.int32)
    x = net.dq("x", 0.02, 3, S8)
    codes = net.constant(np.array([top.max, 100, top.min, -50], np.int32))
    bias = net.dq(codes, np.float32(0.02) * scales, 0, np.int32, axis=0)
    rows = np.full((4, 3), 100, S8)
    weight = net.constant(rows if op == "Gemm" else rows.T.copy())
    weight = net.dq(weight, scales, 0, S8, axis=int(op == "MatMul"))
    if op == "Gemm":
        product = net.op("Gemm", x, weight, bias, transB=1)
    else:
        product = net.op("Add", net.op("MatMul", x, weight), bias)
    code = TensorProto.INT8
    model = net.model([net.q(product, 5.0, 0, S8)], [2, 3], dtype=code, output_dtype=code)
    path, written = tmp_path / "source.onnx", tmp_path / "written.onnx"
    onnx.save(model, path)
    fed = {"x": np.stack([np.full(3, 127, S8), np.full(3, -128, S8)])}
    wanted, graph = meant(path, fed), qb.load(path)
    for profile in ("ort", "portable"):
        qb.save(graph, written, profile, overwrite=True)
        told = {each.rule for each in check(written, profile)}
        assert right(optimized(written, fed), wanted, model) == (profile == "ort")
        assert ("room-for-sums" in told) == (profile == "portable")
        assert profile == "ort" or "element-types" not in told


@pytest.mark.parametrize("moves", ["out", "sigmoid", "rounded"])
def test_int32_is_moved_as_it_is_stored(moves: str, tmp_path: Path) -> None:
    """onnxruntime pushes the DequantizeLinear past the Transpose, and a Q of int32 between."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["real"]),
        helper.make_node("Reshape", ["real", "shape"], ["turned"]),
        helper.make_node("Transpose", ["turned"], ["moved"], perm=[1, 0]),
    ]
    held = {"s": np.float32(0.01), "z": np.int32(0), "shape": np.array([6, 4])}
    if moves == "rounded":
        held |= {"s8": np.float32(0.02), "z8": np.int8(3)}
        nodes += [helper.make_node("QuantizeLinear", ["moved", "s8", "z8"], ["y"])]
    else:
        nodes += [
            helper.make_node("Sigmoid" if moves == "sigmoid" else "Identity", ["moved"], ["y"])
        ]
    code = TensorProto.INT8 if moves == "rounded" else TensorProto.FLOAT
    model = helper.make_model(
        helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT32, [4, 6])],
            [helper.make_tensor_value_info("y", code, None)],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
        ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    path, written = tmp_path / "source.onnx", tmp_path / "written.onnx"
    onnx.save(model, path)
    fed = {"x": np.random.default_rng(0).integers(-200, 200, (4, 6)).astype(np.int32)}
    assert (optimized(path, fed) is None) == (moves != "rounded")
    assert [f.rule for f in strong(path)] == ["int32-past-movers"] * (moves != "rounded")
    graph = qb.load(path)
    qb.save(graph, written)
    assert np.array_equal(computed(written, fed), meant(path, fed))
    assert not strong(written)
    assert qb.load(written).digest == graph.digest
