"""Nodes that end the process in ONNX's shape inference (1.23), refused by name before it runs.

Found by running the inference of every operator on random operands and attributes; what else ends
it lacks an operand that the operator's schema demands.
"""

from __future__ import annotations

import onnx

from qdqbridge.errors import InvalidModelError
from qdqbridge.onnx_io.reading.structure import describe

_MOST_AXES = 64
"""More axes than any tensor has."""


def check_inferable(node: onnx.NodeProto, file: str) -> None:
    """Checks what inference takes for granted: it counts axes and results by attributes.

    Raises:
        InvalidModelError: An attribute contradicts the node, or names an axis that no tensor has.
    """
    given = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    problem = ""
    if node.op_type == "Split" and given.get("num_outputs", len(node.output)) != len(node.output):
        problem = f"num_outputs is {given['num_outputs']}, and it has {len(node.output)} results"
    elif node.op_type == "GatherND" and not 0 <= given.get("batch_dims", 0) <= _MOST_AXES:
        problem = f"batch_dims is {given['batch_dims']}"
    elif node.op_type == "LayerNormalization" and abs(given.get("axis", -1)) > _MOST_AXES:
        problem = f"axis is {given['axis']}"
    if problem:
        raise InvalidModelError(
            f"an attribute of {node.op_type} does not fit it",
            where=f"{file}, {describe(node)}",
            why=problem,
            fix="export the model again",
        )
