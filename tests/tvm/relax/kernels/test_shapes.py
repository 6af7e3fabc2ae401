"""Extents that files leave open."""

from __future__ import annotations

import numpy as np

import qdqbridge as qb
from qdqbridge.core.graph.graph import Graph
from qdqbridge.tvm.relax.kernels.codegen.processors import cpu_of, host_target
from qdqbridge.tvm.relax.kernels.plan import plan, with_extents
from tests.places import MODELS
from tests.tvm.qnn.layout_models import cnn


def opened(graph: Graph) -> list[tuple[object, ...] | None]:
    """Replaces every extent of what nodes compute by a name of its own; returns the extents."""
    kept = []
    for i, node in enumerate(graph.nodes):
        for value in node.outputs:
            shape = value.type.shape
            kept.append(shape)
            names = tuple(f"open{i}_{d}" for d in range(len(shape or ())))
            value.type = value.type.with_shape(names)
    return kept


def test_open_extents_are_found() -> None:
    graph = cnn()
    wanted = opened(graph)
    found = with_extents(graph)
    assert [v.type.shape for node in found.nodes for v in node.outputs] == wanted
    assert all(isinstance(e, str) for n in graph.nodes for e in n.output.type.shape or ())


def test_a_graph_that_leaves_nothing_open_is_itself() -> None:
    graph = cnn()
    assert with_extents(graph) is graph


def test_names_of_the_inputs_stay() -> None:
    graph = cnn()
    (x,) = graph.inputs
    x.type = x.type.with_shape(("batch", *(x.type.shape or ())[1:]))
    opened(graph)
    found = with_extents(graph)
    assert {v.type.shape[0] for n in found.nodes for v in n.outputs if v.type.shape} == {"batch"}
    assert not any(isinstance(e, str) for n in found.nodes for e in (n.output.type.shape or ())[1:])


def test_kernels_take_what_was_open() -> None:
    graph = qb.load(MODELS / "digits_cnn_u8s8_per_channel.onnx")
    before = len(plan(graph, cpu_of(host_target())).kernels)
    opened(graph)
    assert len(plan(graph, cpu_of(host_target())).kernels) == before > 3
    shape = [e if isinstance(e, int) else 3 for e in graph.inputs[0].type.shape or ()]
    data = {graph.inputs[0].name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    ours, meant = qb.compile(graph).run(data), qb.evaluate(graph, data)
    for name, array in meant.items():
        np.testing.assert_array_equal(ours[name], array)
