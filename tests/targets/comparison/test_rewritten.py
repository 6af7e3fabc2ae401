"""What onnxruntime computes is what it has made of a model: differences have that as a cause."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx

import qdqbridge as qb
from qdqbridge.targets.comparison.causes import REWRITTEN, UNEXPLAINED
from qdqbridge.targets.engines.softmax_table import TABLE
from tests.onnx_io.writer_models import S8, U8, Net

COUNT = 34


def bias_of_another_scale(net: Net, chance: np.random.Generator) -> str:
    """A Gemm whose bias onnxruntime takes for one in the accumulator's scale."""
    weight = net.constant(chance.integers(-60, 61, (16, 8)).astype(np.int8))
    sign = -1 if chance.random() < 0.3 else 1
    bias = net.constant(chance.integers(-90, 91, 8).astype(np.int32))
    operands = [
        net.fake("x", 0.02, 128), net.dq(weight, sign * 0.01, 0, S8),
        net.op("DequantizeLinear", bias, net.constant(np.array(chance.uniform(0.001, 0.01), "f"))),
    ]  # fmt: skip
    return net.fake(net.op("Gemm", *operands), 0.05, 120)


def softmax_by_a_table(net: Net, chance: np.random.Generator) -> str:
    dtype = S8 if chance.random() < 0.5 else U8
    zero = int(chance.integers(-20, 20)) + (0 if dtype is S8 else 128)
    x = net.fake("x", float(chance.uniform(0.02, 0.2)), zero, dtype)
    result = net.op("Softmax", x, axis=int(chance.choice([-1, 0])))
    lowest = -128 if dtype is S8 else 0
    return net.fake(result, float(chance.uniform(1 / 255, 1 / 200)), lowest, dtype)


def float_weight(net: Net, chance: np.random.Generator) -> str:
    """A Gemm between Q and DQ whose weight onnxruntime quantizes by itself."""
    weight = net.constant(chance.normal(size=(16, 8)).astype(np.float32))
    made = net.op("Gemm", net.fake("x", 0.02, 128), weight)
    return net.fake(made, float(chance.uniform(0.04, 0.08)), 120)


def test_a_hundred_operators_of_which_onnxruntime_makes_others(tmp_path: Path) -> None:
    net, chance, path = Net(21), np.random.default_rng(5), tmp_path / "hundred.onnx"
    kinds = (bias_of_another_scale, softmax_by_a_table, float_weight)
    outputs = [kind(net, chance) for kind in kinds for _ in range(COUNT)]
    onnx.save(net.model(outputs, [6, 16]), path)
    data = {"x": chance.normal(size=(6, 16)).astype(np.float32)}
    with qb.open_engine("onnxruntime-optimized", path) as engine:
        found = qb.compare(qb.load(path), engine, data, local=True)
    causes = Counter[str]()
    for value in found.values:
        causes.update(value.causes)
    assert len(found.outputs) == 3 * COUNT
    assert causes[UNEXPLAINED] == 0
    assert causes[REWRITTEN] > 100
    assert causes[TABLE] > 100
