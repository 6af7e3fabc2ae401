"""Activations that are quantized while a model runs get fixed parameters from data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import qdqbridge
from qdqbridge.app.cli.failures import run
from qdqbridge.autoquant.fixed_ranges import fixed_ranges
from qdqbridge.core.ops.dynamic import dynamic_parameters
from qdqbridge.errors import InputDataError
from tests.onnx_io.writer_models import Net

CHANCE = np.random.default_rng(5)


def integers(*shape: int) -> NDArray[np.int8]:
    return CHANCE.integers(-127, 128, shape).astype(np.int8)


def dense(net: Net, x: str, columns: int = 6) -> str:
    """A product of matrices as quantize_dynamic writes it."""
    codes = net.op("DynamicQuantizeLinear", x, results=3)
    scale, zero = f"{codes}_1", f"{codes}_2"
    total = net.op("MatMulInteger", codes, net.constant(integers(8, columns)), zero)
    factor = net.op("Mul", scale, net.constant(np.array(0.01, np.float32)))
    return net.op("Mul", net.op("Cast", total, to=1), factor)


def per_channel(net: Net, x: str) -> str:
    """A convolution whose weight has a scale for each channel, and a bias."""
    codes = net.op("DynamicQuantizeLinear", x, results=3)
    scale, zero = f"{codes}_1", f"{codes}_2"
    total = net.op("ConvInteger", codes, net.constant(integers(5, 4, 3, 3)), zero)
    scales = CHANCE.uniform(0.01, 0.03, (1, 5, 1, 1)).astype(np.float32)
    factor = net.op("Mul", scale, net.constant(scales))
    product = net.op("Mul", net.op("Cast", total, to=1), factor)
    return net.op("Add", product, net.constant(scales * np.float32(40)))


def convolution(net: Net, x: str) -> str:
    """A convolution as quantize_dynamic writes it."""
    codes = net.op("DynamicQuantizeLinear", x, results=3)
    scale, zero = f"{codes}_1", f"{codes}_2"
    weight = [net.constant(integers(5, 4, 3, 3)), zero, net.constant(np.array(3, np.int8))]
    total = net.op("ConvInteger", codes, *weight, pads=[1, 1, 1, 1])
    factor = net.op("Mul", scale, net.constant(np.array(0.02, np.float32)))
    return net.op("Mul", net.op("Cast", total, to=1), factor)


def saved(net: Net, result: str, shape: list[int | str], folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(net.model([result], shape), path)
    return path


def no_dynamic(graph: qdqbridge.Graph) -> bool:
    return not [node for node in graph.nodes if "ynamic" in node.op.name]


@pytest.mark.parametrize(
    ("build", "shape"),
    [(dense, [3, 8]), (convolution, [2, 4, 6, 6]), (per_channel, [2, 4, 6, 6])],
    ids=["MatMul", "Conv", "per channel"],
)
def test_data_that_shows_every_extreme_gives_the_same_numbers(
    build: Any, shape: list[int], tmp_path: Path
) -> None:
    net = Net(17)
    graph = qdqbridge.load(saved(net, build(net, "x"), [*shape], tmp_path))
    x = CHANCE.normal(size=shape).astype(np.float32)
    fixed = fixed_ranges(graph, {"x": x})
    assert not no_dynamic(graph)
    assert no_dynamic(fixed.graph)
    (found,) = fixed.ranges
    scale, zero_point = dynamic_parameters(x, rows=False)
    assert found.params.scale.tobytes() == scale.tobytes()
    assert int(found.params.zero_point) == int(zero_point.reshape(()))
    for ours, theirs in zip(
        qdqbridge.evaluate(fixed.graph, {"x": x}).values(),
        qdqbridge.evaluate(graph, {"x": x}).values(),
        strict=True,
    ):
        # the scales of float32 are multiplied in another order
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_examples_are_fed_as_the_model_takes_them_and_costs_are_told(tmp_path: Path) -> None:
    net = Net(17)
    second = dense(net, net.op("Relu", dense(net, "x", 8)))
    graph = qdqbridge.load(saved(net, second, [1, 8], tmp_path))
    x = CHANCE.normal(size=(40, 8)).astype(np.float32)
    fixed = fixed_ranges(graph, {"x": x})
    assert len(fixed.ranges) == 2
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale, _ = dynamic_parameters(np.array([low, high], np.float32), rows=False)
    assert float(fixed.ranges[0].params.scale) == float(scale.reshape(()))
    for found in fixed.ranges:
        assert found.decibels is not None
        assert 25 < found.decibels < 80
        assert "dB signal to noise" in found.text
    assert fixed.graph.digest == qdqbridge.parse(fixed.graph.text("inline")).digest


def test_readers_of_one_activation_share_its_parameters(tmp_path: Path) -> None:
    net = Net(17)
    total = net.op("Add", dense(net, "x"), dense(net, "x"))
    graph = qdqbridge.load(saved(net, total, [3, 8], tmp_path))
    fixed = fixed_ranges(graph, {"x": CHANCE.normal(size=(3, 8)).astype(np.float32)})
    assert len({found.params for found in fixed.ranges}) == 1
    assert sum(node.op.name == "quantize" for node in fixed.graph.nodes) == 1


def test_an_activation_without_a_range_is_named(tmp_path: Path) -> None:
    net = Net(17)
    graph = qdqbridge.load(saved(net, dense(net, "x"), [1, 8], tmp_path))
    x = np.ones((1, 8), np.float32)
    x[0, 3] = np.inf
    with pytest.raises(InputDataError, match="not finite"):
        fixed_ranges(graph, {"x": x})
    with pytest.raises(InputDataError):
        fixed_ranges(graph, {"y": x})


def test_a_graph_without_such_products_stays() -> None:
    graph = qdqbridge.parse(
        "qnn-raw 1\ninput %x: float32[2]\n%y = Relu(%x): float32[2]\noutput %y\n"
    )
    fixed = fixed_ranges(graph, {"x": np.ones(2, np.float32)})
    assert fixed.ranges == ()
    assert fixed.graph.digest == graph.digest


@pytest.mark.parametrize("profile", ["ort", "qnn", "openvino"])
def test_export_takes_examples(
    profile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    net = Net(17)
    path = saved(net, net.op("Relu", dense(net, "x")), [1, 8], tmp_path)
    x = CHANCE.normal(size=(4, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    out, data = tmp_path / "out.onnx", ["--data", str(tmp_path / "data.npz")]
    assert run(["export", str(path), "-o", str(out), "--profile", profile, *data]) == 0
    assert "dB signal to noise" in capfd.readouterr().err
    assert no_dynamic(qdqbridge.load(out))
    assert {node.op_type for node in onnx.load(out).graph.node} >= {"QuantizeLinear"}


def test_examples_that_change_nothing_say_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    net = Net(17)
    path = saved(net, net.op("Relu", "x"), [1, 8], tmp_path)
    np.savez(tmp_path / "data.npz", x=np.ones((4, 8), np.float32))
    data = ["--data", str(tmp_path / "data.npz")]
    assert run(["export", str(path), "-o", str(tmp_path / "out.onnx"), *data]) == 0
    assert "--data changes nothing" in capfd.readouterr().err
