"""Pools: padding that does not exist is not counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.ops.attributes import PoolAttrs
from tests.core.canonical.at_work import settled
from tests.core.graph.graphs import OUT, U8, apply, dq, graph, q, stored, typed
from tests.onnx_models import Builder, ops

COUNTED = PoolAttrs((2, 2), (1, 1), (1, 1), (0, 0, 0, 0), count_include_pad=True)


def pooled(attributes: PoolAttrs, extent: int) -> Graph:
    """Returns an average pool of an image of 3 by 3, which leaves ``extent`` by ``extent``."""
    x = stored("x", U8, (1, 2, 3, 3))
    y = apply(
        "AveragePool", dq(x), type_=typed((1, 2, extent, extent)), attributes=attributes
    )  # fmt: skip
    return settled(graph([x], q(y, OUT)))


def test_without_padding_both_spellings_are_one() -> None:
    plain = replace(COUNTED, count_include_pad=False)
    assert pooled(COUNTED, 2).nodes[0].attributes == plain
    assert pooled(COUNTED, 2).digest == pooled(plain, 2).digest


@pytest.mark.parametrize(
    ("change", "extent"),
    [({"pads": (1, 1, 1, 1)}, 4), ({"ceil_mode": True, "strides": (2, 2)}, 2)],
    ids=["padding", "ceil_mode"],
)
def test_what_may_count_stays(change: dict[str, object], extent: int) -> None:
    attributes = replace(COUNTED, **change)  # pyright: ignore[reportArgumentType]
    assert pooled(attributes, extent).nodes[0].attributes == attributes


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMean"])
@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.INT32, TensorProto.UINT32])
def test_integers_over_space_have_no_global_pool(op: str, dtype: int, tmp_path: Path) -> None:
    b = Builder(17)
    b.input("x", [2, 3, 4, 5], dtype)
    b.output(b.op(op, "x", axes=[2, 3]), elem_type=dtype)
    onnx.save(b.model(), tmp_path / "model.onnx")
    graph = qb.load(tmp_path / "model.onnx")
    assert ops(graph) == [op]
    qb.save(graph, tmp_path / "saved.onnx")
    onnx.checker.check_model(tmp_path / "saved.onnx", full_check=True)
    assert qb.load(tmp_path / "saved.onnx").digest == graph.digest
