"""Shapes of results that ONNX's own inference leaves open."""

from __future__ import annotations

import pytest

from qdqbridge.core.graph.operator import Attributes
from qdqbridge.core.graph.types import Shape
from qdqbridge.core.ops.attributes import ExpandAttrs, ReshapeAttrs, TransposeAttrs
from qdqbridge.core.ops.shapes import result_shape


@pytest.mark.parametrize(
    ("name", "attributes", "shapes", "wanted"),
    [
        ("Transpose", TransposeAttrs(()), [()], ()),
        ("Transpose", TransposeAttrs((1, 0)), [("n", 3)], (3, "n")),
        ("Transpose", TransposeAttrs((1, 0)), [None], None),
        ("Reshape", ReshapeAttrs(None), [(2, 3), (1,)], (6,)),
        ("Reshape", ReshapeAttrs(None), [("n", 3), (1,)], ("(n*3)",)),
        ("Reshape", ReshapeAttrs(None), [(2, 3), (2,)], (None, None)),
        ("Reshape", ReshapeAttrs(None), [None, ("n",)], None),
        ("Expand", ExpandAttrs(None), [(2, 1), (3,)], (None, None, None)),
        ("Reshape", ReshapeAttrs(None), [None, (1,)], (None,)),
    ],
)
def test_what_follows(
    name: str, attributes: Attributes, shapes: list[Shape], wanted: object
) -> None:
    assert result_shape(name, attributes, shapes, None) == wanted
