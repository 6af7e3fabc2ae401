"""Whole networks on fast kernels: the interpreter's codes, whatever lies between the products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.onnx_io.reading.reader import read
from tests.onnx_io.writer_models import CNN, IMAGES, MATRICES, Net, Y, network, samples
from tests.places import MODELS


def _loaded(model: onnx.ModelProto, folder: Path) -> Graph:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return canonicalize(read(path))


def _normalized(net: Net) -> str:
    """A norm over the channels between two convolutions that are channels-last."""
    first = net.fake(_convolved(net, net.fake("x", 0.02, 128)), *Y)
    floats = (
        net.constant(np.array([1, 0.5, 2, 1], np.float32)),
        net.constant(np.array([0, 1, -1, 0.5], np.float32)),
    )
    normed = net.fake(net.op("InstanceNormalization", first, *floats, epsilon=1e-5), 0.03, 120)
    return net.fake(_convolved(net, normed), *Y)


def _computed_weight(net: Net) -> str:
    """A convolution that stays float: its weight is computed from stored codes."""
    first = net.fake(_convolved(net, net.fake("x", 0.02, 128)), *Y)
    return net.op("Conv", first, _weight(net), pads=[1, 1, 1, 1])


def _weight(net: Net) -> str:
    stored = net.constant(net.random.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8))
    return net.dq(stored, 0.01, 0, np.int8)


def _convolved(net: Net, x: str) -> str:
    return net.op("Conv", x, _weight(net), pads=[1, 1, 1, 1])


def _check(graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    found = qb.compile(graph).run(feeds)
    plain: dict[str, np.ndarray] = {}
    expected = qb.evaluate(graph, feeds)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value.quant is not None or _behind_codes(graph, value.name):
            np.testing.assert_array_equal(found[name], expected[name])
        else:  # a float operator of TVM's, whose parts may be fused: some ulp
            plain = plain or qb.compile(graph, kernels="reference").run(feeds)
            np.testing.assert_allclose(found[name], plain[name], rtol=1e-5, atol=1e-5)


def _behind_codes(graph: Graph, name: str) -> bool:
    (node,) = (n for n in graph.nodes if any(v.name == name for v in n.outputs))
    return node.op.name == "dequantize"


@pytest.mark.parametrize("name", [*IMAGES, *MATRICES])
def test_the_writers_networks(name: str, tmp_path: Path) -> None:
    model = network(name)
    _check(_loaded(model, tmp_path), samples(model))


@pytest.mark.parametrize("build", [_normalized, _computed_weight])
def test_between_images(build: Callable[[Net], str], tmp_path: Path) -> None:
    net = Net(17)
    model = net.model([build(net)], CNN)
    _check(_loaded(model, tmp_path), samples(model))


@pytest.mark.parametrize("name", sorted(p.stem for p in MODELS.glob("digits_*8*.onnx")))
def test_own_models(name: str) -> None:
    graph = qb.load(MODELS / f"{name}.onnx")
    images = {graph.inputs[0].name: np.load(MODELS / "digits_test.npz")["x"][:8]}
    _check(graph, images)
