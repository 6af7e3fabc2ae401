"""What is exported is what was quantized: read again, run by onnxruntime, and run by TVM."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest

import qdqbridge as qb
from qdqbridge.app.pipeline import check, export_profile
from qdqbridge.autoquant.planning.targets import TARGETS
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.targets.profiles.finding import Effect
from qdqbridge.targets.profiles.legalization import legalized
from tests.autoquant.float_models import quantize_model
from tests.places import MODELS

IMAGES = np.load(MODELS / "digits_test.npz")["x"]
DATA = {"input": IMAGES[:40]}
FED = {"input": IMAGES[40:56]}
NETWORKS = ("mlp", "cnn", "mobile", "attention")
OTHERS = ("int4", "uint4", "uint8", "int16")
"""Types of weights that no target has by default."""


@cache
def network(name):
    return qb.load(MODELS / f"digits_{name}_float.onnx")


@cache
def profile_of(name):
    return qb.profile(network(name), DATA, threads=1)


@cache
def quantized(name: str, target: str = "ort", weights: str | None = None) -> Graph:
    return quantize_model(
        network(name), None, target, profile=profile_of(name), chooser="minmax", weights=weights
    ).graph


def written(graph, path, target="ort"):
    """Writes a graph for a target; returns it as it is read again: as the profile puts it."""
    profile = TARGETS[target].profile
    qb.save(graph, path, profile)
    found = qb.load(path)
    put = legalized(graph, export_profile(profile).legalizations)
    assert found.digest == canonicalize(put).digest
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_computes_what_the_interpreter_does(name, target, tmp_path):
    """Every node on onnxruntime's own operands; what differs is explained by its float32 sums."""
    path = tmp_path / "quantized.onnx"
    found = written(quantized(name, target), path, target)
    compared = qb.compare(found, path, FED, local=True)
    assert len(compared.values) > len(found.nodes) / 2
    assert compared.unexplained == 0 and compared.max_lsb <= 1


@pytest.mark.parametrize("weights", OTHERS)
def test_types_of_weights(weights, tmp_path):
    path = tmp_path / "quantized.onnx"
    found = written(quantized("mobile", weights=weights), path)
    compared = qb.compare(found, path, FED, local=True)
    assert compared.unexplained == 0 and compared.max_lsb <= 1


@pytest.mark.relax
@pytest.mark.parametrize(
    ("name", "target", "weights"),
    [
        ("mlp", "a16w8", None),
        ("mlp", "power-of-two", None),
        ("mlp", "ort", "int4"),
        ("mlp", "qnn", "int16"),
        ("cnn", "tensorrt", None),
        ("mobile", "ort-s8", None),
        ("attention", "openvino", None),
    ],
)
def test_tvm_computes_what_the_interpreter_does(name, target, weights, tmp_path):
    pytest.importorskip("tvm_ffi")
    found = written(quantized(name, target, weights), tmp_path / "quantized.onnx", target)
    compared = qb.compare(qb.compile(found), found, FED)
    assert compared.equal, compared.worst


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
@pytest.mark.parametrize("name", NETWORKS)
def test_files_keep_the_rules_of_their_runtime(name, target):
    """But what the engine computes on floats whatever a file says: no kernel, or one on floats."""
    found = check(quantized(name, target), TARGETS[target].profile)
    floats = {"float-kernels": Effect.NO_KERNEL, "products-of-activations": Effect.FLOAT}
    engines = floats if target == "openvino" else {}
    assert [one for one in found if engines.get(one.rule) is not one.effect] == []


@pytest.mark.parametrize("name", ["mlp", "cnn", "mobile"])
def test_files_fuse_in_onnxruntime(name):
    """The last product keeps its integer kernel, though its result leaves as real numbers."""
    assert {found.rule for found in check(quantized(name), "ort")} <= {"pairs-fit"}
    assert quantized(name).outputs[0].quant is None


def test_a_layer_left_float_keeps_its_weight_in_onnxruntime(tmp_path):
    """Its optimizations would round it to 8 bits of the whole tensor: 35 dB, with it kept 47."""
    left = ["/6/Conv", "/8/Relu"]
    made = quantize_model(
        network("mobile"), None, "ort", profile=profile_of("mobile"), exclude=left
    ).graph
    for profile in ("ort", "portable"):
        qb.save(made, tmp_path / "m.onnx", profile, overwrite=True)
        assert qb.load(tmp_path / "m.onnx").digest == made.digest
        plain, fused = (
            np.asarray(
                ort.InferenceSession(str(tmp_path / "m.onnx"), only(level)).run(None, FED)[0]
            )
            for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
        )
        assert 20 * np.log10(np.linalg.norm(plain) / np.linalg.norm(plain - fused)) > 44


def only(level: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return options
