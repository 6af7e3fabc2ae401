"""What TVM's ONNX importer takes and computes as something else: refused, or legalized for it.

Found by running ONNX's backend node tests through TVM 0.27 and comparing with onnxruntime. What it
refuses itself needs no row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qdqbridge.core.graph.graph import Node
from qdqbridge.core.graph.types import static_shape
from qdqbridge.onnx_io.opaque.nodes import OpaqueAttrs
from qdqbridge.onnx_io.runtime.session import bound_indices

_INDEXED = ("GatherElements", "GatherND", "ScatterElements", "ScatterND")
_DROPOUT_MASK = 12
"""The opset since which Dropout's mask is true where nothing is dropped."""


def gap(node: Node) -> str | None:
    """Returns why an opaque node must not go through TVM's importer; None where it may."""
    attributes = node.attributes
    if not isinstance(attributes, OpaqueAttrs) or attributes.domain:
        return None
    found = _GAPS.get(attributes.op_type)
    return None if found is None else found(node, attributes)


def adjusted(model: Any, node: Node) -> Any:
    """Changes a model of one node, which an importer is given, to what TVM takes for it."""
    (proto,) = model.graph.node
    _with_plain_extents(model.graph)
    if proto.domain:
        return model
    if proto.op_type == "BatchNormalization":
        _batch_normalization(proto)
    if proto.op_type == "TopK":
        _top_k(model)
    if proto.op_type in ("ScatterElements", "ScatterND"):
        _scatter(model)
    if proto.op_type in _INDEXED:
        _bound_indices(model, node)
    return model


def _with_plain_extents(graph: Any) -> None:
    """Gives open extents names of one word: TVM takes ``(a*b)`` for a product of others."""
    names: dict[str, str] = {}
    for value in (*graph.input, *graph.output):
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_param:
                extent.dim_param = names.setdefault(extent.dim_param, f"extent_{len(names)}")


def _scatter(model: Any) -> None:
    """Version 18 has more reductions and means the same else; TVM knows them there only."""
    for entry in model.opset_import:
        if not entry.domain and 16 <= entry.version < 18:
            entry.version = 18


def _bound_indices(model: Any, node: Node) -> None:
    """Takes indices modulo the extents that they go along: TVM reads and writes where they say."""
    extents = _indexed_extents(node)
    assert extents is not None
    several = node.record(OpaqueAttrs).op_type.endswith("ND")
    dtype = node.operand(1).type.dtype.numpy
    bound_indices(model, np.asarray(extents if several else extents[0], dtype))


def _indexed_extents(node: Node) -> tuple[int, ...] | None:
    """Returns the extents of the data that the indices of a node go along, where all are known."""
    shape, indices = node.operand(0).type.shape, node.operand(1).type.shape
    attributes = node.record(OpaqueAttrs)
    given = attributes.node.integers()
    if shape is None:
        return None
    if not attributes.op_type.endswith("ND"):
        axis = given.get("axis", 0)
        return static_shape(shape[axis : axis + 1 or None])
    if not indices or not isinstance(indices[-1], int):
        return None
    first = given.get("batch_dims", 0)
    return static_shape(shape[first : first + indices[-1]])


def _indexing(node: Node, attributes: OpaqueAttrs) -> str | None:
    extents = _indexed_extents(node)
    if not extents or 0 in extents:
        return "it reads and writes wherever indices of an open or empty extent say"
    if not _scatter_shapes_fit(node, attributes):
        return (
            "it reads and writes behind the data, whose extents are not known to hold the indices"
        )
    return None


def _scatter_shapes_fit(node: Node, attributes: OpaqueAttrs) -> bool:
    """True where the shapes of indices and updates are known to fit the data's, as they must."""
    data, indices, *updates = (node.operand(i).type.shape for i in range(len(node.inputs)))
    given = attributes.node.integers()
    if data is None or indices is None or None in updates:
        return False
    if attributes.op_type.endswith("ND"):
        batch, deep = given.get("batch_dims", 0), indices[-1]
        if not isinstance(deep, int) or indices[:batch] != data[:batch]:
            return False
        return all(shape == indices[:-1] + data[deep:] for shape in updates)
    axis = given.get("axis", 0) % len(data)
    return (
        len(indices) == len(data)
        and all(shape == indices for shape in updates)
        and all(
            i == axis
            or mine == there
            or (isinstance(mine, int) and isinstance(there, int) and mine < there)
            for i, (mine, there) in enumerate(zip(indices, data, strict=True))
        )
    )


def _top_k(model: Any) -> None:
    """TopK of opset 10 means what it means in 11; TVM reads it as that of opset 1."""
    for entry in model.opset_import:
        if not entry.domain and entry.version == 10:
            entry.version = 11


def _batch_normalization(node: Any) -> None:
    """Momentum is the weight of the old statistics in ONNX, and of the new ones in TVM."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    training = attributes.get("training_mode")
    if training is None or not training.i:
        return
    momentum = attributes.get("momentum") or node.attribute.add(name="momentum", type=1, f=0.9)
    momentum.f = 1.0 - momentum.f


def _resize(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node
    return "it leaves antialias out" if attributes.node.integers().get("antialias") else None


def _is_inf(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node
    given = attributes.node.integers()
    both = given.get("detect_negative", 1) and given.get("detect_positive", 1)
    return None if both else "it finds infinities of both signs, whichever is asked for"


def _layer_normalization(node: Node, attributes: OpaqueAttrs) -> str | None:
    del attributes
    return "it makes up the mean and the deviation" if len(node.outputs) > 1 else None


def _dropout(node: Node, attributes: OpaqueAttrs) -> str | None:
    if attributes.version < _DROPOUT_MASK and len(node.outputs) > 1:
        return "the mask of an old Dropout is not what was kept"
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None or (training.constant is not None and not training.constant.numpy().any()):
        return None
    ratio = node.inputs[1]
    if ratio is not None and ratio.constant is not None and not ratio.constant.numpy().any():
        return None
    return "it never drops anything"


def _squeeze(node: Node, attributes: OpaqueAttrs) -> str | None:
    del attributes
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return None
    return "without axes the run tells which extents are 1, and how many are left"


def _conv_transpose(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node
    if any(each.name == "output_shape" for each in attributes.node.proto().attribute):
        return "it leaves out the extents that the result shall have"
    return None


def _unique(node: Node, attributes: OpaqueAttrs) -> str | None:
    stored = attributes.node.proto()
    inverse = stored.output[2:3]
    if any(attribute.name == "axis" for attribute in stored.attribute) or not any(inverse):
        return None
    if node.operand(0).rank == 1:
        return None
    return "it gives the inverse indices the shape of the data"


def _element_reduction(node: Node, attributes: OpaqueAttrs) -> str | None:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    empty = axes is None or (axes.constant is not None and not axes.constant.size)
    if not attributes.node.integers().get("noop_with_empty_axes") or not empty:
        return None
    return "without axes it leaves out what happens to each element"


def _suppression(node: Node, attributes: OpaqueAttrs) -> str | None:
    del node, attributes
    return "it takes limits that only the run knows for numbers of its own"


_GAPS: Mapping[str, Callable[[Node, OpaqueAttrs], str | None]] = {
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "NonMaxSuppression": _suppression,
    "Resize": _resize,
    "Squeeze": _squeeze,
    "Unique": _unique,
    **dict.fromkeys(_INDEXED, _indexing),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"), _element_reduction
    ),
}
