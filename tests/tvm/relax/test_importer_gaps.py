"""Opaque operators that TVM's importer would compute as something else are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.types import static_shape
from qdqbridge.errors import UnsupportedTargetError
from tests.onnx_models import Builder, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

pytestmark = pytest.mark.relax
Make = Callable[[Builder, bool], None]
"""Adds a node and its outputs, in the form that TVM gets wrong or in one that it gets right."""


def resize(b: Builder, wrong: bool) -> None:
    scales = b.init(np.array([1, 1, 0.5, 0.5], np.float32))
    x = b.input("x", [1, 1, 4, 4])
    b.output(b.op("Resize", x, "", scales, mode="linear", antialias=int(wrong)), [1, 1, 2, 2])


def is_inf(b: Builder, wrong: bool) -> None:
    found = b.op("IsInf", b.input("x", [3]), detect_negative=int(not wrong))
    b.output(found, [3], TensorProto.BOOL)


def layer_normalization(b: Builder, wrong: bool) -> None:
    x, scale = b.input("x", [2, 4]), b.init(np.ones(4, np.float32))
    y = b.op("LayerNormalization", x, scale, outputs=2 if wrong else 1)
    b.output(y, [2, 4])
    if wrong:
        b.output(f"{y}:1", [2, 1])


def dropout(b: Builder, wrong: bool) -> None:
    training = b.init(np.array(wrong))
    b.output(b.op("Dropout", b.input("x", [2, 4]), b.init(np.float32(0.5)), training), [2, 4])


def unique(b: Builder, wrong: bool) -> None:
    y = b.op("Unique", b.input("x", [2, 2] if wrong else [4]), outputs=4)
    b.output(f"{y}:2", ["n"], TensorProto.INT64)


def reduction(b: Builder, wrong: bool) -> None:
    x, axes = b.input("x", [2, 4]), [] if wrong else [b.init(np.array([1]))]
    b.output(b.op("ReduceL1", x, *axes, noop_with_empty_axes=1), None)


def suppression(b: Builder, wrong: bool) -> None:
    limits = [b.init(np.array([3])), b.init(np.array([0.5], np.float32))]
    score = b.init(np.array([0.4 if wrong else 0], np.float32))
    boxes, scores = b.input("x", [1, 6, 4]), b.input("scores", [1, 1, 6])
    chosen = b.op("NonMaxSuppression", boxes, scores, *limits, score)
    b.output(chosen, ["n", 3], TensorProto.INT64)


def shrink(b: Builder, wrong: bool) -> None:
    """Below 0, ``lambd`` lets both of ONNX's cases hold of the numbers around 0."""
    lambd = -1.0 if wrong else 0.5
    b.output(b.op("Shrink", b.input("x", [64]), lambd=lambd, bias=3.0), [64])


def of_nothing(b: Builder, wrong: bool) -> None:
    x, axes = b.input("x", [2, 0 if wrong else 4, 3]), b.init(np.array([1]))
    b.output(b.op("ReduceMax", x, axes), [2, 1, 3])


def mean_of_nothing(b: Builder, wrong: bool) -> None:
    x, axes = b.input("x", [2, 0 if wrong else 4, 3]), b.init(np.array([1]))
    b.output(b.op("ReduceMean", x, axes), [2, 1, 3])


def scattered_behind(b: Builder, wrong: bool) -> None:
    """Indices with more columns than the data write behind each of its rows."""
    x, extents = b.input("x", [3, 4]), [2, 5 if wrong else 4]
    indices = b.init(np.zeros(extents, np.int64))
    b.output(b.op("ScatterElements", x, indices, b.init(np.ones(extents, np.float32))), [3, 4])


def graph_of(make: Make, wrong: bool) -> Graph:
    b = Builder(18 if make in (resize, reduction, *REDUCED) else 17)
    make(b, wrong)
    return canonical(b.model())


REDUCED = [of_nothing, mean_of_nothing]
OURS = [resize, is_inf, layer_normalization, reduction, shrink, suppression, *REDUCED]
REFUSED = [dropout, unique, scattered_behind]
"""What the importer gets wrong and is composed or defined here, and what nobody else knows."""


@pytest.mark.parametrize("make", REFUSED)
def test_what_the_importer_gets_wrong_is_refused(make: Make) -> None:
    with pytest.raises(UnsupportedTargetError, match="would compute it wrongly"):
        qb.compile(graph_of(make, True))


@pytest.mark.parametrize("make", OURS)
def test_what_the_importer_gets_wrong_is_right(make: Make) -> None:
    check(graph_of(make, True))


@pytest.mark.parametrize("make", [*OURS, *REFUSED])
def test_what_the_importer_gets_right_is_right(make: Make) -> None:
    check(graph_of(make, False))


@pytest.mark.parametrize("rows", [0, 2])
def test_a_reshape_of_nothing_by_a_shape_of_run_time(rows: int) -> None:
    """The extent that is left is a quotient, and of 0 the process ended."""
    b = Builder(14)
    x, shape = b.input("x", ["n", 3, 4]), b.input("shape", [3], TensorProto.INT64)
    b.output(b.op("Reshape", x, shape, allowzero=1), None)
    given = {"x": np.ones((rows, 3, 4), np.float32), "shape": np.array([3, 4, rows])}
    (found,) = qb.compile(canonical(b.model())).run(given).values()
    assert found.shape == (3, 4, rows)


@pytest.mark.parametrize(
    ("shape", "axis"), [((0, 3, 5), 1), ((2, 0, 5), 1), ((2, 3, 0), 2), ((0, 4), 0)]
)
def test_a_flatten_of_nothing(shape: tuple[int, ...], axis: int) -> None:
    b = Builder(17)
    b.output(b.op("Flatten", b.input("x", list(shape)), axis=axis), None)
    check(canonical(b.model()))


def test_an_operand_of_no_rows() -> None:
    """TVM's importer takes an extent of 0 for an open one."""
    b = Builder(25)
    y = b.op("Mod", b.init(np.zeros((0, 1), np.float32)), b.input("x", [0, 1]), fmod=1)
    b.output(y, None)
    check(canonical(b.model()))


def test_a_squeeze_of_whatever_is_1_is_refused() -> None:
    b = Builder(17)
    b.output(b.op("Squeeze", b.input("x", ["n", 3, "m"])), None)
    with pytest.raises(UnsupportedTargetError, match="the run tells which extents are 1"):
        qb.compile(canonical(b.model()))


def test_an_open_vector_of_extents_is_refused() -> None:
    b = Builder(17)
    b.output(b.op("ConstantOfShape", b.input("shape", ["rank"], TensorProto.INT64)), None)
    with pytest.raises(UnsupportedTargetError):
        qb.compile(canonical(b.model()))


def test_training_statistics_weigh_the_old_ones() -> None:
    """TVM's momentum is the weight of the new ones; every result is the interpreter's."""
    b = Builder(17)
    x = b.qdq(b.input("x", [2, 3, 4, 4]), 0.05, 128)
    factors = [
        b.init(np.array(a, np.float32)) for a in ([1, 2, 3], [0, 1, 2], [0, 0, 1], [1, 2, 1])
    ]
    for momentum in (None, 0.3):
        y = b.op("BatchNormalization", x, *factors, outputs=3, training_mode=1, momentum=momentum)
        for i in range(3):
            b.output(f"{y}:{i}" if i else y)
    check(canonical(b.model()))


def test_old_top_k_and_one_hot() -> None:
    """TVM reads TopK of opset 10 as that of opset 1, and gives OneHot as float64."""
    b = Builder(10)
    y = b.op("TopK", b.input("x", [2, 5]), b.init(np.array([3])), outputs=2)
    b.output(y, [2, 3])
    b.output(f"{y}:1", [2, 3], TensorProto.INT64)
    depth, values = b.init(np.array(4)), b.init(np.array([0, 1], np.float32))
    indices = b.op("Cast", b.op("Abs", y), to=TensorProto.INT64)
    b.output(b.op("OneHot", indices, depth, values), [2, 3, 4])
    check(canonical(b.model()))


def test_scatter_of_extremes() -> None:
    """TVM knows them from version 18 on; a graph says 16, which means the same."""
    b = Builder(18)
    indices, updates = b.init(np.array([[1], [0]])), b.init(np.ones((2, 3), np.float32))
    y = b.op("ScatterND", b.input("x", [2, 3]), indices, updates, reduction="max")
    b.output(y, [2, 3])
    check(canonical(b.model()))


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatter_into_open_extents(reduction: str) -> None:
    """TVM writes wherever indices say, so they are bound to the extents that the run has."""
    b = Builder(18)
    x, updates = b.input("x", ["n", "m", 2]), b.input("updates", ["l", 2])
    indices = b.input("indices", ["k", 2], TensorProto.INT64)
    b.output(b.op("ScatterND", x, indices, updates, reduction=reduction), None)
    graph, rng = canonical(b.model()), np.random.default_rng(0)
    executable = qb.compile(graph, UNOPTIMIZED)
    given = {
        "x": rng.normal(size=(3, 4, 2)).astype(np.float32),
        "updates": rng.normal(size=(3, 2)).astype(np.float32),
        "indices": np.array([[0, -1], [-3, 1], [2, 2]]),
    }
    found, wanted = executable.run(given), qb.evaluate(graph, given)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(qb.QdqBridgeError):
        executable.run(given | {"updates": np.zeros((4, 2), np.float32)})


def check(graph: Graph) -> None:
    """Compares TVM with the interpreter on random inputs."""
    rng = np.random.default_rng(0)
    shapes = {value.name: static_shape(value.type.shape) for value in graph.inputs}
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    found, wanted = qb.compile(graph).run(given), qb.evaluate(graph, given)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        # Floats: sums and exponentials of TVM's own.
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
