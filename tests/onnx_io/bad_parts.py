"""The list of broken models, and ways into a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.edit import verify
from qdqbridge.core.graph.graph import Graph
from qdqbridge.errors import (
    QdqBridgeError,
)
from qdqbridge.onnx_io.reading.reader import read

Model = onnx.ModelProto


def initializer(model: Model, op_type: str, index: int, nth: int = 0) -> TensorProto:
    """The initializer that is operand ``index`` of the nth node of a type."""
    name = [n for n in model.graph.node if n.op_type == op_type][nth].input[index]
    return next(t for t in model.graph.initializer if t.name == name)


def node(model: Model, op_type: str, nth: int = 0) -> onnx.NodeProto:
    return [n for n in model.graph.node if n.op_type == op_type][nth]


def put(tensor: TensorProto, array: Any) -> None:
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))


def set_attribute(target: onnx.NodeProto, name: str, value: Any) -> None:
    kept = [a for a in target.attribute if a.name != name]
    del target.attribute[:]
    target.attribute.extend([*kept, helper.make_attribute(name, value)])


# Order of DequantizeLinear nodes in conv_model: activation, weight, bias, result.
WEIGHT, BIAS = 1, 2


def weight(model: Model) -> TensorProto:
    return initializer(model, "DequantizeLinear", 0, WEIGHT)


Breaker = Callable[[Model], None]
CASES: dict[str, tuple[Breaker, type[QdqBridgeError]]] = {}


def case(error: type[QdqBridgeError]) -> Callable[[Breaker], Breaker]:
    def add(breaker: Breaker) -> Breaker:
        CASES[breaker.__name__] = (breaker, error)
        return breaker

    return add


def loaded(path: Path) -> Graph:
    """What the pipeline does: read, check, rewrite, check."""
    graph = read(path)
    verify(graph, path.name)
    verify(canonicalize(graph), path.name)
    return graph
