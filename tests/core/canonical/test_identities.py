"""Operators that give back what they take are nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical.identities import negated_twice
from qdqbridge.core.graph.graph import Value
from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import QuantType
from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    DepthSpaceAttrs,
    PadAttrs,
    PoolAttrs,
    ResizeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
)
from tests.core.canonical.at_work import alone, settled
from tests.core.graph.graphs import OUT, U8, apply, dq, graph, names, plain, q, stored

SHAPE = (2, 4, 6, 6)
MODES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
ONES, NONE = (1, 1), (0, 0, 0, 0)

NOTHING: dict[str, tuple[str, Attributes]] = {
    "Tile": ("Tile", TileAttrs((1, 1, 1, 1))),
    "Pad": ("Pad", PadAttrs((0,) * 8)),
    "Pad by reflection": ("Pad", PadAttrs((0,) * 8, "reflect")),
    "Slice": ("Slice", SliceAttrs((0, 0), (6, 2**31 - 1), (2, 3), (1, 1))),
    "Split": ("Split", SplitAttrs(1, (4,))),
    "Concat": ("Concat", AxisAttrs(1)),
    "DepthToSpace": ("DepthToSpace", DepthSpaceAttrs(1)),
    "MaxPool": ("MaxPool", PoolAttrs(ONES, ONES, ONES, NONE)),
    **{
        f"Resize {mode} {where}": ("Resize", ResizeAttrs(mode, where, "floor", *sizes))
        for mode in ("nearest", "linear", "cubic")
        for where, sizes in zip(
            MODES, 2 * (((1.0,) * 4, None), (None, SHAPE)), strict=True
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", NOTHING)
def test_of_floats_and_of_stored_values(case: str) -> None:
    op, attributes = NOTHING[case]
    x = plain("x", SHAPE)
    assert names(settled(graph([x], apply(op, x, attributes=attributes)))) == []
    y = stored("y", U8, SHAPE)
    assert names(settled(graph([y], q(apply(op, dq(y), attributes=attributes), U8)))) == []


@pytest.mark.parametrize("case", NOTHING)
def test_another_type_is_a_requantize(case: str) -> None:
    op, attributes = NOTHING[case]
    y = stored("y", U8, SHAPE)
    g = settled(graph([y], q(apply(op, dq(y), attributes=attributes), OUT)))
    assert names(g) == ["requantize"]


SOMETHING: dict[str, tuple[str, Attributes, tuple[int, ...]]] = {
    "Tile": ("Tile", TileAttrs((1, 2, 1, 1)), (2, 8, 6, 6)),
    "Pad": ("Pad", PadAttrs((0, 0, 0, 0, 0, 0, 0, 1)), (2, 4, 6, 7)),
    "Slice": ("Slice", SliceAttrs((1,), (6,), (2,), (1,)), (2, 4, 5, 6)),
    "turned Slice": ("Slice", SliceAttrs((-1,), (-7,), (2,), (-1,)), SHAPE),
    "MaxPool": ("MaxPool", PoolAttrs((3, 3), ONES, ONES, (1, 1, 1, 1)), SHAPE),
    "Resize": (
        "Resize",
        ResizeAttrs("linear", "half_pixel", "floor", (1.0, 1.0, 1.1, 1.1), None),
        SHAPE,
    ),
}


@pytest.mark.parametrize("case", SOMETHING)
def test_what_changes_a_value_stays(case: str) -> None:
    op, attributes, shape = SOMETHING[case]
    x = plain("x", SHAPE)
    y: Value = apply(op, x, attributes=attributes, type_=x.type.with_shape(shape))
    assert names(settled(graph([x], y))) == [op]


def test_results_of_a_mover_of_stored_values_are_dequantized_behind_it() -> None:
    x = stored("x", U8, SHAPE)
    g = settled(graph([x], apply("Tile", x, attributes=TileAttrs((1, 1, 1, 2)),
                                 type_=plain("y", (2, 4, 6, 12)).type)))  # fmt: skip
    assert names(g) == ["Tile", "dequantize"]
    assert g.nodes[0].output.type == QuantType(U8, (2, 4, 6, 12))


def test_a_sign_flips_back_whatever_the_number_is() -> None:
    bits = [0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x3F800000]
    x = plain("x", (8,))
    g = graph([x], apply("Neg", apply("Neg", x)))
    assert alone(g, negated_twice, data={"x": np.array(bits, np.uint32).view(np.float32)}) == []
    assert names(g) == []


def test_the_sign_of_an_odd_number_of_negations_stays() -> None:
    x = plain("x", (8,))
    g = settled(graph([x], apply("Neg", apply("Neg", apply("Neg", x)))))
    assert names(g) == ["Neg"]


def test_a_negation_that_others_read_stays_for_them() -> None:
    x = plain("x", (8,))
    inner = apply("Neg", x)
    g = settled(graph([x], inner, apply("Abs", apply("Neg", inner))))
    assert sorted(names(g)) == ["Abs", "Neg"]


def test_a_negation_that_rounds_stays() -> None:
    x = stored("x", U8, (8,))
    g = settled(graph([x], q(apply("Neg", dq(q(apply("Neg", dq(x)), OUT))), U8)))
    assert names(g) == ["Neg", "Neg"]


def test_a_condition_that_is_negated_twice_is_that_condition(tmp_path: Path) -> None:
    digests: set[str] = set()
    for steps in ("m = Less(x, x)", "a = Less(x, x)  b = Not(a)  m = Not(b)"):
        text = f"""<ir_version: 10, opset_import: ["" : 21]>
        model (float[N, 4] x, float[N, 4] z) => (float[N, 4] y) {{ {steps}  y = Where(m, x, z) }}"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
        g = settled(qb.load(tmp_path / "model.onnx", canonical=False))
        assert sorted(names(g)) == ["Less", "Where"]
        digests.add(g.digest)
    assert len(digests) == 1
