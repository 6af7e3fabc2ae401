"""Looking at a model, and adding to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Model = onnx.ModelProto
Q, DQ = "QuantizeLinear", "DequantizeLinear"


def copy_of(model: Model) -> Model:
    return Model.FromString(model.SerializeToString())


def opset(model: Model) -> int:
    return next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))


def tensors(model: Model) -> dict[str, TensorProto]:
    return {t.name: t for t in model.graph.initializer}


def array(model: Model, name: str) -> np.ndarray[Any, Any] | None:
    tensor = next((t for t in model.graph.initializer if t.name == name), None)
    return None if tensor is None else numpy_helper.to_array(tensor)


def readers(model: Model, name: str) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if name in n.input]


def producer(model: Model, name: str) -> onnx.NodeProto | None:
    return next((n for n in model.graph.node if name in n.output), None)


def conversions(model: Model) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type in (Q, DQ)]


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


_NUMBERS = itertools.count()


def fresh(hint: str) -> str:
    """Returns a name that no tensor has, nor has had while this process runs."""
    return f"{hint}~{next(_NUMBERS)}"


def add(model: Model, data: Any, hint: str = "c") -> str:
    name = fresh(hint)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(data), name))
    return name


def insert(model: Model, node: onnx.NodeProto) -> str:
    """Adds a node in front of all others (files need not be sorted); returns its result."""
    model.graph.node.insert(0, node)
    return node.output[0]


def weights(model: Model) -> Iterator[tuple[onnx.NodeProto, np.ndarray[Any, Any]]]:
    """Yields the DQ nodes of constants of up to 16 bits that one node reads, with the integers."""
    for node in model.graph.node:
        if node.op_type == DQ:
            stored = array(model, node.input[0])
            if stored is not None and stored.dtype.itemsize <= 2 and stored.ndim >= 2:
                yield node, stored


def axis_of(node: onnx.NodeProto, rank: int) -> int:
    axis = attribute(node, "axis", 1)
    return axis + rank if axis < 0 else axis


def parameters(model: Model, node: onnx.NodeProto) -> tuple[Any, Any]:
    scale = array(model, node.input[1])
    zero_point = array(model, node.input[2]) if len(node.input) > 2 and node.input[2] else None
    return scale, zero_point
