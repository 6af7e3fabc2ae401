"""Reading call by call, from calls that a host hands over: no TVM is needed for these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.ops.attributes import ConvAttrs
from qdqbridge.errors import UnsupportedModelError
from qdqbridge.tvm.qnn.read import CALLS, ROWS, Call, Entry, Reading, Result

Array = np.ndarray[Any, Any]


class Module:
    """Hands over calls with few words."""

    def __init__(self) -> None:
        self.reading = Reading(ROWS, CALLS, where="test")
        self.inputs: list[Value] = []

    def input(self, dtype: str, *shape: int | str) -> Value:
        value = self.reading.input(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(value)
        return value

    def const(self, array: Any, dtype: str) -> Value:
        return self.reading.constant(np.asarray(array, dtype))

    def params(self, scale: Any, zero_point: Any = 0) -> list[Value]:
        return [self.const(scale, "float32"), self.const(zero_point, "int32")]

    def call(
        self, op: str, args: Sequence[Entry], dtype: str, shape: Sequence[int | str], **attrs: Any
    ) -> Entry:
        return self.reading.call(Call(op, tuple(args), attrs, (Result(dtype, tuple(shape)),)))

    def graph(self, *outputs: Entry) -> Graph:
        names = [f"y{i}" for i in range(len(outputs))]
        graph = self.reading.finish(self.inputs, outputs, names)
        verify(graph)
        verify(canonicalize(graph))
        return graph


def window(rank: int = 2, **more: Any) -> dict[str, Any]:
    return {"strides": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, **more}


def weights(*shape: int) -> Array:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(np.int8)


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def conv(m: Module, x: Value, w: Array, shape: Sequence[int], **attrs: Any) -> Entry:
    sx, zx = m.params(0.5, 3)
    sw, zw = m.params(0.25)
    args = [x, m.const(w, "int8"), zx, zw, sx, sw]
    return m.call("qnn.conv2d", args, "int32", shape, **window(**attrs))


def test_a_product_its_bias_and_its_rounding_are_one_node() -> None:
    m = Module()
    acc = conv(m, m.input("int8", 1, 2, 4, 4), weights(3, 2, 3, 3), (1, 3, 2, 2))
    bias = m.const([[[5]], [[6]], [[7]]], "int32")
    acc = m.call("add", [acc, bias], "int32", (1, 3, 2, 2))
    y = m.call("qnn.requantize", [acc, *m.params(0.125), *m.params(2, -4)], "int8", (1, 3, 2, 2))
    graph = m.graph(m.call("clip", [y], "int8", (1, 3, 2, 2), a_min=0, a_max=100))
    (node,) = graph.nodes
    assert node.op.name == "Conv"
    assert node.operand(0) is graph.inputs[0]
    assert graph.inputs[0].quant is not None
    bias_value = node.optional(2)
    assert bias_value is not None and bias_value.constant is not None
    assert bias_value.constant.numpy().tolist() == [5, 6, 7]
    assert node.output.quant is not None
    assert (node.output.quant.params.qmin, node.output.quant.params.qmax) == (0, 100)


def test_channels_last_is_channels_first_between_transposes() -> None:
    m, kernel = Module(), weights(3, 3, 2, 4)  # HWIO
    acc = conv(
        m, m.input("int8", 1, 5, 5, 2), kernel, (1, 3, 3, 4), data_layout="NHWC",
        kernel_layout="HWIO",
    )  # fmt: skip
    graph = m.graph(m.call("qnn.dequantize", [acc, *m.params(0.125)], "float32", (1, 3, 3, 4)))
    assert ops(graph) == ["Transpose", "Conv", "Transpose"]
    w = graph.nodes[1].operand(1).constant
    assert w is not None and w.shape == (4, 2, 3, 3)
    assert np.array_equal(w.numpy(), kernel.transpose(3, 2, 0, 1))


def test_a_depthwise_kernel_with_several_results_per_channel() -> None:
    m, kernel = Module(), weights(3, 3, 2, 2)  # HWOI: channels, multiplier
    acc = conv(
        m, m.input("int8", 1, 5, 5, 2), kernel, (1, 3, 3, 4), data_layout="NHWC",
        kernel_layout="HWOI", groups=2,
    )  # fmt: skip
    graph = m.graph(m.call("qnn.dequantize", [acc, *m.params(0.125)], "float32", (1, 3, 3, 4)))
    node = graph.nodes[1]
    assert isinstance(node.attributes, ConvAttrs)
    assert node.attributes.group == 2
    w = node.operand(1).constant
    assert w is not None
    assert np.array_equal(w.numpy(), kernel.transpose(2, 3, 0, 1).reshape(4, 1, 3, 3))


def test_the_scale_of_an_accumulator_may_be_its_own() -> None:
    m = Module()
    acc = conv(m, m.input("int8", 1, 2, 4, 4), weights(3, 2, 3, 3), (1, 3, 2, 2))
    graph = m.graph(m.call("qnn.dequantize", [acc, *m.params(0.3)], "float32", (1, 3, 2, 2)))
    (node,) = graph.nodes
    w = node.operand(1).quant
    assert w is not None
    assert w.params.scale == np.float32(0.3) / np.float32(0.5)


def test_movers_take_the_parameters_of_their_readers() -> None:
    m = Module()
    x = m.input("uint8", "n", 6)
    part = m.call("reshape", [x], "uint8", ("n", 2, 3), newshape=(-1, 2, 3))
    permuted = m.call("transpose", [part], "uint8", ("n", 3, 2), axes=(0, 2, 1))
    real = m.call("qnn.dequantize", [permuted, *m.params(0.5, 128)], "float32", ("n", 3, 2))
    graph = m.graph(permuted, real)
    assert ops(graph) == ["Reshape", "Transpose", "dequantize"]
    assert all(v.quant is not None for v in (graph.inputs[0], *graph.outputs[:1]))


def test_readers_that_disagree_leave_plain_integers() -> None:
    m = Module()
    x = m.input("uint8", 4)
    a, b = (
        m.call("qnn.dequantize", [x, *m.params(scale)], "float32", (4,)) for scale in (0.5, 0.25)
    )
    graph = m.graph(a, b)
    assert graph.inputs[0].quant is None
    assert ops(graph).count("reinterpret") == 2


def test_a_clip_of_integers_is_a_range() -> None:
    m = Module()
    x = m.input("uint8", 4)
    low = m.call("clip", [x], "uint8", (4,), a_min=3, a_max=250)
    graph = m.graph(m.call("qnn.sigmoid", [low, *m.params(0.1, 9), *m.params(0.01)], "int8", (4,)))
    assert ops(graph) == ["requantize", "Sigmoid"]
    quant = graph.nodes[0].output.quant
    assert quant is not None and (quant.params.qmin, quant.params.qmax) == (3, 250)


def test_a_padded_integer_is_the_number_it_stands_for() -> None:
    m = Module()
    x = m.input("int8", 4)
    wide = m.call("nn.pad", [x], "int8", (6,), pad_width=((1, 1),), pad_value=5)
    real = m.call("qnn.dequantize", [wide, *m.params(0.5, 3)], "float32", (6,))
    graph = m.graph(real)
    data = np.array([1, 2, 3, 4], np.int8)
    (result,) = evaluate(graph, {"x0": data})[0].values()
    assert result.tolist() == [1, -1, -0.5, 0, 0.5, 1]


def test_chains_are_put_together() -> None:
    m = Module()
    x = m.input("float32", 4)

    def two(op: str, a: Entry, b: Any) -> Entry:
        other = m.const(b, "float32") if isinstance(b, float) else b
        return m.call(op, [a, other], "float32", (4,))

    gate = two("add", two("multiply", x, 1 / 6), 0.5)
    gate = two("minimum", two("maximum", gate, 0.0), 1.0)
    assert ops(m.graph(two("multiply", x, gate))) == ["HardSwish"]


def test_everything_unknown_is_named_at_once() -> None:
    m = Module()
    x = m.input("float32", 4)
    a = m.call("strange", [x], "float32", (4,))
    b = m.call("stranger", [x], "float32", (4,))
    m.call("unused", [x], "float32", (4,))
    with pytest.raises(UnsupportedModelError) as error:
        m.graph(m.call("add", [a, b], "float32", (4,)))
    assert "2 call(s)" in error.value.what
    assert "strange" in error.value.why
    assert "stranger" in error.value.why
    assert "unused" not in error.value.why


def test_a_table_without_a_function_is_refused() -> None:
    m = Module()
    y = m.call("qnn.lookup", [m.input("uint8", 4), m.const([0] * 256, "uint8")], "uint8", (4,))
    with pytest.raises(UnsupportedModelError, match="no counterpart") as error:
        m.graph(y)
    assert "nothing says which function" in error.value.why
