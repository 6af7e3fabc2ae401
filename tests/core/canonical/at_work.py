"""Running rules: alone, or all of them with everything checked that must hold afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph, Value
from qdqbridge.core.graph.interpreter import evaluate
from qdqbridge.core.rewrite import Rule, run

Array = np.ndarray[Any, Any]


def data_for(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random inputs that float32 computes with exactly: stored codes, or multiples of 1/128."""
    rng = np.random.default_rng(seed)
    return {value.name: _data(value, rng) for value in graph.inputs}


def _data(value: Value, rng: np.random.Generator) -> Array:
    shape = tuple(d if isinstance(d, int) else 2 for d in value.type.shape or ())
    dtype = value.type.dtype
    if value.quant is not None:
        params = value.quant.params
        low, high = max(params.qmin, -32768), min(params.qmax, 65535)
        return rng.integers(low, high + 1, shape).astype(dtype.numpy)
    if dtype.is_integer:
        return rng.integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.numpy)
    return (rng.integers(-1024, 1024, shape) / 128).astype(dtype.numpy)


def outputs(graph: Graph, data: dict[str, Array]) -> list[Array]:
    found, _ = evaluate(graph, data)
    return [found[name] for name in graph.output_names]


def settled(graph: Graph) -> Graph:
    """Canonicalizes and checks that outputs, user lists and the fixpoint are what they must be."""
    data = data_for(graph)
    before = outputs(graph, data)
    _keeps(canonicalize(graph), data, before)
    text = graph.text()
    assert canonicalize(graph).text() == text
    return graph


def alone(graph: Graph, *rules: Rule, data: dict[str, Array] | None = None) -> list[str]:
    """Applies some rules only; returns the reasons of those that refused.

    Args:
        graph: What is rewritten, in place.
        rules: The rules.
        data: What outputs are compared on, where not :func:`data_for` says it: that has no NaN.
    """
    data = data_for(graph) if data is None else data
    before = outputs(graph, data)
    refused = run(graph, rules)
    _keeps(graph, data, before)
    text = graph.text()
    assert not [r for r in run(graph, rules).values() if r not in refused.values()]
    assert graph.text() == text
    return [reject.reason for reject in refused.values()]


def _keeps(graph: Graph, data: dict[str, Array], before: list[Array]) -> None:
    verify(graph)
    for want, got in zip(before, outputs(graph, data), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        assert got.dtype.hasobject or got.tobytes() == want.tobytes()  # 0.0 == -0.0
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            assert value is None or (node, index) in value.users
    for value in graph.values():
        assert all(user.inputs[index] is value for user, index in value.users)
        assert {user for user, _ in value.users} <= set(graph.nodes)


def reasons(graph: Graph) -> dict[str, str]:
    """Returns the reasons noted on a graph, by rule."""
    return {note.rule: note.reason for note in graph.notes}
