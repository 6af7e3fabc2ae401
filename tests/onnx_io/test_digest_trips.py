"""The digest after save and load: of random models, and of those where it once moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import qdqbridge as qb
from qdqbridge.graph.graph import Graph
from tests.onnx_io.digest_trips import loaded, saved
from tests.onnx_io.random_branches import random_branches
from tests.onnx_io.random_models import random_model

FOUND = sorted((Path(__file__).parent / "digest_models").glob("*.onnx"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_where_it_once_moved(path: Path) -> None:
    graph = loaded(onnx.load(path))
    assert saved(graph).text() == graph.text()


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_models(first: int) -> None:
    """``scripts/sweep_digests`` makes as many as one likes."""
    for seed in range(first, first + 20):
        graph = loaded(random_model(seed))
        assert saved(graph).text() == graph.text(), seed


@pytest.mark.parametrize("first", range(0, 120, 60))
def test_random_captures(first: int) -> None:
    """What a body captures under two names, it captures once, also in the file that is saved."""
    for seed in range(first, first + 60):
        graph = loaded(random_branches(seed))
        assert saved(graph).text() == graph.text(), seed


def test_one_capture_under_two_names() -> None:
    bodies = (
        "y = If (c) <then_branch = t () => (float[a,b] p) { u = Add(x, v) p = Mul(u, w) }, "
        "else_branch = e () => (float[a,b] q) { q = Mul(x, w) }>"
    )
    inputs = "float[n,2] x, bool c"
    once = _read(f"<float[2] v = {{1, 2}}> {{ {bodies.replace('w', 'v')} }}", inputs)
    same = _read(f"<float[2] v = {{1, 2}}> {{ w = Identity(v) {bodies} }}", inputs)
    equal = _read(f"<float[2] v = {{1, 2}}, float[2] w = {{1, 2}}> {{ {bodies} }}", inputs)
    other = _read(f"<float[2] v = {{1, 2}}, float[2] w = {{1, 3}}> {{ {bodies} }}", inputs)
    assert once.text() == same.text() == equal.text() != other.text()
    x, v = np.array([[1, -1], [0.5, 3]], np.float32), np.array([1, 2], np.float32)
    for graph in (once, same, equal):
        for c, wanted in ((True, (x + v) * v), (False, x * v)):
            y = qb.evaluate(graph, {"x": x, "c": np.array(c)})["y"]
            np.testing.assert_array_equal(y, wanted)


def _read(body: str, inputs: str = "float[n,2] x", opset: int = 21) -> Graph:
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => (float[a,b] y)'
    return loaded(onnx.parser.parse_model(f"{head} {body}"))


def test_a_table_has_no_range() -> None:
    numbers = "float s = {0.1}, uint8 z = {0}, float[2,2] t = {-1, 2, 0.05, 1}, int64[1] i = {1}"
    graph = _read(
        f"<{numbers}, float low = {{0}}, float high = {{0.1}}> {{ k = Cast<to = 7>(x) "
        "j = ReduceMax<keepdims = 0>(k, i) g = Gather(t, j) c = Clip(g, low, high) "
        "q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }"
    )
    assert "Gather" in graph.text()
    assert "range" not in graph.text()
    assert saved(graph).text() == graph.text()


def test_one_zero_point_of_run_time() -> None:
    inputs = "float[n,2] x, float s"
    left_out = "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)"
    given = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    twins = [_read(f"{{ {left_out} }}", inputs)] + [
        _read(f"<uint8{shape} z = {{0}}> {{ {given} }}", inputs) for shape in ("", "[1]", "[1,1]")
    ]
    assert len({graph.text() for graph in twins}) == 1
    others = [_read(f"<int8{rank} z = {{3}}> {{ {given} }}", inputs) for rank in ("", "[1]")]
    assert others[0].text() == others[1].text() != twins[0].text()
    for graph in (*twins, *others, _read(f"<int8 z = {{0}}> {{ {given} }}", inputs)):
        assert saved(graph).text() == graph.text()


def test_equal_conversions_of_run_time_are_one() -> None:
    twice = (
        "<uint8 z = {3}, uint8 w = {3}> { q = QuantizeLinear(x, s, z) "
        "a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, s, w) y = Mul(a, b) }"
    )
    once = twice.replace("Mul(a, b)", "Mul(a, a)")
    one, other = (_read(body, "float[n,2] x, float s") for body in (once, twice))
    assert one.text() == other.text()


def test_a_reshape_that_copies_every_extent_is_nothing() -> None:
    graph = _read("<int64[2] t = {0, -1}> { r = Reshape(x, t) y = Neg(r) }")
    assert [node.op.name for node in graph.nodes] == ["Neg"]
