"""Indices kept inside of their data, for runtimes that read and write where an index says."""

from __future__ import annotations

from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_BOUND = "bound"
"""Begins the names of what is put before the node; its own are ``in_0`` and so on."""


def bound_indices(model: onnx.ModelProto, extents: NDArray[Any]) -> None:
    """Takes the indices of a model's only node modulo extents; those inside stay what they mean.

    Args:
        model: One node, whose second operand are indices; it is changed.
        extents: Of the axes that they go along, in their element type.
    """
    (node,) = model.graph.node
    model.graph.initializer.append(numpy_helper.from_array(extents, _BOUND))
    within = helper.make_node("Mod", [node.input[1], _BOUND], [f"{_BOUND}_indices"])
    node.input[1] = within.output[0]
    model.graph.node.insert(0, within)
