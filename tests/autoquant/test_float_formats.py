"""float8 and the microscaling formats: weights, activations, what files and onnxruntime hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import qdqbridge as qb
from qdqbridge.app import pipeline
from qdqbridge.app.cli.failures import run
from qdqbridge.app.quantizing import quantization
from qdqbridge.autoquant.planning.formats import Format, Unstored
from qdqbridge.autoquant.planning.plan import format_of, weights_of
from qdqbridge.autoquant.planning.targets import E4M3, WEIGHTS
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.options import WeightFormat
from tests.places import MODELS

MLP = MODELS / "digits_mlp_float.onnx"
DIGITS = np.load(MODELS / "digits_test.npz")["x"]
SEEN, FRESH = {"input": DIGITS[:48]}, {"input": DIGITS[64:128]}
Array = NDArray[Any]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
PLAIN: dict[str, Any] = {"repair": (), "chooser": "minmax"}


def decibels(graph: Graph) -> float:
    (wanted,), (found,) = (qb.evaluate(g, FRESH).values() for g in (qb.load(MLP), graph))
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)))


def run_by_onnxruntime(path: Path, level: str) -> Array:
    """Returns what onnxruntime computes of a file at a level of optimization."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, FRESH)[0])


def stored(graph: Graph) -> set[tuple[str, str, int | None]]:
    """Returns how weights are stored: type, type of scales, length of blocks."""
    params = [v.quant.params for v in graph.values() if v.is_constant and v.quant]
    return {(p.storage_dtype.label, p.scale_dtype.label, p.block_size) for p in params}


@pytest.mark.parametrize(("storage", "largest"), [("FLOAT8_E4M3FN", 448), ("FLOAT8_E5M2", 57344)])
def test_the_largest_number_gets_the_largest_code(storage: str, largest: float) -> None:
    format = Format(DType[storage], symmetric=True)
    scale, zero_point = format.scale(np.array([-3.0, 0.0, -1.0]), np.array([2.0, 0.0, 5.0]))
    assert np.array_equal(scale, np.array([3 / largest, 1, 5 / largest], np.float32))
    assert not zero_point.any()
    params = format.params(-3.0, 2.0)
    assert params.storage_dtype is format.storage and params.symmetric


@pytest.mark.parametrize(("name", "largest"), [("mxfp8_e4m3", 448), ("mxfp4_e2m1", 6)])
def test_shared_exponents_are_the_smallest_that_clip_nothing(name: str, largest: float) -> None:
    reach = np.array([1.0, largest, largest * 1.001, 3e-5, 700.0], np.float32)
    params = WEIGHTS[name].params(-reach, reach)
    assert params.scale_dtype is DType.FLOAT8_E8M0
    scale = params.scale.astype(np.float64)
    assert np.array_equal(np.log2(scale), np.rint(np.log2(scale)))
    assert (scale * largest >= reach).all() and (scale / 2 * largest < reach).all()


def test_what_no_file_says_is_refused() -> None:
    asked: tuple[dict[str, Any], ...] = (
        {"storage": DType.FLOAT8_E4M3FN},  # a zero point
        {"storage": DType.FLOAT8_E8M0, "symmetric": True},
        {"storage": DType.FLOAT16, "symmetric": True},
        {"storage": DType.INT8, "symmetric": True, "microscaled": True},
    )
    for wrong in asked:
        with pytest.raises(UnsupportedTargetError):
            Format(**wrong)
    with pytest.raises(UnsupportedTargetError, match="no opset stores activations as mxfp8"):
        format_of("mxfp8_e4m3")
    with pytest.raises(UnsupportedTargetError, match="no type of weights 'mxfp6_e2m3'"):
        weights_of("mxfp6_e2m3")
    with pytest.raises(UnsupportedTargetError, match="uint8 meet weights of float8"):
        qb.quantize(MLP, SEEN, weights="float8_e4m3fn")
    with pytest.raises(UnsupportedTargetError, match="meet weights of float8"):
        qb.quantize(MLP, SEEN, target="dynamic", weights="float8_e5m2")


@pytest.mark.parametrize(
    ("weights", "block", "least"),
    [("float8_e4m3fn", None, 28), ("float8_e4m3fn", 32, 28), ("float8_e5m2", None, 22)],
)
def test_weights_in_float8_run_in_onnxruntime(
    weights: WeightFormat, block: int | None, least: float, tmp_path: Path
) -> None:
    graph = qb.quantize(MLP, SEEN, target="weight-only", weights=weights, block=block)
    assert (weights, "float32", block) in stored(graph)
    assert decibels(graph) > least
    path = tmp_path / "out.onnx"
    qb.save(graph, path)
    (computed,) = qb.evaluate(graph, FRESH).values()
    for level in LEVELS:  # sums in another order
        np.testing.assert_allclose(run_by_onnxruntime(path, level), computed, atol=2e-5)
    assert qb.load(path).digest == graph.digest


@pytest.mark.parametrize(
    ("name", "element", "least"),
    [
        ("mxfp8_e4m3", ml_dtypes.float8_e4m3fn, 28),
        ("mxfp8_e5m2", ml_dtypes.float8_e5m2, 21),
        ("mxfp4_e2m1", ml_dtypes.float4_e2m1fn, 13),
    ],
)
def test_microscaled_weights_are_written_with_opset_24(
    name: WeightFormat, element: type, least: float, tmp_path: Path
) -> None:
    """onnxruntime 1.32 has no kernel of it: the stored elements are counted out here."""
    graph = qb.quantize(MLP, SEEN, target="weight-only", weights=name, **PLAIN)
    assert {kind for kind in stored(graph) if kind[2]} == {
        (np.dtype(element).name, "float8_e8m0fnu", 32)
    }
    assert decibels(graph) > least
    path = tmp_path / "out.onnx"
    qb.save(graph, path)
    assert onnx.load(path).opset_import[0].version == 24
    assert qb.load(path).digest == graph.digest
    with pytest.raises(UnsupportedTargetError, match="opset 21 cannot express"):
        qb.save(graph, tmp_path / "old.onnx", opset=21)
    for node in graph.nodes:
        weight = node.optional(1)
        if weight is None or weight.constant is None or weight.quant is None:
            continue
        params = weight.quant.params
        scale = params.aligned(params.scale, weight.constant.shape).astype(np.float32)
        named = [v for v in qb.load(MLP).values() if v.constant and v.name == weight.name]
        assert named[0].constant is not None
        real: Array = named[0].constant.numpy()
        real = real if real.shape == scale.shape else real.T
        most = float(ml_dtypes.finfo(element).max)  # four bits: scales may clip where that is best
        wanted = np.clip(real / scale, -most, most).astype(element)
        assert np.array_equal(weight.constant.numpy().view(np.uint8), wanted.view(np.uint8))


def test_activations_in_float8(tmp_path: Path) -> None:
    graph = qb.quantize(MLP, SEEN, target="float8")
    made = [v.quant.params for v in graph.values() if v.quant and not v.is_constant]
    assert len(made) >= 3 and {p.storage_dtype for p in made} == {DType.FLOAT8_E4M3FN}
    assert decibels(graph) > 22
    path = tmp_path / "out.onnx"
    qb.save(graph, path)
    assert onnx.load(path).opset_import[0].version == 21
    (computed,) = qb.evaluate(graph, FRESH).values()
    for level in LEVELS:  # sums in another order
        np.testing.assert_allclose(run_by_onnxruntime(path, level), computed, atol=2e-5)
    assert qb.load(path).digest == graph.digest


def test_what_is_tried_against_float8() -> None:
    plain = qb.quantize(MLP, SEEN, target="float8", **PLAIN)
    made = quantization(MLP, SEEN, target="float8", preset="full")
    assert made.made.tuning is not None and made.made.tuning.applied
    assert any(step.step == "bias" and step.applied for step in made.made.repairs)
    assert decibels(made.graph) > decibels(plain) + 0.5
    better = made.meeting(min_sqnr=30.0)
    assert better.fallback is not None
    assert 0 < len(better.fallback.reverted) < len(made.made.decision.plan.rules)
    assert decibels(better.graph) > 27  # of samples that nobody has seen


def test_formats_are_mixed_by_name() -> None:
    mixed = qb.quantize(
        MLP,
        SEEN,
        target="weight-only",
        weight_formats={"Gemm": weights_of("float8_e5m2")},
        formats={"Gemm": Unstored.FLOAT},
        **PLAIN,
    )
    assert {kind[0] for kind in stored(mixed)} == {"float8_e5m2"}
    some = next(n.name for n in qb.load(MLP).nodes if n.op.name in ("Dense", "Gemm"))
    narrow = {some: WEIGHTS["float8_e4m3fn"]}
    part = qb.quantize(MLP, SEEN, formats={some: E4M3}, weight_formats=narrow)
    kinds = {kind[0] for kind in stored(part)}
    assert {"int8", "float8_e4m3fn"} <= kinds


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out, page = tmp_path / "x.npz", tmp_path / "out.onnx", tmp_path / "page.html"
    np.savez(data, input=SEEN["input"])
    plain = ["quantize", str(MLP), "--data", str(data), "-o", str(out), "--force"]
    asked = ["--target", "weight-only", "--weights", "mxfp8_e4m3", "--report", str(page)]
    assert run([*plain, *asked]) == 3
    assert "--export-profile portable" in " ".join(capsys.readouterr().err.split())
    assert run([*plain, *asked, "--export-profile", "portable"]) == 0
    assert "known-types" in {finding.rule for finding in pipeline.check(out)}
    assert "float8_e4m3fn" in page.read_text("utf-8")
    assert run([*plain, "--target", "float8", "--report", str(page)]) == 0
    assert run([*plain, "--format", "*=mxfp8_e4m3"]) == 3
