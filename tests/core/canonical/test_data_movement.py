"""Data movers: conversions pass through them, in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import data_movement
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Graph, Node, Value
from qdqbridge.core.graph.operator import NO_ATTRIBUTES, Attributes
from qdqbridge.core.graph.types import QuantParams, TensorType
from qdqbridge.core.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    DepthSpaceAttrs,
    PadAttrs,
    PoolAttrs,
    ReshapeAttrs,
    ResizeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from qdqbridge.core.ops.table import BY_NAME
from tests.core.canonical.at_work import alone, reasons, settled
from tests.core.graph.graphs import (
    OUT,
    S8,
    U8,
    apply,
    const,
    dq,
    graph,
    names,
    plain,
    q,
    quant,
    stored,
    typed,
)

NEAREST = ResizeAttrs("nearest", "asymmetric", "floor", (1.0, 1.0, 2.0, 2.0), None)
MOVERS: list[tuple[str, Attributes, tuple[int, ...]]] = [
    ("Transpose", TransposeAttrs((0, 2, 3, 1)), (1, 4, 4, 4)),
    ("Reshape", ReshapeAttrs((4, -1)), (4, 16)),
    ("Squeeze", AxesAttrs((0,)), (4, 4, 4)),
    ("Unsqueeze", AxesAttrs((2,)), (1, 4, 1, 4, 4)),
    ("Flatten", AxisAttrs(1), (1, 64)),
    ("Slice", SliceAttrs((1,), (3,), (2,), (1,)), (1, 4, 2, 4)),
    ("MaxPool", PoolAttrs((2, 2), (2, 2), (1, 1), (0, 0, 0, 0)), (1, 4, 2, 2)),
    ("DepthToSpace", DepthSpaceAttrs(2), (1, 1, 8, 8)),
    ("SpaceToDepth", DepthSpaceAttrs(2), (1, 16, 2, 2)),
    ("Tile", TileAttrs((1, 1, 2, 1)), (1, 4, 8, 4)),
    ("Pad", PadAttrs((0, 0, 1, 1, 0, 0, 1, 1)), (1, 4, 6, 6)),
    ("Resize", NEAREST, (1, 4, 8, 8)),
]
IDS = [name for name, _, _ in MOVERS]


@pytest.mark.idiom("G3")
@pytest.mark.parametrize(("op", "attributes", "shape"), MOVERS, ids=IDS)
def test_dequantize_passes_through(op: str, attributes: Attributes, shape: tuple[int, ...]) -> None:
    x = stored("x", U8, (1, 4, 4, 4))
    g = graph([x], apply(op, dq(x), attributes=attributes, type_=typed(shape)))
    assert alone(g, data_movement.dequantize_through_data_movement) == []
    assert names(g) == [op, "dequantize"]
    assert g.nodes[0].output.type == typed(shape, U8)
    settled(g)


@pytest.mark.idiom("G4")
@pytest.mark.parametrize(("op", "attributes", "shape"), MOVERS, ids=IDS)
def test_quantize_passes_through(op: str, attributes: Attributes, shape: tuple[int, ...]) -> None:
    x = plain("x", (1, 4, 4, 4))
    g = graph([x], q(apply(op, x, attributes=attributes, type_=typed(shape)), U8))
    assert alone(g, data_movement.quantize_through_data_movement) == []
    assert names(g) == ["quantize", op]
    settled(g)


@pytest.mark.idiom("G1")
@pytest.mark.parametrize(("op", "attributes", "shape"), MOVERS, ids=IDS)
def test_a_mover_between_a_pair_works_on_integers(
    op: str, attributes: Attributes, shape: tuple[int, ...]
) -> None:
    x = stored("x", U8, (1, 4, 4, 4))
    g = graph([x], q(apply(op, dq(x), attributes=attributes, type_=typed(shape)), U8))
    assert names(settled(g)) == [op]
    x = stored("x", U8, (1, 4, 4, 4))
    other = graph([x], q(apply(op, dq(x), attributes=attributes, type_=typed(shape)), OUT))
    assert names(settled(other)) == [op, "requantize"]


def split(x: Value, *params: QuantParams | None) -> list[Value]:
    outputs = [Value(typed((1, 2), p), f"part{i}") for i, p in enumerate(params)]
    Node(BY_NAME["Split"], SplitAttrs(1, (2,) * len(params)), [x], outputs)
    return outputs


def test_every_part_of_a_split_is_dequantized() -> None:
    x = stored("x", U8, (1, 4))
    a, b = split(dq(x), None, None)
    g = graph([x], q(a, U8), q(b, OUT))
    assert names(settled(g)) == ["Split", "requantize"]


def test_every_part_of_a_split_is_quantized_alike() -> None:
    x = plain("x", (1, 4))
    a, b = split(x, None, None)
    g = graph([x], q(a, U8), q(b, U8))
    assert names(settled(g)) == ["quantize", "Split"]


# ---- per channel ------------------------------------------------------------------------------

PER_CHANNEL = quant(
    DType.INT8, np.array([1, 0.5, 0.25, 2], np.float32), np.array([0, 1, 2, 3]), axis=1
)


@pytest.mark.idiom("G9")
@pytest.mark.parametrize(
    ("op", "attributes", "shape", "axis"),
    [
        ("Transpose", TransposeAttrs((0, 2, 1)), (2, 3, 4), 2),
        ("Unsqueeze", AxesAttrs((0, 2)), (1, 2, 1, 4, 3), 3),
        ("Reshape", ReshapeAttrs((2, 4, 3, 1)), (2, 4, 3, 1), 1),
        ("Reshape", ReshapeAttrs((1, 2, 4, 3)), (1, 2, 4, 3), 2),
        ("Flatten", AxisAttrs(2), (8, 3), None),
        ("Reshape", ReshapeAttrs((8, 3)), (8, 3), None),
        ("Reshape", ReshapeAttrs((2, 12)), (2, 12), None),
        ("Slice", SliceAttrs((0,), (2,), (1,), (1,)), (2, 2, 3), None),
    ],
    ids=str,
)
def test_channels_move_along(
    op: str, attributes: Attributes, shape: tuple[int, ...], axis: int | None
) -> None:
    x = stored("x", PER_CHANNEL, (2, 4, 3))
    g = graph([x], apply(op, dq(x), attributes=attributes, type_=typed(shape), name="mover"))
    refused = alone(g, data_movement.dequantize_through_data_movement)
    if axis is None:
        assert refused == [f"{op} mixes the channels of a per-channel quantized tensor"]
        assert names(g) == ["dequantize", op]
        return
    assert names(g) == [op, "dequantize"]
    assert g.nodes[0].output.type == typed(shape, PER_CHANNEL.with_axis(axis))


def test_a_squeezed_axis_of_channels_is_lost() -> None:
    one = quant(DType.INT8, np.array([0.5], np.float32), np.int32(0), axis=1)
    x = stored("x", one, (2, 1, 3))
    y = apply("Squeeze", dq(x), attributes=AxesAttrs((1,)), type_=typed((2, 3)))
    assert len(alone(graph([x], y), data_movement.dequantize_through_data_movement)) == 1


def test_quantize_per_channel_stays_behind_the_mover() -> None:
    x = plain("x", (2, 3, 4))
    moved = apply("Transpose", x, attributes=TransposeAttrs((0, 2, 1)), type_=typed((2, 4, 3)))
    g = graph([x], q(moved, PER_CHANNEL))
    assert alone(g, data_movement.quantize_through_data_movement) == []
    assert names(g) == ["Transpose", "quantize"]


def test_blocks_are_transposed_with_their_scales() -> None:
    params = quant(
        DType.INT4, np.array([[1, 0.5], [2, 4]], np.float32), np.zeros((2, 2)), axis=1, block_size=2
    )
    w = const(np.array([[1, 2, 3, 4], [5, 6, 7, -8]]).astype(DType.INT4.numpy), params)
    x = plain("x", (1, 4))
    t = apply("Transpose", dq(w), attributes=TransposeAttrs((1, 0)), type_=typed((4, 2)))
    g = settled(graph([x], apply("MatMul", x, t, type_=typed((1, 2)))))
    assert names(g) == ["Dense"]
    kept = g.nodes[0].operand(1).quant
    assert kept is not None
    assert kept.params == params


# ---- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", ["float", "output"])
def test_a_mover_that_is_read_otherwise_stays_float(readers: str) -> None:
    x = plain("x", (2, 3))
    moved = apply("Transpose", x, attributes=TransposeAttrs((1, 0)), type_=typed((3, 2)))
    more = {"float": apply("Exp", moved), "output": moved}[readers]
    g = graph([x], q(moved, U8), more)
    refused = alone(g, data_movement.quantize_through_data_movement)
    assert set(refused) == {"the result of Transpose is also read as float"}
    assert names(g)[0] == "Transpose"
    settled(g)


@pytest.mark.parametrize("order", ["abcd", "acbd", "cdab"])
def test_equal_movers_have_one_form_whatever_stands_first(order: str) -> None:
    """A quantize behind the first of two had moved before the second came, or both stayed."""
    x, made = plain("x", (2, 3)), dict[str, Any]()
    for each in order:
        if each in "ac":
            perm = TransposeAttrs((1, 0))
            made[each] = apply("Transpose", x, attributes=perm, type_=typed((3, 2)))
        else:
            made[each] = q(*((made["a"], U8) if each == "b" else (made["c"], OUT)))
    g = settled(graph([x], made["b"], made["d"]))
    assert names(g) == ["quantize", "Transpose"] * 2


@pytest.mark.parametrize(("value", "fits"), [(0.0, True), (0.25, True), (0.01, False)], ids=str)
def test_pad_values_must_be_representable(value: float, fits: bool) -> None:
    x = stored("x", S8, (2,))
    y = apply("Pad", dq(x), attributes=PadAttrs((1, 1), value=value), type_=typed((4,)))
    g = graph([x], y)
    refused = alone(g, data_movement.dequantize_through_data_movement)
    assert names(g) == (["Pad", "dequantize"] if fits else ["dequantize", "Pad"])
    assert refused == (
        [] if fits else [f"the pad value {value} is not representable in the input's quantization"]
    )


@pytest.mark.parametrize("value", [0.0, 0.3, -1000.0], ids=str)
def test_pad_values_in_front_of_a_quantize_are_rounded(value: float) -> None:
    x = plain("x", (2,))
    y = apply("Pad", x, attributes=PadAttrs((1, 1), value=value), type_=typed((4,)))
    assert names(settled(graph([x], q(y, U8)))) == ["quantize", "Pad"]


def test_an_unrepresentable_pad_between_a_pair_is_an_island_with_a_reason() -> None:
    x = stored("x", S8, (2,))
    y = apply("Pad", dq(x), attributes=PadAttrs((1, 1), value=0.01), type_=typed((4,)), name="pad")
    g = settled(graph([x], apply("Exp", y)))
    assert names(g) == ["dequantize", "Pad", "Exp"]
    assert "not representable" in reasons(g)["dequantize-through-data-movement"]


@pytest.mark.idiom("G5")
def test_a_pad_has_the_value_that_its_result_stores() -> None:
    """A result that clamps it would lose that in a file, where a Pad clamps nothing."""
    params = quant(DType.INT8, 0.1, qmin=0, qmax=127)
    x = stored("x", params, (3,))
    pad = PadAttrs((1, 0), "constant", -0.3)
    y = apply("Pad", x, attributes=pad, type_=typed((4,), params))
    g = graph([x], y)
    alone(g, data_movement.pad_value_as_stored)
    (node,) = g.nodes
    assert isinstance(node.attributes, PadAttrs)
    assert node.attributes.value == 0.0
    settled(g)


def test_linear_resize_is_no_mover() -> None:
    linear = ResizeAttrs("linear", "half_pixel", "round_prefer_floor", (1.0, 1.0, 2.0, 2.0), None)
    x = stored("x", U8, (1, 1, 2, 2))
    g = graph([x], apply("Resize", dq(x), attributes=linear, type_=typed((1, 1, 4, 4))))
    alone(g, data_movement.dequantize_through_data_movement)
    assert names(g) == ["dequantize", "Resize"]


def test_movers_of_indices_and_strings_are_not_touched() -> None:
    x = plain("x", (2, 3), DType.INT64)
    type_ = TensorType(DType.INT64, (3, 2))
    g = graph([x], apply("Transpose", x, attributes=TransposeAttrs((1, 0)), type_=type_))
    before = g.text()
    assert settled(g).text().splitlines()[1:] == before.splitlines()[1:]


def test_shared_dequantize_is_kept_for_the_others() -> None:
    x = stored("x", U8, (2, 3))
    real = dq(x)
    t = apply("Transpose", real, attributes=TransposeAttrs((1, 0)), type_=typed((3, 2)))
    g = settled(graph([x], q(t, U8), apply("Exp", real), real))
    assert names(g) == ["Transpose", "dequantize", "Exp"]


def test_gather_from_a_quantized_table() -> None:
    table = const(np.arange(12, dtype=np.uint8).reshape(4, 3), U8)
    index = const(np.array([2, 0]), name="index")
    x = stored("x", U8, (2, 3))
    rows = apply("Gather", dq(table), index, attributes=AxisAttrs(0), type_=typed((2, 3)))
    g: Graph = settled(graph([x], q(apply("Add", dq(x), rows), OUT)))
    assert names(g) == ["Add"]
    constant = g.nodes[0].operand(1).constant
    assert constant is not None
    assert constant.numpy().tolist() == [[6, 7, 8], [0, 1, 2]]
    assert g.nodes[0].attributes == NO_ATTRIBUTES


def test_a_constant_is_moved_whose_extents_were_open_when_its_mover_was_read() -> None:
    moved = [
        ("Transpose(const float32[1,2] [1 2]) {perm=[1 0]}: float32[m,n]", (2, 1)),
        ("Tile(const float32[1,2] [1 2]) {repeats=[2 1]}: float32[m,n]", (2, 2)),
    ]
    for node, shape in moved:
        text = f"qnn-raw 1\ninput %x: float32[1]\n%c = {node}\n%y = Neg(%x): float32[1]\n"
        found = settled(qb.parse(f"{text}output %c\noutput %y\n"))
        assert [n.op.name for n in found.nodes] == ["Neg"]
        assert found.outputs[0].type.shape == shape


@pytest.mark.parametrize("end", [-(2**31 - 1), -(2**63)])
def test_a_slice_backwards_to_the_front_has_one_end(end: int) -> None:
    """Two rules write it: did they write different numbers, reading would not end."""
    text = f"Slice(%x) {{starts=[2], ends=[{end}], axes=[0], steps=[-1]}}: float32[3]"
    graph = qb.parse(f"qnn-raw 1\ninput %x: float32[4]\n%y = {text}\noutput %y\n")
    (node,) = settled(graph).nodes
    assert node.attributes == SliceAttrs((2,), (-(2**63),), (0,), (-1,))
