"""Maps per channel and transposes of another layout, before a float graph is quantized."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization.shape_inference import quant_pre_process

import qdqbridge as qb
from qdqbridge.autoquant.profiling.collect import prepared
from tests.onnx_models import Builder, canonical, ops, run

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def of_tensorflow(seed: int) -> onnx.ModelProto:
    """A network as tf2onnx writes it: images channels-last, batch norms a Mul and an Add."""
    rng, b = np.random.default_rng(seed), Builder(13)
    x = b.input("x", ["n", 8, 8, 3])
    x = b.op("Add", b.op("Mul", x, b.init(np.array([1, 1.1, 0.9], np.float32))),
             b.init(np.array([-0.1, 0, 0.2], np.float32)))  # fmt: skip
    channels = 3
    for index, units in enumerate((8, 8, 12)):
        w = rng.normal(size=(units, channels, 3, 3)) * np.sqrt(2 / 9 / channels)
        y = b.op("Conv", b.op("Transpose", x, perm=FIRST), b.init(w.astype(np.float32)),
                 pads=[1] * 4, strides=[2 if index == 2 else 1] * 2)  # fmt: skip
        y = b.op("Transpose", y, perm=LAST)
        y = b.op("Mul", y, b.init(np.exp(rng.normal(size=units) * 1.2).astype(np.float32)))
        y = b.op("Relu", b.op("Add", y, b.init(rng.normal(size=units).astype(np.float32))))
        x = b.op("Add", x, y) if units == channels else y
        channels = units
    x = b.op("ReduceMean", x, axes=[1, 2], keepdims=0)
    w = b.init(rng.normal(size=(channels, 10)).astype(np.float32))
    b.output(b.op("MatMul", x, w), ["n", 10])
    return b.model()


@pytest.mark.parametrize("seed", [0])
def test_a_file_of_tf2onnx_is_quantized_as_after_onnxruntimes_preprocessing(
    seed: int, tmp_path: Path
) -> None:
    given, ready = tmp_path / "given.onnx", tmp_path / "ready.onnx"
    onnx.save(of_tensorflow(seed), given)
    quant_pre_process(str(given), str(ready), skip_symbolic_shape=True)
    rng = np.random.default_rng(9)
    data = [{"x": rng.normal(size=(4, 8, 8, 3)).astype(np.float32)} for _ in range(4)]
    test = {"x": rng.normal(size=(16, 8, 8, 3)).astype(np.float32)}
    (wanted,) = qb.evaluate(qb.load(given), test).values()
    noise: list[float] = []
    for path in (given, ready):
        (found,) = qb.evaluate(qb.quantize(qb.load(path), data), test).values()
        noise.append(float(np.square(found - wanted).sum() / np.square(wanted).sum()))
    # as good as after preprocessing, within 0.2 dB of float rounding; 25 dB, where 18 were reached
    assert noise[0] <= noise[1] * 10**0.02
    assert noise[0] < 10**-2.5


def test_relatives_compute_the_same_with_nothing_left_per_channel() -> None:
    """Random products with maps per channel behind them, in both layouts."""
    for seed in range(40):
        rng, data = Random(seed), np.random.default_rng(seed)
        b, units = Builder(17), rng.choice((1, 4, 6))
        last, transposed = rng.random() < 0.5, rng.random() < 0.3
        x: Any = b.input("x", [2, 4, 5, 5])
        kernel = data.normal(size=(4, units, 3, 3) if transposed else (units, 4, 3, 3))
        y = b.op("ConvTranspose" if transposed else "Conv", x, b.init(kernel.astype(np.float32)))
        y = b.op("Transpose", y, perm=LAST) if last else y
        shape = [(units,), (1, 1, 1, units)] if last else [(units, 1, 1), (1, units, 1, 1)]
        for _ in range(rng.choice((1, 2, 3))):
            numbers = data.uniform(0.5, 2, rng.choice(shape)).astype(np.float32)
            y = b.op(rng.choice(("Mul", "Add", "Sub", "Div")), y, b.init(numbers))
        y = b.op("Transpose", b.op("Relu", y), perm=FIRST) if last else b.op("Relu", y)
        b.output(y, [None] * 4)  # type: ignore[list-item]
        graph = canonical(b.model())
        ready = prepared(graph)
        assert ops(ready) == [ops(graph)[0], "Relu"], seed
        feeds = {"x": data.normal(size=(2, 4, 5, 5)).astype(np.float32)}
        (wanted,), (found,) = run(graph, feeds), run(ready, feeds)
        # each factor rounds once more in float32: 2**-20 of the largest number
        np.testing.assert_allclose(found, wanted, rtol=0, atol=np.abs(wanted).max() * 2**-20)
