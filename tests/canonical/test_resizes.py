"""Nearest resizes by whole factors have one spelling, and pick what they picked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qdqbridge.canonical import canonicalize
from qdqbridge.graph.graph import Graph
from qdqbridge.ops.attributes import ResizeAttrs
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


def spelled(graph: Graph) -> tuple[str, str]:
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
    assert spelled(canonicalize(resize(coordinates, rounding, scales))) == (coordinates, rounding)
