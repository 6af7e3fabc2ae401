"""Constants that a file spells as nodes: Constant nodes, and cones of operators over constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqbridge.errors import InvalidModelError
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.interpreter import evaluate_node
from qdqbridge.graph.types import static_shape
from qdqbridge.onnx_io.tensors import constant_from_proto

_NUMBERS = {
    "value_float": ("f", np.float32),
    "value_int": ("i", np.int64),
    "value_floats": ("floats", np.float32),
    "value_ints": ("ints", np.int64),
}


def constant_of_node(proto: onnx.NodeProto, folder: Path, where: str) -> Constant:
    """Returns the data of a Constant node.

    Raises:
        InvalidModelError: The node does not hold exactly one dense value.
    """
    if len(proto.attribute) == 1:
        attribute = proto.attribute[0]
        if attribute.name == "value":
            return constant_from_proto(attribute.t, folder, where)
        if attribute.name in _NUMBERS:
            field, dtype = _NUMBERS[attribute.name]
            return Constant.of(np.array(getattr(attribute, field), dtype=dtype))
        if attribute.name in ("value_string", "value_strings"):
            text = attribute.s if attribute.name == "value_string" else list(attribute.strings)
            return Constant.of(np.array(text, dtype=object))
    raise InvalidModelError(
        "a Constant node holds no dense value",
        where=where,
        why=f"its attributes are {[a.name for a in proto.attribute]}",
        fix="give it exactly one of value, value_float(s), value_int(s)",
    )


def fold(value: Value) -> Constant | None:
    """Returns the data of a value that only constants determine, None for any other.

    Runs the cone of nodes behind ``value`` once; meant for quantization parameters, bounds and
    shapes, not for whole weights.
    """
    if value.constant is not None:
        return value.constant
    if value.producer is None:
        return None
    cone = _cone(value)
    if cone is None:
        return None
    known: dict[Value, Constant] = {}
    for node in cone:
        operands = [None if v is None else _data(v, known).numpy() for v in node.inputs]
        if not all(_bounded(node, result, operands) for result in node.outputs):
            return None
        try:
            results = evaluate_node(node, operands)
        except (ValueError, IndexError) as error:  # NumPy's word for shapes that do not fit
            raise InvalidModelError(
                f"{node.op.name} '{node.name}' cannot be computed",
                why=str(error),
                fix="its operands are constants of the file; correct them",
            ) from error
        for result, array in zip(node.outputs, results, strict=False):
            known[result] = Constant.of(np.asarray(array))
    return known[value]


_MOST = 1 << 22
"""Elements that a folded constant may have; parameters are far smaller."""


def _bounded(node: Node, result: Value, operands: Sequence[NDArray[Any] | None]) -> bool:
    """True where a result is known to be small, so that folding cannot exhaust memory."""
    shape = static_shape(result.type.shape)
    if node.op.name == "ConstantOfShape" and operands[0] is not None:
        shape = tuple(int(extent) for extent in operands[0].reshape(-1))
    if shape is not None:
        return math.prod(shape) <= _MOST
    return node.op.name not in ("ConstantOfShape", "Range", "Expand", "Tile", "Pad", "Resize")


def _data(value: Value, known: dict[Value, Constant]) -> Constant:
    return known[value] if value.constant is None else value.constant


def _cone(value: Value) -> list[Node] | None:
    """Returns the nodes behind ``value`` in execution order; None if an input is among them."""
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(value.producer, False)] if value.producer else []
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        for operand in node.inputs:
            if operand is None or operand.constant is not None:
                continue
            if operand.producer is None:
                return None
            stack.append((operand.producer, False))
    return order
