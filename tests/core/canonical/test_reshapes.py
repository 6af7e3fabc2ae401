"""Changes of shape and of layout: one form of many forms, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from qdqbridge.core.ops.attributes import (
    AxisAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)
from tests.core.canonical.at_work import settled
from tests.core.canonical.written_out import Make, halves, made, reshaped, vector
from tests.onnx_models import Builder, canonical, load, ops

# ---- changes of shape --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "targets", "form"),
    [
        ([2, 3, 4], [(2, 12), (0, -1), (-1, 12), (2, -1)], AxisAttrs(1)),
        ([2, 3, 4], [(2, 3, 2, 2), (0, 0, 2, -1), (-1, 3, 2, 2)], ReshapeAttrs((0, 0, 2, -1))),
        ([2, 3, 4], [(6, 4), (-1, 4), (6, -1)], ReshapeAttrs((-1, 4))),
        ([2, 12], [(2, 3, 4), (0, 3, 4), (-1, 3, 4), (0, -1, 4)], ReshapeAttrs((0, 3, -1))),
        (["n", 3, 4], [(0, 12), (-1, 12), (0, -1)], AxisAttrs(1)),
        (["n", 3, 4], [(0, 4, 3), (-1, 4, 3)], ReshapeAttrs((0, 4, -1))),
        (["n", 3, 4], [(-1, 4)], ReshapeAttrs((-1, 4))),
        ([2, 3], [(1, 2, 3), (-1, 2, 3)], ReshapeAttrs((-1, 2, 3))),
    ],
)
def test_targets_of_a_reshape(shape: list[Any], targets: list[Any], form: Any) -> None:
    found = [made(reshaped(*target), shape) for target in targets]
    assert len({g.digest for g in found}) == 1
    assert found[0].nodes[0].attributes == form


def test_flattens_along_other_axes_are_reshapes() -> None:
    for axis, target in ((2, (6, 20)), (3, (24, 5)), (0, (1, 120))):
        flat = made(lambda b, x, a=axis: b.op("Flatten", x, axis=a), [2, 3, 4, 5])
        assert flat.digest == made(reshaped(*target), [2, 3, 4, 5]).digest
        assert ops(flat) == ["Reshape"]


def test_a_target_of_no_elements_makes_a_scalar() -> None:
    """The run has nothing to tell of it; the scalars of a Loop have a rank too."""
    b = Builder(13)
    target = b.input("target", [0], TensorProto.INT64)
    b.output(b.op("Reshape", b.input("x", [], TensorProto.INT64), target), None, TensorProto.INT64)
    assert canonical(b.model()).nodes == []

    b = Builder(13)
    state, going = helper.make_tensor_value_info("s", 1, None), TensorProto.BOOL
    names = (("i", TensorProto.INT64), ("c", going))
    inputs = [helper.make_tensor_value_info(name, kind, []) for name, kind in names]
    results = [
        helper.make_tensor_value_info("c2", going, []),
        helper.make_tensor_value_info("s2", 1, None),
    ]
    nodes = [
        helper.make_node("Add", ["s", "s"], ["s2"]),
        helper.make_node("Identity", ["c"], ["c2"]),
    ]
    body = helper.make_graph(nodes, "body", [*inputs, state], results)
    given = [b.input("n", [], TensorProto.INT64), b.init(np.array(True)), b.init(np.float32(1))]
    made = b.op("Loop", *given, body=body)
    b.output(b.op("Reshape", made, b.init(np.zeros(0, np.int64))), None)
    (loop,) = canonical(b.model()).nodes
    assert loop.output.type.shape == ()


def test_an_empty_tensor_keeps_its_target() -> None:
    found = made(lambda b, x: b.op("Relu", reshaped(0, 4)(b, x)), [0, 2, 2])
    assert ops(found) == ["Reshape", "Relu"]


@pytest.mark.parametrize(
    "make",
    [
        reshaped(2, 3),
        reshaped(0, -1),
        lambda b, x: b.op("Flatten", x),
        lambda b, x: b.op("Transpose", x, perm=[0, 1]),
        lambda b, x: b.op("Tile", x, b.init(vector(1, 1))),
        lambda b, x: b.op("Expand", x, b.init(vector(1, 3))),
        lambda b, x: b.op("Transpose", b.op("Transpose", x, perm=[1, 0]), perm=[1, 0]),
        lambda b, x: reshaped(2, 3)(b, reshaped(3, 2)(b, x)),
    ],
)
def test_what_changes_nothing_goes(make: Make) -> None:
    assert ops(made(lambda b, x: b.op("Relu", make(b, x)), [2, 3])) == ["Relu"]
    assert ops(made(make, [2, 3])) == []


def test_movers_in_a_row_are_one() -> None:
    permuted = made(
        lambda b, x: b.op("Transpose", b.op("Transpose", x, perm=[0, 2, 1]), perm=[2, 0, 1]),
        [2, 3, 4],
    )
    assert [n.attributes for n in permuted.nodes] == [TransposeAttrs((1, 0, 2))]
    one = made(lambda b, x: b.op("Unsqueeze", x, b.init(vector(0, 2))), [2, 3])
    two = made(
        lambda b, x: b.op("Unsqueeze", b.op("Unsqueeze", x, b.init(vector(1))), b.init(vector(0))),
        [2, 3],
    )
    assert one.digest == two.digest
    back = made(
        lambda b, x: b.op("Squeeze", b.op("Squeeze", x, b.init(vector(2))), b.init(vector(0))),
        [1, 3, 1],
    )
    assert (
        back.digest == made(lambda b, x: b.op("Squeeze", x, b.init(vector(0, 2))), [1, 3, 1]).digest
    )


def test_a_mover_that_is_read_elsewhere_stays() -> None:
    b = Builder(13)
    first = b.op("Transpose", b.input("x", [2, 3, 4]), perm=[0, 2, 1])
    b.output(b.op("Transpose", first, perm=[1, 0, 2]), None)
    b.output(first, None)
    found = settled(load(b.model()))
    assert [n.attributes for n in found.nodes] == [
        TransposeAttrs((2, 0, 1)), TransposeAttrs((0, 2, 1)),
    ]  # fmt: skip


# ---- layouts -----------------------------------------------------------------------------------

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def island(inner: Make) -> Make:
    def make(b: Builder, x: str) -> str:
        wide = inner(b, b.op("Transpose", b.op("Exp", x), perm=LAST))
        return b.op("Neg", b.op("Transpose", wide, perm=FIRST))

    return make


@pytest.mark.parametrize(
    ("inner", "wanted"),
    [
        (lambda b, y: b.op("Relu", y), ["Relu"]),
        (lambda b, y: b.op("Add", y, b.init(halves(5))), ["Add"]),
        (lambda b, y: b.op("Mul", b.op("Add", y, b.init(np.float32(2))), y), ["Add", "Mul"]),
        (lambda b, y: b.op("Concat", y, b.op("Relu", y), axis=3), ["Relu", "Concat"]),
        (lambda b, y: b.op("Softmax", y, axis=-1), ["Softmax"]),
        (lambda b, y: b.op("ReduceMax", y, axes=[1, 2]), ["GlobalMaxPool"]),
        (lambda b, y: b.op("Pad", y, b.init(vector(0, 1, 2, 0, 0, 0, 0, 3))), ["Pad"]),
        (lambda b, y: b.qdq(y, 0.25, 3), ["quantize", "dequantize"]),
    ],
)
def test_islands_of_a_layout(inner: Make, wanted: list[str]) -> None:
    found = made(island(inner), [2, 5, 3, 4])
    assert ops(found) == ["Exp", *wanted, "Neg"]


@pytest.mark.parametrize(
    "inner",
    [
        lambda b, y: b.op("ReduceMean", y, axes=[1, 2], keepdims=0),
        lambda b, y: b.op("MatMul", y, b.init(halves(5, 5))),
        lambda b, y: b.op("Add", y, b.op("Transpose", b.op("Exp", y), perm=FIRST)),
    ],
)
def test_other_islands_stay(inner: Make) -> None:
    def make(b: Builder, x: str) -> str:
        wide = inner(b, b.op("Transpose", b.op("Exp", x), perm=LAST))
        perm = FIRST if len(b.nodes) > 2 and b.nodes[-1].op_type != "ReduceMean" else [1, 0]
        return b.op("Neg", b.op("Transpose", wide, perm=perm))

    assert "Transpose" in ops(made(make, [5, 5, 5, 5]))


def test_an_island_that_is_read_elsewhere_stays() -> None:
    b = Builder(13)
    wide = b.op("Relu", b.op("Transpose", b.input("x", [1, 2, 3, 4]), perm=LAST))
    b.output(b.op("Transpose", wide, perm=FIRST), None)
    b.output(wide, None)
    assert ops(settled(load(b.model()))).count("Transpose") == 2
