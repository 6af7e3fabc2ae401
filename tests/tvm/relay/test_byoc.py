"""The same tables on Relay: modules of our emitter and of hand, and a shipped table's words."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relay

import qdqbridge as qb
from qdqbridge.app.cli.failures import run
from qdqbridge.tvm.byoc import Constraints, Limits, canonical, composites, describe, partition
from qdqbridge.tvm.byoc.model import partition_shipped
from qdqbridge.tvm.byoc.records import Concatenation, Convolution, Dense
from qdqbridge.tvm.byoc.relay_host import converted
from qdqbridge.tvm.relay.emit import emit
from tests.combinations import each_once
from tests.places import MODELS

QUANTIZED = sorted(MODELS.glob("*s8*.onnx"))
TABLE = canonical()


def number(value: Any, dtype: str = "float32") -> Any:
    return relay.const(np.asarray(value, dtype))


def convolution(dtype: str = "int8") -> Any:
    """NHWC, as the shipped tables want it: conv2d, bias_add, requantize, clip, max_pool2d."""
    x = relay.var("x", shape=(1, 8, 8, 3), dtype=dtype)
    zero, w = number(0, "int32"), number(np.arange(108).reshape(3, 3, 3, 4) - 50, "int8")
    scales = number([0.1, 0.2, 0.3, 0.4])
    y = relay.qnn.op.conv2d(
        x, w, number(3, "int32"), zero, number(0.5), scales, kernel_size=(3, 3), channels=4,
        data_layout="NHWC", kernel_layout="HWIO",
    )  # fmt: skip
    y = relay.nn.bias_add(y, number(np.arange(4), "int32"), axis=3)
    product = number(np.float32(0.5) * np.asarray([0.1, 0.2, 0.3, 0.4], np.float32))
    y = relay.qnn.op.requantize(
        y, product, zero, number(0.25), number(-5, "int32"), axis=3, out_dtype=dtype
    )  # fmt: skip
    y = relay.nn.max_pool2d(relay.clip(y, -5, 100), (2, 2), layout="NHWC")
    return tvm.IRModule.from_expr(relay.Function([x], y))


def test_a_convolution_in_channels_last_is_described() -> None:
    module, coverage = partition(convolution(), TABLE)
    assert coverage.counts() == {"conv2d": 1, "max_pool2d": 1} and coverage.complete
    record = describe(composites(module)[0], TABLE)
    assert isinstance(record, Convolution)
    assert (record.data_layout, record.kernel_layout) == ("NHWC", "HWIO")
    assert record.kernel_size == (3, 3) and record.channels == 4 and record.clamp == (-5, 100)
    assert record.weight.axis == 3 and record.weight.data is not None
    np.testing.assert_array_equal(record.weight.scale, np.asarray([0.1, 0.2, 0.3, 0.4], "f4"))
    np.testing.assert_array_equal(record.bias, np.arange(4))
    assert record.input.zero_point == 3 and record.output.zero_point == -5
    assert record.rounding in ("None", "UPWARD")


@pytest.mark.parametrize(("path", "layout"), each_once(QUANTIZED, ["NCHW", "NHWC"]))
def test_models_are_taken_whole(path: Path, layout: str) -> None:
    graph = qb.load(path)
    module, params = emit(graph, "canonical", layout, extents={"batch": 1})
    assert params == {}
    divided, coverage = partition(module, TABLE)
    assert coverage.complete and len(coverage.regions) >= 1
    assert all(item.operator in ("reshape", "transpose") for item in coverage.left)
    sums = [n for n in graph.nodes if n.op.name in ("Conv", "Dense", "Gemm", "MatMul")]
    sums = [n for n in sums if n.operand(1).is_constant]
    records = [describe(each, TABLE) for each in composites(divided)]
    found = [record for record in records if isinstance(record, Convolution | Dense)]
    assert len(found) == len(sums)
    for record, node in zip(found, sums, strict=True):
        result, weight = node.output.quant, node.operand(1).quant
        assert result is not None and weight is not None
        assert record.output.scale == result.params.scale and record.weight.scale is not None
        np.testing.assert_array_equal(
            np.broadcast_to(record.weight.scale, weight.params.scale.shape), weight.params.scale
        )
        if isinstance(record, Convolution):
            assert record.data_layout == layout


def test_constants_in_tuples_are_embedded() -> None:
    x, y = (relay.var(name, shape=(1, 4), dtype="int8") for name in "xy")
    zeros = [number(1, "int32"), number(2, "int32")]
    joined = relay.qnn.op.concatenate(
        relay.Tuple([x, y]), relay.Tuple([number(0.5), number(0.25)]), relay.Tuple(zeros),
        number(0.125), number(3, "int32"), axis=1,
    )  # fmt: skip
    module, coverage = partition(tvm.IRModule.from_expr(relay.Function([x, y], joined)), TABLE)
    assert coverage.complete
    record = describe(composites(module)[0].function, TABLE)
    assert isinstance(record, Concatenation)
    assert [float(t.scale) for t in record.operands if t.scale is not None] == [0.5, 0.25]


def test_refusals_are_told_on_relay_too() -> None:
    table = canonical("npu", constraints=Constraints(Limits(layouts=("NCHW",), clamp=False)))
    _, coverage = partition(convolution(), table.without("clamp"))
    kinds = {item.operator: item.kind for item in coverage.left}
    assert kinds["qnn.conv2d"] == "refused" and kinds["clip"] == "refused"
    assert kinds["nn.bias_add"] == "refused"
    reasons = " ".join(reason for item in coverage.left for reason in item.reasons)
    assert "the layout is NHWC, NCHW is taken" in reasons
    assert "the result is clamped to -5..100" in reasons


class Shipped:
    """The Ethos-U table, as an adapter hands it out."""

    name, variant, rewrites = "ethos-u", "tflite", ("int8",)

    def shims(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def patterns(self) -> Any:
        ethosu = pytest.importorskip("tvm.relay.op.contrib.ethosu")
        return ethosu.pattern_table()

    def others(self) -> Any:
        return []

    def prepared(self, module: Any) -> Any:
        return module

    def why(self, entry: str, expr: Any) -> list[str]:
        return [f"{entry} is picky"] if entry == "maxpool2d" else []


def test_a_shipped_table_takes_and_explains() -> None:
    _, coverage = partition_shipped(convolution(), Shipped())
    assert coverage.counts() == {"qnn_conv2d": 1, "maxpool2d": 1} and coverage.complete
    _, coverage = partition_shipped(convolution("int16"), Shipped())
    reasons = {item.operator: item.reasons for item in coverage.left}
    assert set(reasons) == {"qnn.conv2d", "nn.bias_add", "qnn.requantize", "clip", "nn.max_pool2d"}
    assert "qnn_conv2d refuses: its own check refuses" in reasons["clip"]
    assert reasons["nn.max_pool2d"] == ("maxpool2d refuses: maxpool2d is picky",)


def test_relay_patterns_become_ours() -> None:
    from tvm.relay.dataflow_pattern import is_constant, is_op, is_tuple, wildcard

    from qdqbridge.tvm.byoc.pattern import Anything, CallPattern, ConstantPattern, Either, Tuple

    conv = is_op("nn.conv2d")(wildcard(), is_constant()).has_attr({"data_layout": "NHWC"})
    whole = is_op("concatenate")(is_tuple([conv.optional(is_op("nn.relu")), wildcard()]))
    ours = CallPattern("nn.conv2d", Anything(), ConstantPattern(), attrs={"data_layout": "NHWC"})
    inner = Either(ours, CallPattern("nn.relu", ours))
    found = converted(whole)
    assert isinstance(found, CallPattern) and isinstance(found.args[0], Tuple)
    either = found.args[0].fields[0]
    assert isinstance(either, Either) and set(either.choices) == set(inner.choices)


def test_the_verb_on_relay(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    assert run(["partition", model, "--dialect", "relay", "--extent", "batch=1"]) == 0
    out, _ = capsys.readouterr()
    assert "hold 25 of 25 operators, 0 left" in out
