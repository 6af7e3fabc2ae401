"""Gathering and scattering on TVM where extents are open, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import InputDataError, QdqBridgeError, UnsupportedTargetError
from qdqbridge.tvm.relax.emit.broadcasting import INDEXED_EXTENT
from qdqbridge.tvm.relax.executable import compile_relax
from tests.onnx_models import Array, Builder, canonical
from tests.tvm.relax.targets import UNOPTIMIZED

pytestmark = pytest.mark.relax

Shape = tuple[Any, ...]
_CASES: list[tuple[str, dict[str, Any], list[Shape]]] = [
    ("GatherElements", {"axis": 1}, [("n", 4), ("m", "k")]),
    ("GatherElements", {"axis": -1}, [(3, "c"), (2, 5)]),
    ("GatherElements", {}, [(0, 3), (0, 2)]),
    ("ScatterElements", {}, [("n", 3), (0, 3), (0, 3)]),
    ("ScatterElements", {"axis": 0, "reduction": "add"}, [("n", "c"), ("m", "k"), ("m", "k")]),
    ("ScatterElements", {"axis": 1, "reduction": "max"}, [(3, "c"), (2, 2), (2, 2)]),
    ("GatherND", {}, [("n", "c", 2), ("m", 2)]),
    ("GatherND", {"batch_dims": 1}, [("n", "c", 2), ("n", "k", 1)]),
    ("GatherND", {"batch_dims": 1}, [("n", "c"), ("b", 1)]),
    ("GatherND", {}, [("n", "c"), (0, 2)]),
    ("ScatterND", {"reduction": "add"}, [("n", "c"), ("m", 1), ("m", "c")]),
]
"""Operators, attributes, and the shapes of data, indices and updates."""
_EXTENTS = [
    dict(zip("ncmkb", extents, strict=True))
    for extents in (
        (4, 4, 3, 2, 4), (3, 4, 3, 4, 3), (2, 3, 2, 1, 2), (2, 3, 4, 5, 3), (0, 3, 0, 1, 0),
        (0, 3, 2, 1, 0), (3, 0, 0, 0, 3), (3, 0, 2, 1, 3),
    )
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "attributes", "shapes"), _CASES)
def test_open_extents(op_type: str, attributes: dict[str, Any], shapes: list[Shape]) -> None:
    """Also negative indices; what reaches beyond the data ends the run, as in onnxruntime."""
    b, rng = Builder(21), np.random.default_rng(0)
    kinds = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT)
    names = [b.input(f"x{i}", s, k) for i, (s, k) in enumerate(zip(shapes, kinds, strict=False))]
    b.output(b.op(op_type, *names, **attributes), None)
    graph = canonical(b.model())
    assert qb.from_relax(qb.to_relax(graph)[0]).digest == graph.digest
    executable = qb.compile(graph)
    for extents in _EXTENTS:
        given = dict[str, Array]()
        for index, shape in enumerate(shapes):
            sizes = [n if isinstance(n, int) else extents[n] for n in shape]
            drawn = rng.integers(-2, 2, sizes)
            given[f"x{index}"] = drawn if index == 1 else drawn.astype(np.float32)
        try:
            (wanted,) = qb.evaluate(graph, given).values()
        except QdqBridgeError:
            with pytest.raises(InputDataError):
                executable.run(given)
            continue
        (found,) = executable.run(given).values()
        np.testing.assert_array_equal(found, wanted)


X = np.arange(15, dtype=np.float32).reshape(5, 3)
_BEYOND: list[tuple[str, dict[str, Any], Array, list[int]]] = [
    ("Gather", {"axis": 0}, np.array([0, -5, 4]), [5, -6, 10**12]),
    ("Gather", {"axis": 1}, np.array(-3), [3, -4]),
    ("GatherElements", {"axis": 0}, np.array([[0, -5, 4], [1, 2, 3]]), [5, -6]),
    ("GatherND", {}, np.array([[0, -3], [4, 2]]), [3, -4]),
    ("ScatterND", {}, np.array([[0, -3], [4, 2]]), [3, -4]),
    ("ScatterElements", {"axis": 1}, np.array([[0, -3], [1, 2]]), [3, -4]),
]
"""Operators, indices that the data have, and what in the last place they have not."""


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(("op_type", "attributes", "indices", "beyond"), _BEYOND)
def test_an_index_beyond_the_data_ends_a_run(
    op_type: str,
    attributes: dict[str, Any],
    indices: Array,
    beyond: list[int],
    opened: bool,
) -> None:
    b = Builder(18)
    x = b.input("x", ["n", "m"] if opened else [5, 3])
    places = [f"e{i}" for i in range(indices.ndim)] if opened and op_type == "Gather" else None
    i = b.input("i", places or indices.shape, TensorProto.INT64)
    updates = [] if "Gather" in op_type else [b.init(np.ones(_updates(op_type, indices), "f4"))]
    b.output(b.op(op_type, x, i, *updates, **attributes))
    graph = canonical(b.model())
    kernels = "reference" if opened else "fast"
    executable = compile_relax(graph, UNOPTIMIZED, kernels=kernels, threads=1)
    feeds = {"x": X, "i": indices}
    (wanted,), (found,) = qb.evaluate(graph, feeds).values(), executable.run(feeds).values()
    np.testing.assert_array_equal(found, wanted)
    for place in beyond:
        wrong = indices.copy()
        wrong.reshape(-1)[-1] = place
        with pytest.raises(InputDataError, match="an index is beyond its data, which have"):
            executable.run({"x": X, "i": wrong})


def _updates(op_type: str, indices: Array) -> tuple[int, ...]:
    return indices.shape[:-1] if op_type == "ScatterND" else indices.shape


@pytest.mark.parametrize(
    ("made", "checked"),
    [
        (lambda b, x: b.op("ArgMax", x, axis=1), False),
        (lambda b, x: b.op("Squeeze", b.op("ArgMin", x, axis=1), b.init(np.array([1]))), False),
        (lambda b, x: b.op("ArgMax", x, axis=0), True),
        (lambda b, x: b.init(np.array([2, -3])), False),
        (lambda b, x: b.op("Cast", x, to=TensorProto.INT64), True),
    ],
)
def test_what_cannot_be_beyond_is_not_checked(made: Any, checked: bool) -> None:
    """The data have 3 elements; of 5 rows the greatest may be the last one."""
    b = Builder(13)
    x = b.input("x", [5, 3])
    b.output(b.op("Gather", b.init(np.array([1, 2, 3], np.float32)), made(b, x)))
    module = compile_relax(canonical(b.model()), UNOPTIMIZED, threads=1).module
    assert (INDEXED_EXTENT in str(module)) is checked


def test_a_constant_index_beyond_the_data_is_refused() -> None:
    b = Builder(13)
    b.output(b.op("Gather", b.input("x", [3]), b.init(np.array([3]))))
    with pytest.raises(UnsupportedTargetError, match="an index beyond its 3 elements"):
        qb.to_relax(canonical(b.model()))
