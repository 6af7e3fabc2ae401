"""Whatever bodies hold: what is asked of the quantizer works, or says what is the matter."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import qdqbridge as qb
from qdqbridge.app.quantizing import quantization
from qdqbridge.errors import InputDataError, UnsupportedModelError
from tests.autoquant.random_control_flow import WIDTH, random_network
from tests.exact_sessions import exact_session

TARGETS = ("ort", "weight-only", "dynamic", "qnn", "tensorrt")
QUICK, MANY = (*range(7), 28, 33, 38), range(7, 150)
CLOSE = 1e-5
"""Floats whose sums other kernels add in another order."""


def distances(path, few, ours):
    """Yields how far onnxruntime is off with its optimizations, and without.

    With them it makes one of two roundings, and MatMulNBits that round activations; without, its
    sums are those of floats: each is another step of the output now and then, and never both.
    """
    for level in (
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ):  # fmt: skip
        options = ort.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 4
        run = exact_session(path, options)
        pairs = zip(ours, run.run(None, few), strict=True)
        yield max(float(np.abs(np.asarray(b) - a).max(initial=0)) for a, b in pairs)


def check(seed, folder):
    path, out = folder / "f.onnx", folder / "q.onnx"
    onnx.save(random_network(seed), path)
    data = {"x": np.random.default_rng(seed).standard_normal((24, WIDTH)).astype(np.float32)}
    graph, target = qb.load(path), TARGETS[seed % len(TARGETS)]
    try:
        made = quantization(graph, data, target=target, repair=(), tune=False)
    except UnsupportedModelError as error:
        assert "nothing in the model" in error.what
        return 0
    qb.save(made.graph, out)
    if target != "weight-only":  # a packed Gemm does not say that what it reads has two axes
        assert qb.load(out).digest == made.graph.digest
    few = {"x": data["x"][:4]}
    ours = [*qb.evaluate(made.graph, few).values()]
    assert min(distances(out, few, ours)) <= CLOSE
    made.report(folder / "r.html")
    made.doubts()
    met = made.meeting(min_sqnr=40.0)
    assert met.fallback is not None and met.fallback.metrics.sqnr >= 40.0
    made.within(max_bytes=10**6)
    try:
        qb.blame(path, made.graph, few)
    except (InputDataError, UnsupportedModelError) as error:
        assert "nothing" in error.what
    return sum(body.integers for body in made.made.inside)


def test_random_bodies_are_quantized(tmp_path):
    total = 0
    for seed in QUICK:
        (folder := tmp_path / str(seed)).mkdir()
        total += check(seed, folder)
    assert total > 2 * len(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_many_random_bodies_are_quantized(tmp_path, seed):
    check(seed, tmp_path)
