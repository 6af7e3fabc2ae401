"""Differences are found where they are, named for what they are, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qdqbridge.core.graph import diff as diff_module
from qdqbridge.core.graph.alignment import main_operand
from qdqbridge.core.graph.diff import DifferenceKind, GraphDifference, diff
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.types import QuantParams, per_tensor
from qdqbridge.core.ops.attributes import AxisAttrs, ConvAttrs, TransposeAttrs
from tests.core.graph.graphs import (
    OUT,
    S8,
    U8,
    W8,
    apply,
    const,
    dq,
    graph,
    plain,
    q,
    rq,
    stored,
    typed,
)

WEIGHT = np.arange(-36, 36, dtype=np.int8).reshape(2, 4, 3, 3)
CHANNELS = QuantParams(
    DType.INT8, np.array([2**-7, 2**-6], np.float32), np.zeros(2, np.int32), axis=0
)
CONV = ConvAttrs((1, 1), (1, 1), (1, 1, 1, 1))


def bias_params(scale: float = 2**-12) -> QuantParams:
    return per_tensor(DType.INT32, scale)


def network(
    *,
    x: QuantParams = U8,
    weight: Any = WEIGHT,
    w: QuantParams = W8,
    bias: Any = (5, -7),
    attributes: ConvAttrs = CONV,
    y: QuantParams = OUT,
    unary: str = "Sigmoid",
    between: Callable[[Value], Value] = lambda v: v,
    shape: tuple[int | str, ...] = ("n", 4, 6, 6),
    prefix: str = "",
) -> Graph:
    """Returns ``x -> quantize -> Conv -> Sigmoid -> Mul(conv, sigmoid) -> dequantize``."""
    source = plain(f"{prefix}x", shape)
    operands = [q(source, x, f"{prefix}q"), const(weight, w, f"{prefix}w")]
    if bias is not None:
        operands.append(const(np.array(bias, np.int32), bias_params(), f"{prefix}b"))
    type_ = typed(("n", 2, 6, 6), y)
    conv = apply("Conv", *operands, type_=type_, attributes=attributes, name=f"{prefix}conv")
    conv = between(conv)
    gate = apply(unary, conv, type_=typed(("n", 2, 6, 6), S8), name=f"{prefix}gate")
    product = apply("Mul", conv, gate, type_=typed(("n", 2, 6, 6), U8), name=f"{prefix}mul")
    return graph([source], dq(product, f"{prefix}dq"))


def only(a: Graph, b: Graph) -> GraphDifference:
    found = diff(a, b)
    assert len(found) == 1, found
    return found[0]


def test_equal_graphs_have_no_difference() -> None:
    assert diff(network(), network()) == []


def test_names_and_symbols_are_no_difference() -> None:
    assert diff(network(), network(prefix="other_", shape=("batch", 4, 6, 6))) == []


def test_scale() -> None:
    found = only(network(), network(y=replace(OUT, scale=np.float32(2**-2))))
    assert (found.kind, found.where) == (DifferenceKind.QUANTIZATION, "Conv 'conv'")
    assert found.text == "result: scale 0.125 -> 0.25 (+100 %)"


def test_the_last_bit_of_a_scale() -> None:
    near = np.nextafter(np.float32(2**-3), np.float32(1))
    assert "0.125 -> 0.125000015" in only(network(), network(y=replace(OUT, scale=near))).text


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (per_tensor(DType.UINT8, 2**-3, 12), "zero point 10 -> 12"),
        (per_tensor(DType.UINT8, 2**-3, 10, qmin=10, qmax=255), "range 0..255 -> 10..255"),
        (per_tensor(DType.UINT16, 2**-3, 10), "storage uint8 -> uint16"),
        (per_tensor(DType.INT8, 2**-3, -118), "uint8 -> int8 with all integers moved by -128"),
    ],
)
def test_parameters(params: QuantParams, text: str) -> None:
    found = diff(network(), network(y=params))
    assert {d.kind for d in found} == {DifferenceKind.QUANTIZATION}
    assert f"result: {text}" in {d.text for d in found}


def test_granularity() -> None:
    texts = [d.text for d in diff(network(), network(w=CHANNELS))]
    assert "operand 1 'w': granularity per tensor -> per channel along axis 0" in texts
    assert "operand 1 'w': scale 0.0078125 -> 0.0078125 .. 0.015625" in texts


def test_scales_of_channels() -> None:
    other = replace(CHANNELS, scale=np.array([2**-7, 2**-5], np.float32))
    found = only(network(w=CHANNELS), network(w=other))
    assert found.text == "operand 1 'w': scale in 1 of 2, most at 1: 0.015625 -> 0.03125 (+100 %)"


def test_constants_are_counted_in_lsb() -> None:
    weight = WEIGHT.copy()
    weight[0, 0, 0, 0] += 3
    weight[1, 2, 1, 1] -= 2
    found = only(network(), network(weight=weight))
    assert (found.kind, found.where) == (DifferenceKind.CONSTANT, "Conv 'conv'")
    assert found.text == "operand 1 'w': 2 of 72 elements differ, by at most 3 LSB"


def test_float_constants() -> None:
    def build(number: float) -> Graph:
        x = plain("x", (2,))
        return graph([x], apply("Add", x, const(np.array([1, number], np.float32))))

    assert only(build(2), build(2.5)).text.endswith("1 of 2 elements differ, by at most 0.5")
    assert "by at most 0" in only(build(0.0), build(-0.0)).text
    assert diff(build(float("nan")), build(float("nan"))) == []


def test_bias() -> None:
    found = only(network(), network(bias=(5, 93)))
    assert found.kind is DifferenceKind.BIAS
    assert found.text == "bias 'b': 1 of 2 elements differ, by at most 100 LSB"
    gone = only(network(), network(bias=None))
    assert (gone.kind, gone.text) == (DifferenceKind.BIAS, "bias: constant 'b' -> none")


def test_attributes() -> None:
    found = only(network(), network(attributes=replace(CONV, pads=(1, 1, 0, 0))))
    assert (found.kind, found.text) == (
        DifferenceKind.ATTRIBUTE,
        "pads (1, 1, 1, 1) -> (1, 1, 0, 0)",
    )


def test_operator() -> None:
    found = only(network(), network(unary="Tanh"))
    assert (found.kind, found.text) == (DifferenceKind.OPERATOR, "Sigmoid -> Tanh")
    assert found.where == "Sigmoid 'gate' / Tanh 'gate'"


def test_an_inserted_node_is_one_difference() -> None:
    longer = network(between=lambda v: rq(v, OUT, "again"))
    found = only(network(), longer)
    assert (found.kind, found.a, found.b) == (DifferenceKind.STRUCTURE, "", "again")
    assert "only in the second graph, between Conv 'conv' and Sigmoid 'gate', Mul" in found.text
    assert "only in the first graph" in only(longer, network()).text


def test_an_insertion_does_not_hide_what_differs_behind_it() -> None:
    longer = network(between=lambda v: rq(v, OUT, "again"), unary="Tanh", bias=(5, 0))
    assert sorted(d.kind.value for d in diff(network(), longer)) == [
        "bias", "operator", "structure",
    ]  # fmt: skip


def test_input_type_and_shape() -> None:
    other = network(shape=("n", 4, 8, 6))
    found = only(network(), other)
    assert (found.kind, found.text) == (
        DifferenceKind.INTERFACE,
        "shape [n, 4, 6, 6] -> [n, 4, 8, 6]",
    )
    a, b = (graph([v], apply("Sigmoid", v, type_=typed((2,), S8))) for v in (
        stored("x", U8, (2,)), stored("x", OUT, (2,)),
    ))  # fmt: skip
    assert {d.where for d in diff(a, b)} == {"input 0 ('x')"}
    assert {d.kind for d in diff(a, b)} == {DifferenceKind.QUANTIZATION}


def test_number_of_outputs() -> None:
    x = plain("x", (2,))
    y = apply("Neg", x)
    a, b = graph([x], y), graph([x], y, x)
    assert only(a, b).text == "number of outputs 1 -> 2"


def test_swapped_outputs() -> None:
    def build(swap: bool) -> Graph:
        x = plain("x", (2,))
        pair = (apply("Neg", x), apply("Abs", x))
        return graph([x], *(pair[::-1] if swap else pair))

    found = diff(build(False), build(True))
    assert found
    assert {d.kind for d in found} <= {DifferenceKind.INTERFACE, DifferenceKind.OPERATOR}


def test_swapped_operands() -> None:
    def build(swap: bool) -> Graph:
        x = plain("x", (2,))
        pair = (apply("Neg", x, name="neg"), x)
        return graph([x], apply("Sub", *(pair[::-1] if swap else pair), name="sub"))

    assert any("operand 0" in d.text for d in diff(build(False), build(True)))


def test_a_float_result() -> None:
    def build(params: QuantParams | None) -> Graph:
        x = stored("x", U8, (2,))
        return graph([x], apply("Sigmoid", x, type_=typed((2,), params)))

    found = only(build(OUT), build(None))
    assert "quantized (uint8, scale 0.125, zero point 10) -> not quantized (float32)" in found.text


def test_raw_and_canonical() -> None:
    a, b = network(), network()
    b.canonical = True
    assert only(a, b).text == "one is raw, the other canonical"


def chain(length: int, *, changed: int = -1, inserted: int = -1) -> Graph:
    """A long row of equal nodes that all read the input as well."""
    x = stored("x", U8, (1, 4))
    value = x
    for index in range(length):
        params = OUT if index == changed else S8
        value = apply("Add", value, x, type_=typed((1, 4), params), name=f"add{index}")
        if index == inserted:
            value = rq(value, OUT, "inserted")
        value = apply("Mul", value, x, type_=typed((1, 4), U8), name=f"mul{index}")
    return graph([x], value)


def test_repeated_blocks_are_told_apart() -> None:
    found = diff(chain(30), chain(30, changed=17))
    assert {d.a for d in found} == {"add17"}
    assert only(chain(30), chain(30, inserted=11)).text == (
        "only in the second graph, between Add 'add11' and Mul 'mul11'"
    )


def test_a_missing_block() -> None:
    found = diff(chain(30), chain(29))
    assert [d.kind for d in found] == [DifferenceKind.STRUCTURE, DifferenceKind.STRUCTURE]


def test_two_changes_far_apart() -> None:
    found = diff(chain(30), chain(30, changed=3, inserted=25))
    assert {d.a for d in found} == {"add3", ""}


def test_large_graphs_take_linear_time() -> None:
    def seconds(length: int) -> float:
        a, b = chain(length), chain(length, inserted=length // 2)
        start = time.perf_counter()
        assert len(diff(a, b)) == 1
        return time.perf_counter() - start

    seconds(200)
    assert seconds(4000) < 8 * 4 * max(seconds(1000), 0.02)


def test_nodes_of_one_graph_only_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long row of nodes that is gone, each with a reader: no reader walks the whole row."""

    def build(length: int, *, row: bool) -> Graph:
        x = stored("x", U8, (1, 4))
        value, readers = x, list[Value]()
        for index in range(length):
            if row:
                value = apply("Sigmoid", value, type_=typed((1, 4), U8), name=f"row{index}")
            readers.append(apply("Add", value, x, type_=typed((1, 4), U8), name=f"add{index}"))
        type_ = typed((1, 4 * length), U8)
        joined = apply("Concat", *readers, type_=type_, attributes=AxisAttrs(1), name="joined")
        return graph([x], joined)

    def steps(length: int) -> int:
        count = 0

        def counted(node: Node) -> Value | None:
            nonlocal count
            count += 1
            return main_operand(node)

        monkeypatch.setattr(diff_module, "main_operand", counted)
        found = diff(build(length, row=True), build(length, row=False))
        assert sum(d.kind is DifferenceKind.STRUCTURE for d in found) >= length
        return count

    assert steps(400) <= 2 * steps(200) + 10


def test_every_difference_reads_as_a_sentence() -> None:
    found = only(network(), network(unary="Tanh"))
    assert str(found) == "operator: Sigmoid 'gate' / Tanh 'gate': Sigmoid -> Tanh"


def test_permutations() -> None:
    def build(perm: tuple[int, ...]) -> Graph:
        x = plain("x", (2, 2, 2))
        return graph([x], apply("Transpose", x, attributes=TransposeAttrs(perm)))

    assert only(build((0, 2, 1)), build((1, 0, 2))).text == "perm (0, 2, 1) -> (1, 0, 2)"


def layers(activations: tuple[str, ...]) -> Graph:
    """Returns a chain of MatMuls that are alike, each with an activation behind it or none."""
    x = value = plain("x", ("n", 4))
    for number, activation in enumerate(activations):
        matrix = np.arange(16, dtype=np.float32).reshape(4, 4) + number
        value = apply("MatMul", value, const(matrix, name=f"w{number}"), name=f"product{number}")
        if activation:
            value = apply(activation, value, name=f"activation{number}")
    return graph([x], value)


@pytest.mark.parametrize("count", [3, 6])
def test_in_a_chain_of_equal_layers_one_activation_is_one_difference(count: int) -> None:
    before = ("Relu",) * count
    for place in range(count - 1):
        other = (*before[:place], "Sigmoid", *before[place + 1 :])
        found = only(layers(before), layers(other))
        assert found.kind is DifferenceKind.OPERATOR and found.text == "Relu -> Sigmoid"
        none = (*before[:place], "", *before[place + 1 :])
        found = only(layers(before), layers(none))
        assert found.kind is DifferenceKind.STRUCTURE and "only in the first graph" in found.text
        assert found.a == f"activation{place}"
