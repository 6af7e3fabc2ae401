"""Gathering and scattering on TVM where extents are open, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

import qdqbridge as qb
from qdqbridge.errors import InputDataError, QdqBridgeError
from tests.onnx_models import Array, Builder, canonical

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
