"""What onnxruntime computes is what it has made of a model: differences have that as a cause."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

import qdqbridge as qb
from qdqbridge.onnx_io.runtime.products import saturates
from qdqbridge.targets.comparison.causes import MISREAD, REWRITTEN
from qdqbridge.targets.engines.softmax_table import TABLE
from tests.onnx_io.writer_models import S8, U8, Net

COUNT = 25


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


def bias_of_another_scale_that_fills_int32(net: Net, chance: np.random.Generator) -> str:
    """The same, whose sums wrap in onnxruntime."""
    weight = net.constant(chance.integers(-60, 61, (16, 8)).astype(np.int8))
    bias = np.full(8, 2**31 - 1) * chance.choice([-1, 1], 8)
    operands = [
        net.fake("x", 0.02, 128), net.dq(weight, 0.01, 0, S8),
        net.dq(net.constant(bias.astype(np.int32)), 1e-9, 0, np.int32),
    ]  # fmt: skip
    return net.fake(net.op("Gemm", *operands), 0.05, 120)


def relu_before_float8(net: Net, chance: np.random.Generator) -> str:
    """A Relu that onnxruntime takes away, as if a zero point of 0 cut off what is below it."""
    scale = net.constant(np.array(chance.uniform(0.001, 0.01), "f"))
    zero = net.constant(np.array(0, ml_dtypes.float8_e4m3fn))
    relu = net.op("Relu", net.op("Add", "x", net.floats(16)))
    return net.op("DequantizeLinear", net.op("QuantizeLinear", relu, scale, zero), scale, zero)


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
    """What lies within two steps is a rewriting, what does not is a fault of onnxruntime."""
    net, chance, path = Net(21), np.random.default_rng(5), tmp_path / "hundred.onnx"
    kinds = (
        bias_of_another_scale, bias_of_another_scale_that_fills_int32, relu_before_float8,
        softmax_by_a_table, float_weight,
    )  # fmt: skip
    outputs = [kind(net, chance) for kind in kinds for _ in range(COUNT)]
    onnx.save(net.model(outputs, [6, 16]), path)
    data = {"x": chance.normal(size=(6, 16)).astype(np.float32)}
    with qb.open_engine("onnxruntime-optimized", path) as engine:
        found = qb.compare(qb.load(path), engine, data, local=True)
        engine.run(data, engine.outputs[:1])  # what is not asked for may be fused with others
        shown = onnx.load_model_from_string(engine.showing())
    assert [value.name for value in shown.graph.output] == list(engine.outputs)
    assert found.unexplained == 0
    values = {value.name: value for value in found.values}
    stored = [made.input[0] for name in outputs for made in net.nodes if name in made.output]
    own = {
        kind: sum(
            (Counter(values[name].causes) for name in stored[at : at + COUNT]), Counter[str]()
        )
        for kind, at in zip(kinds, range(0, len(stored), COUNT), strict=True)
    }
    assert own[bias_of_another_scale][MISREAD] > 100
    assert own[bias_of_another_scale_that_fills_int32][MISREAD] > 100
    assert own[relu_before_float8].keys() == {MISREAD}
    assert own[softmax_by_a_table][TABLE] > 100
    assert own[float_weight][REWRITTEN] > 100
    # without VNNI the pairs of weights saturate that it quantizes by itself
    assert (own[float_weight][MISREAD] > 0) == saturates()
    assert found.misread == sum(each[MISREAD] for each in own.values())
