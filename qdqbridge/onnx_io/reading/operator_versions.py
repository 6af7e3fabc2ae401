"""What a node means in one opset, in another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from qdqbridge.onnx_io.codecs.schema import changed, schema_of
from qdqbridge.onnx_io.control_flow.subgraph_names import bodies
from qdqbridge.onnx_io.domains import ONNX_DOMAINS

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
REDUCTIONS = frozenset(
    ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
     "ReduceMin", "ReduceProd", "ReduceSumSquare")
)  # fmt: skip
"""Reductions whose axes became an operand with opset 18."""
AXES_OPERAND = 18
_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What GridSample calls its modes before opset 20, and from then on."""
_MODES_RENAMED = 20
_MORE = {"Mod"}
"""Operators whose later meaning is of what earlier versions refuse: Mod of floats, without fmod."""


def carries_over(op_type: str, version: int, opset: int) -> bool:
    """Returns whether a node of one opset means in another, as it is, what it meant.

    Args:
        op_type: An operator of ONNX's own domain.
        version: The opset it was written for.
        opset: The other one.
    """
    own, other = (schema_of(op_type, "", v) for v in (version, opset))
    if own is None or other is None:
        return opset == version
    if other.deprecated and not own.deprecated:
        return False
    if own.since_version >= other.since_version:
        return bool(own.since_version == other.since_version)
    return (op_type in _MORE or not changed(own, other)) and _grown(own, other)


def _grown(own: Any, other: Any) -> bool:
    """True where a later version only has more: element types, optional inputs, attributes."""
    for before, after in zip(own.inputs, other.inputs, strict=False):
        if not set(before.types) <= set(after.types):
            return False
        if after.option not in (before.option, _OPTIONAL):
            return False
    if any(each.option != _OPTIONAL for each in other.inputs[len(own.inputs) :]):
        return False
    if len(other.inputs) < len(own.inputs) or len(other.outputs) < len(own.outputs):
        return False
    for name, before in own.attributes.items():
        after = other.attributes.get(name)
        if after is None or after.type != before.type or _default(after) != _default(before):
            return False
    added = set(other.attributes) - set(own.attributes)
    return not any(other.attributes[name].required for name in added)


def _default(attribute: Any) -> bytes:
    return attribute.default_value.SerializeToString()


def can_be_moved(op_type: str, version: int, opset: int) -> bool:
    """Returns whether :func:`moved` gives a node of one opset the form of a later one."""
    if carries_over(op_type, version, opset):
        return True
    if op_type == "GridSample":
        return version < _MODES_RENAMED <= opset
    return version < AXES_OPERAND <= opset and (op_type in REDUCTIONS or op_type == "Split")


def moved(
    node: NodeProto, version: int, opset: int, constant: Callable[[NDArray[Any]], str]
) -> NodeProto:
    """Brings a node of an opset from 13 on, and those in its bodies, into the form of a later one.

    Args:
        node: The node; it is changed.
        version: The opset that it is in.
        opset: A later one, in which it can be said (:func:`can_be_moved`).
        constant: Enters an initializer beside the node; returns its name.
    """
    for attribute in node.attribute:
        for body in bodies(attribute):
            taken = {name for inner in body.node for name in inner.output}

            def enter(array: NDArray[Any], body: Any = body, taken: set[str] = taken) -> str:
                name = f"{body.name}.constant_{len(body.initializer)}"
                while name in taken:
                    name += "_"
                body.initializer.append(numpy_helper.from_array(array, name))
                return name

            for inner in body.node:
                moved(inner, version, opset, enter)
    own = node.domain in ONNX_DOMAINS
    if own and not carries_over(node.op_type, version, opset):
        if node.op_type in REDUCTIONS:
            _with_axes_operand(node, constant)
        elif node.op_type == "Split" and len(node.input) < 2:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        elif node.op_type == "GridSample":
            for attribute in node.attribute:
                if attribute.name == "mode":
                    mode = attribute.s.decode()
                    attribute.s = _GRID_MODES.get(mode, mode).encode()
    return node


def with_older_mode(node: NodeProto, rank: int | None) -> NodeProto | None:
    """Returns a GridSample of opset 20 or later as one of opset 16; None where that has none.

    Args:
        node: The operator.
        rank: Of what it samples; before opset 20 these are images.
    """
    if rank != 4:
        return None
    older = NodeProto()
    older.CopyFrom(node)
    mode = next((a for a in older.attribute if a.name == "mode"), None)
    if mode is None:
        mode = older.attribute.add(name="mode", type=onnx.AttributeProto.STRING, s=b"linear")
    modes = {new: old for old, new in _GRID_MODES.items()}
    mode.s = modes.get(mode.s.decode(), mode.s.decode()).encode()
    return older


def _with_axes_operand(node: NodeProto, constant: Callable[[NDArray[Any]], str]) -> None:
    axes = next((a for a in node.attribute if a.name == "axes"), None)
    if axes is not None:
        node.input.append(constant(np.array(axes.ints, np.int64)))
        node.attribute.remove(axes)


def with_axes_attribute(node: NodeProto, axes: NDArray[Any] | None) -> NodeProto | None:
    """Returns a reduction of opset 18 or later as one of opset 13; None where that has none.

    Args:
        node: The reduction.
        axes: The constant that is its second operand; None where it has none.
    """
    given = {a.name: a.i for a in node.attribute}
    if given.get("noop_with_empty_axes") and (axes is None or not axes.size):
        return None
    older = NodeProto()
    older.CopyFrom(node)
    del older.input[1:], older.attribute[:]
    older.attribute.extend(a for a in node.attribute if a.name == "keepdims")
    if axes is not None and axes.size:
        numbers = [int(axis) for axis in axes.reshape(-1)]
        older.attribute.append(helper.make_attribute("axes", numbers))
    return older
