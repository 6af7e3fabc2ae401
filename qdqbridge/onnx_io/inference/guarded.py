"""ONNX's shape inference where a file cannot make it take the machine, or the process, with it.

Three things in a file can (onnx 1.23): a Slice of an axis of negative extent aborts the process,
propagating the data of a vector makes a symbol for each of its elements, 40 bytes each, and EyeLike
and RegexFullMatch of a value whose type nobody knows end it. The first two are looked for first, in
passes that cannot meet them; a Cast, which has their types and shapes, stands for the third.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import onnx
from onnx import TensorProto, helper

_LONG, _LARGE = 1 << 20, 1 << 30
_COPIES = 1 << 12
"""Times the 256 elements of an initializer; the Concats of real shapes make a few dozen."""
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_MAKERS = ("ConstantOfShape", "Range", "Expand", "Tile", "Pad", "Resize", "Reshape", "OneHot")
"""Operators whose result is as large as their operands' data say."""
_OPAQUE = "qdqbridge.opaque"
_TYPED: Mapping[str, Callable[[onnx.NodeProto], int]] = {
    "EyeLike": lambda node: next((a.i for a in node.attribute if a.name == "dtype"), 0),
    "RegexFullMatch": lambda node: TensorProto.BOOL,
}
"""Operators that read the type of their operand unasked, and the type of their result."""


def guarded_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with the types and shapes that ONNX can infer.

    Args:
        model: A model without the bytes of large tensors; declared extents below 0 are removed.

    Raises:
        onnx.shape_inference.InferenceError: Declared and inferred shapes disagree.
        RuntimeError: Inference fails otherwise.
    """
    for value in _declared(model.graph):
        _forget_negative(value)
    _cast_typed(model.graph)
    if _has_long_vector(model):
        return _without_slices(model) or _inferred(model, data=False)
    safe = _without_slices(model)
    if safe is not None:
        return safe
    makes = any(node.op_type in _MAKERS for node in model.graph.node)
    if makes or _copies(model.graph, {}) > _COPIES:
        plain = _inferred(model, data=False)  # sees what one maker makes of another's result
        if _has_long_vector(plain):
            return plain
        if makes and _has_long_vector(_inferred(_with_loose_makers(model), data=True)):
            return plain
    return _inferred(model, data=True)


def _inferred(model: onnx.ModelProto, *, data: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, data_prop=data)


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _declared(body)


def _cast_typed(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        to = _TYPED[node.op_type](node) if node.op_type in _TYPED else 0
        if to:
            cast = helper.make_node("Cast", node.input[:1], node.output[:1], node.name, to=to)
            node.CopyFrom(cast)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _cast_typed(body)


def _forget_negative(value: onnx.ValueInfoProto) -> None:
    if value.type.WhichOneof("value") == "tensor_type":
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_value < 0:
                extent.Clear()


def _copies(graph: onnx.GraphProto, known: dict[str, int]) -> int:
    """Returns how often Concats put one element side by side, at most.

    Forty Concats of a vector with itself, one after the other, make 2**40 copies of it.

    Args:
        graph: A graph, or the body of a node.
        known: The copies in each value that is known already; grows.
    """
    most = 1
    for node in graph.node:
        counts = [known.get(name, 1) for name in node.input]
        count = sum(counts) if node.op_type == "Concat" else max(counts, default=1)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node:
                    count = max(count, _copies(body, known))
        known.update(dict.fromkeys(node.output, count))
        most = max(most, count)
    return most


def _has_long_vector(model: onnx.ModelProto) -> bool:
    """True where a value is a long vector, or may be made one by a Reshape."""
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        type_ = value.type.tensor_type
        size = math.prod(extent.dim_value or 1 for extent in type_.shape.dim)
        flat = len(type_.shape.dim) == 1 or type_.elem_type in _INTEGERS
        if size > (_LONG if flat else _LARGE):
            return True
    return False


def _without_slices(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns what can be inferred without looking at any Slice, where only that is safe."""
    if not _has_slice(model.graph):
        return None
    copy = _copy(model)
    copy.opset_import.append(helper.make_opsetid(_OPAQUE, 1))
    _hide_slices(copy.graph)
    copy = _inferred(copy, data=False)
    extents = (
        extent.dim_value
        for value in _declared(copy.graph)
        if value.type.WhichOneof("value") == "tensor_type"
        for extent in value.type.tensor_type.shape.dim
    )
    if all(extent >= 0 for extent in extents):
        return None
    for value in _declared(copy.graph):
        _forget_negative(value)
    return copy


def _has_slice(graph: onnx.GraphProto) -> bool:
    return any(
        node.op_type == "Slice"
        or any(_has_slice(body) for a in node.attribute for body in (a.g, *a.graphs))
        for node in graph.node
    )


def _hide_slices(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Slice":
            node.op_type, node.domain = "Opaque", _OPAQUE
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _hide_slices(body)


def _with_loose_makers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy in which nobody reads what operators make whose size their data say."""
    copy = _copy(model)
    for index, node in enumerate(copy.graph.node):
        if node.op_type in _MAKERS:
            for place, name in enumerate(node.output):
                node.output[place] = f"{name}.loose.{index}"
    return copy


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
