"""Two graphs have no difference exactly where they have one digest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqbridge.core.graph.diff import diff
from qdqbridge.core.graph.graph import Graph
from tests.core.canonical.random_biases import product
from tests.onnx_io.random_windows import case
from tests.onnx_models import canonical


def relatives(seed: int) -> Iterator[onnx.ModelProto]:
    """Yields a random model and files that differ from it in one place, hardly or not at all."""
    model = product(seed).model if seed % 3 else case(seed).model
    yield model
    r = np.random.default_rng(seed)
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for node in named.graph.node:
        node.name = f"{node.name}_renamed"
    yield named
    for _ in range(4):
        if not model.graph.initializer:
            return
        other = onnx.ModelProto()
        other.CopyFrom(model)
        tensor = other.graph.initializer[int(r.integers(len(other.graph.initializer)))]
        array = numpy_helper.to_array(tensor).copy()
        at = int(r.integers(array.size))
        if array.dtype.kind == "f":  # the next number, or one a little further
            ahead = array.flat[at] * np.float32(1 + 2.0 ** -float(r.integers(3, 24)))
            array.flat[at] = max(ahead, np.nextafter(array.flat[at], np.float32(np.inf)))
        else:
            array.flat[at] ^= 1
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        yield other


def holds(a: Graph, b: Graph) -> bool:
    """Checks one pair in both directions; returns whether the two are one network."""
    same = a.digest == b.digest
    assert same == (diff(a, b) == []) == (diff(b, a) == [])
    assert same == (a.text() == b.text())
    return same


@pytest.mark.parametrize("seed", range(12))
def test_no_difference_is_one_digest(seed: int) -> None:
    graphs = [canonical(model) for model in relatives(seed)]
    assert holds(graphs[0], graphs[1])
    for other in graphs[2:]:
        holds(graphs[0], other)


@pytest.mark.slow
def test_no_difference_is_one_digest_for_many() -> None:
    counts = [0, 0]
    before: Graph | None = None
    for seed in range(20, 160):
        graphs = [canonical(model) for model in relatives(seed)]
        for other in graphs[1:] if before is None else [*graphs[1:], before]:
            counts[holds(graphs[0], other)] += 1
        before = graphs[0]
    assert min(counts) > 100
