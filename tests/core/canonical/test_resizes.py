"""Nearest resizes by whole factors have one form, and pick what they picked."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.ops.attributes import ResizeAttrs
from tests.onnx_models import Builder, load, run

CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


def resize(coordinates: str, rounding: str, scales: tuple[float, float]) -> Graph:
    b = Builder(19)
    factors = b.init(np.array([1, 1, *scales], np.float32))
    b.output(
        b.op(
            "Resize", b.input("x", [1, 2, 5, 7]), "", factors, mode="nearest",
            coordinate_transformation_mode=coordinates, nearest_mode=rounding,
        )
    )  # fmt: skip
    return load(b.model())


def written(graph: Graph) -> tuple[str, str]:
    attributes = graph.nodes[0].attributes
    assert isinstance(attributes, ResizeAttrs)
    return attributes.coordinate_transformation_mode, attributes.nearest_mode


@pytest.mark.parametrize("scales", [(2, 2), (3, 1), (5, 7)])
def test_one_spelling(scales: tuple[float, float]) -> None:
    digests = {canonicalize(resize("asymmetric", "floor", scales)).digest}
    data = {"x": np.arange(70, dtype=np.float32).reshape(1, 2, 5, 7)}
    for coordinates, rounding in itertools.product(CENTRES, ROUNDED):
        raw = resize(coordinates, rounding, scales)
        (before,) = run(raw, data)
        graph = canonicalize(raw)
        (after,) = run(graph, data)
        assert np.array_equal(before, after)
        digests.add(graph.digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("coordinates", "rounding", "scales"),
    [
        ("half_pixel", "round_prefer_floor", (1.5, 2)),
        ("half_pixel", "floor", (2, 2)),
        ("asymmetric", "round_prefer_ceil", (2, 2)),
        ("align_corners", "round_prefer_floor", (2, 2)),
    ],
)
def test_others_stay(coordinates: str, rounding: str, scales: tuple[float, float]) -> None:
    assert written(canonicalize(resize(coordinates, rounding, scales))) == (coordinates, rounding)


def test_other_parameters_are_a_requantize_behind_it() -> None:
    """They are one graph, and what it computes is what was computed."""
    text = """\
input %x: quant<uint8, 0.5, 3>[1,1,2,2]
%y = Resize(%x) {mode='nearest', coordinate_transformation_mode='asymmetric', \
nearest_mode='floor', scales=[1 1 2 2], sizes=None}: """
    behind = text + "quant<uint8, 0.5, 3>[1,1,4,4]\n%z = requantize(%y): "
    target, results = "quant<int8, 0.3, -7>[1,1,4,4]\noutput ", list[np.ndarray[Any, Any]]()
    graphs = [qb.parse(f"qnn-raw 1\n{text}{target}%y"), qb.parse(f"qnn-raw 1\n{behind}{target}%z")]
    x = np.array([0, 3, 77, 255], np.uint8).reshape(1, 1, 2, 2)
    for graph in graphs:
        for form in (graph, canonicalize(graph)):
            results += qb.evaluate(form, {form.inputs[0].name: x}).values()
    assert canonicalize(graphs[0]).digest == canonicalize(graphs[1]).digest
    assert len(results) == 4 and all(np.array_equal(results[0], other) for other in results)
