"""Rules for shapes that a file computes at run time from the shapes of other tensors."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from qdqbridge.canonical.build import constant, result
from qdqbridge.canonical.rule import Proposal, Replace, Scope, rule, stored_behind
from qdqbridge.graph.constant import Constant
from qdqbridge.graph.graph import Node, Value
from qdqbridge.graph.types import Dim
from qdqbridge.ops.attributes import (
    AxesAttrs,
    AxisAttrs,
    CastAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    SliceAttrs,
)

Extents: TypeAlias = "list[Dim]"
_DEPTH = 32
_LARGEST = 1 << 63


@rule("shape-of-stored", "Shape")
def shape_of_stored(node: Node, scope: Scope) -> Proposal:
    """``Shape(dequantize(q)) -> Shape(q)``."""
    del scope
    stored = stored_behind(node.operand(0))
    if stored is None:
        return None
    return Replace(
        {node.output: result(node.op, node.attributes, [stored], node.output.type, node.origin)}
    )


@rule("known-extents", "Shape", "Concat", "Slice", "Gather", "Squeeze", "Unsqueeze", "Cast")
def known_extents(node: Node, scope: Scope) -> Proposal:
    """``Shape(x) -> const`` where the extents asked for are known."""
    del scope
    if node.output.type.dtype.is_float or node.output.quant is not None:
        return None
    extents = extents_of(node.output)
    if extents is None or any(isinstance(dim, str) for dim in extents):
        return None
    shape = node.output.type.shape
    if any(abs(int(dim)) >= _LARGEST for dim in extents):
        return None
    array = np.array(extents, np.int64).astype(node.output.type.dtype.numpy)
    if shape is not None and len(shape) == 0:
        array = array.reshape(())
    return Replace({node.output: constant(Constant.of(array), None, node.output.name)})


@rule("static-reshape", "Reshape", "Expand")
def static_reshape(node: Node, scope: Scope) -> Proposal:
    """``Reshape(x, extents) -> Reshape(x)`` with the target as an attribute.

    An unknown extent of the target that x has at the same place is copied (0); one other is -1.
    """
    del scope
    attributes = node.attributes
    if not isinstance(attributes, ReshapeAttrs | ExpandAttrs) or attributes.shape is not None:
        return None
    target = extents_of(node.operand(1))
    if target is None:
        target = None if node.output.type.shape is None else list(node.output.type.shape)
    if target is None:
        return None
    if isinstance(attributes, ExpandAttrs):
        if any(isinstance(dim, str) for dim in target):
            return None
        fixed = tuple(dim for dim in target if isinstance(dim, int))
        made: ReshapeAttrs | ExpandAttrs = ExpandAttrs(fixed)
    else:
        written = _written(target, node.operand(0).type.shape or ())
        if written is None:
            return None
        made = ReshapeAttrs(written)
    value = result(node.op, made, node.inputs[:1], node.output.type, node.origin, node.output.name)
    return Replace({node.output: value})


def _written(target: Extents, source: tuple[Dim, ...]) -> tuple[int, ...] | None:
    """Returns ONNX's spelling of a target with unknown extents, None where it has none."""
    written: list[int] = []
    for index, dim in enumerate(target):
        if isinstance(dim, int):
            if dim == 0:
                return None
            written.append(dim)
        elif index < len(source) and source[index] == dim:
            written.append(0)
        else:
            written.append(-1)
    return tuple(written) if written.count(-1) <= 1 else None


def extents_of(value: Value, depth: int = 0) -> Extents | None:
    """Returns the numbers in a small integer vector or scalar; a name stands for an unknown extent.

    Follows Shape, Slice, Gather, Concat, Squeeze, Unsqueeze and Cast back to shapes and constants.
    """
    if (value.rank or 0) > 1:
        return None  # what a shape is made of has one axis
    if value.constant is not None:
        small = value.constant.size <= _DEPTH and value.constant.dtype.is_integer
        return [int(x) for x in value.constant.numpy().reshape(-1)] if small else None
    node = value.producer
    if node is None or depth > _DEPTH:
        return None
    if isinstance(node.attributes, ShapeAttrs):
        shape = node.operand(0).type.shape
        return None if shape is None else list(shape[node.attributes.start : node.attributes.end])
    parts = [None if v is None else extents_of(v, depth + 1) for v in node.inputs]
    if any(part is None for part in parts):
        return None
    return _computed(node, [part for part in parts if part is not None])


def _computed(node: Node, parts: list[Extents]) -> Extents | None:
    attributes, name = node.attributes, node.op.name
    if name == "Concat":
        return [dim for part in parts for dim in part]
    if isinstance(attributes, CastAttrs):
        return parts[0] if attributes.to.is_integer else None
    if name in ("Squeeze", "Unsqueeze") and isinstance(attributes, AxesAttrs):
        return parts[0]
    if isinstance(attributes, SliceAttrs) and attributes.axes == (0,):
        return parts[0][attributes.starts[0] : attributes.ends[0] : attributes.steps[0]]
    if name == "Gather" and isinstance(attributes, AxisAttrs):
        picks = [i for i in parts[1] if isinstance(i, int)]
        if len(picks) == len(parts[1]) and all(-len(parts[0]) <= i < len(parts[0]) for i in picks):
            return [parts[0][i] for i in picks]
    return None
