"""Products of 16 bits on Hexagon v68 and v73, the host build of the NPU's backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import qdqbridge
from qdqbridge.app.pipeline import check
from qdqbridge.options import EngineName, ProfileName
from tests.onnx_models import Builder

SHAPE = (1, 8, 6, 6)
SCALE_X, RESULT = 2.0**-15, 2.0**-11
ENGINES: tuple[tuple[EngineName, ProfileName], ...] = (
    ("qnn-htp", "qnn"),
    ("qnn-htp-v73", "qnn-v73"),
)


def convolution(bits: int, *, channels: bool, bias: bool, result: float = RESULT) -> Any:
    """A Conv of uint16 with weights of 4, 8 or 16 bits."""
    b, top = Builder(opset=21), (1 << (bits - 1)) - 1
    kind = np.int8 if bits < 16 else np.int16
    chance = np.random.default_rng(5)
    codes = chance.integers(-top, top + 1, (12, 8, 3, 3)).astype(kind)
    scale = np.float32(0.7 / top) * (np.linspace(0.5, 1, 12) if channels else 1)
    stored = [b.init(codes), b.init(np.float32(scale)), b.init(np.zeros(np.shape(scale), kind))]
    along: dict[str, Any] = {"axis": 0} if channels else {}
    weight = b.op("DequantizeLinear", *stored, **along)
    x = b.dq(b.input("x", list(SHAPE), onnx.TensorProto.UINT16), SCALE_X, 30000, np.uint16)
    numbers = [b.init(chance.normal(size=12).astype(np.float32))] if bias else []
    made = b.op("Conv", x, weight, *numbers, pads=[1, 1, 1, 1])
    stored_y = b.q(made, result, 32000, np.uint16)
    b.output(stored_y, [1, 12, 6, 6], onnx.TensorProto.UINT16)
    return b.model()


def data() -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(2).integers(0, 1 << 16, SHAPE).astype(np.uint16)}


def off(engine: EngineName, path: Path) -> int:
    with qdqbridge.open_engine(engine, path) as judge:
        assert judge.taken().takes_all
        found = qdqbridge.compare(qdqbridge.load(path), judge, data(), local=True)
    return found.max_lsb or 0


@pytest.mark.parametrize(("bits", "channels"), [(4, True), (8, True), (16, True), (16, False)])
def test_products_of_16_bits_are_right_from_v73_on(
    bits: int, channels: bool, tmp_path: Path
) -> None:
    source = tmp_path / "source.onnx"
    onnx.save(convolution(bits, channels=channels, bias=channels), source)
    graph = qdqbridge.load(source)
    for engine, profile in ENGINES:
        written = tmp_path / f"{profile}.onnx"
        qdqbridge.save(graph, written, profile)
        bounds = [f.steps for f in check(written, profile) if f.rule == "wide-arithmetic"]
        steps = off(engine, written)
        assert steps <= max(bounds)
        assert (steps <= 2) == (engine == "qnn-htp-v73")


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("result", [RESULT / 16, RESULT / 256])
def test_the_rules_say_how_far_a_result_of_small_steps_is_off(
    bits: int, result: float, tmp_path: Path
) -> None:
    path = tmp_path / "source.onnx"
    onnx.save(convolution(bits, channels=True, bias=True, result=result), path)
    assert off("qnn-htp-v73", path) <= max([2, *(f.steps for f in check(path, "qnn-v73"))])


def test_weights_of_16_bits_load_on_v73_alone(tmp_path: Path) -> None:
    path = tmp_path / "source.onnx"
    onnx.save(convolution(16, channels=False, bias=False), path)
    assert "wide-weights" in {found.rule for found in check(path, "qnn")}
    assert "wide-weights" not in {found.rule for found in check(path, "qnn-v73")}
    with pytest.raises(qdqbridge.QdqBridgeError), qdqbridge.open_engine("qnn-htp", path) as judge:
        judge.taken()
    with qdqbridge.open_engine("qnn-htp-v73", path) as judge:
        assert "htp_arch 73" in judge.version


@pytest.mark.parametrize(
    ("function", "low", "high", "most"),
    [
        ("Gelu", -4, 0, 0.17), ("Softplus", -1, 1, 1.4), ("Softmax", -1, 1, 1), ("Sqrt", 0, 1, 1),
        ("Exp", -4, 4, 54.6),
    ],
)  # fmt: skip
def test_the_rules_say_how_far_functions_are_off(
    function: str, low: float, high: float, most: float, tmp_path: Path
) -> None:
    """Over all operands; they are the same on every architecture."""
    b, path = Builder(opset=21), tmp_path / "function.onnx"
    step = (high - low) / ((1 << 16) - 1)
    shape = [1, 64, 1024] if function != "Softmax" else [1, 1024, 64]
    x = b.dq(b.input("x", shape, onnx.TensorProto.UINT16), step, round(-low / step), np.uint16)
    zero = (1 << 16) - 1 if function == "Gelu" else 0
    stored = b.q(b.op(function, x), most / ((1 << 16) - 1), zero, np.uint16)
    b.output(stored, shape, onnx.TensorProto.UINT16)
    onnx.save(b.model(), path)
    (found,) = (f for f in check(path, "qnn") if f.rule == "wide-arithmetic")
    codes = np.random.default_rng(1).permutation(1 << 16).astype(np.uint16).reshape(shape)
    graph = qdqbridge.load(path)
    with qdqbridge.open_engine("qnn-htp", path) as judge:
        worst = qdqbridge.compare(graph, judge, {"x": codes}, local=True).max_lsb or 0
    assert worst <= found.steps <= 4 * worst + 16
