"""Constants that a file writes as nodes: Constant nodes, and cones of operators over constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqbridge.core.graph.constant import Constant
from qdqbridge.core.graph.dtypes import DType
from qdqbridge.core.graph.graph import Node, Value
from qdqbridge.core.graph.types import TensorType, ValueType
from qdqbridge.core.ops.folding import Budget, folded
from qdqbridge.errors import InvalidModelError, UnsupportedModelError
from qdqbridge.onnx_io.reading.structure import ONNX_DOMAINS, all_nodes, subgraphs
from qdqbridge.onnx_io.tensors import constant_from_proto, proto_from_constant

_NUMBERS = {
    "value_float": ("f", np.float32),
    "value_int": ("i", np.int64),
    "value_floats": ("floats", np.float32),
    "value_ints": ("ints", np.int64),
}


def is_constant(proto: onnx.NodeProto) -> bool:
    """True for a Constant node."""
    return proto.op_type == "Constant" and proto.domain in ONNX_DOMAINS


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
            one = attribute.name == "value_string"
            text = attribute.s.decode() if one else [each.decode() for each in attribute.strings]
            return Constant.of(np.array(text, dtype=object))
    raise InvalidModelError(
        "a Constant node holds no dense value",
        where=where,
        why=f"its attributes are {[a.name for a in proto.attribute]}",
        fix="give it exactly one of value, value_float(s), value_int(s)",
    )


def constant_value(constant: Constant, name: str) -> Value:
    """Returns a plain value of a constant."""
    type_: ValueType = TensorType(constant.dtype, constant.shape)
    return Value(type_, name, constant=constant)


class Folding:
    """The values that only constants determine, computed within a budget.

    Meant for quantization parameters, bounds and shapes, not for whole weights.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        """Makes one for the graph of one file.

        Args:
            budget: What it may take together.
        """
        self._budget = Budget() if budget is None else budget
        self._known: dict[Value, Constant | None] = {}
        self._fixed: dict[Value, bool] = {}

    def constant(self, value: Value) -> Constant | None:
        """Returns the data of a value.

        Returns:
            None for a value that an input determines, or that would cost too much.

        Raises:
            InvalidModelError: A node does not fit its operands.
        """
        if value.constant is not None:
            return value.constant
        if value not in self._known:
            self._known[value] = self._run(value) if self.is_fixed(value) else None
        return self._known[value]

    def _run(self, value: Value) -> Constant | None:
        """Runs the nodes behind a value; what is small among their results is remembered."""
        known: dict[Value, Constant] = {}
        for node in self._cone(value):
            operands = [None if v is None else self._data(v, known) for v in node.inputs]
            results = folded(node, operands, self._budget)
            if results is None:
                return None
            for result, constant in zip(node.outputs, results, strict=False):
                known[result] = constant
                if constant.size <= _SMALL:
                    self._known[result] = constant
        return known.get(value)

    def _data(self, value: Value, known: dict[Value, Constant]) -> Constant | None:
        return value.constant or known.get(value) or self._known.get(value)

    def _cone(self, value: Value) -> list[Node]:
        """Returns the nodes behind ``value`` that have not run yet, in execution order."""
        order: list[Node] = []
        done: set[Node] = set()
        stack: list[tuple[Value, bool]] = [(value, False)]
        while stack:
            current, ready = stack.pop()
            node = current.producer
            if node is None or node in done or self._known.get(current) is not None:
                continue
            if ready:
                done.add(node)
                order.append(node)
                continue
            stack.append((current, True))
            stack += [(operand, False) for operand in node.inputs if operand is not None]
        return order

    def is_fixed(self, value: Value) -> bool:
        """Returns whether only constants determine a value; looks at every one of a file once."""
        stack = [value]
        while stack:
            current = stack[-1]
            node = current.producer
            if current in self._fixed or current.constant is not None or node is None:
                self._fixed.setdefault(current, current.constant is not None)
                stack.pop()
                continue
            waiting = [v for v in node.inputs if v is not None and v not in self._fixed]
            if waiting:
                stack += waiting
            else:
                self._fixed[current] = all(v is None or self._fixed[v] for v in node.inputs)
                stack.pop()
        return self._fixed[value]


_SMALL = 256
"""Elements of a result that many may ask for."""


# ---- Sparse initializers and constants of ONNX, made dense before anything else looks at them
#
# onnxruntime does the same when it loads a file.

_MOST, _SPARSEST = 1 << 22, 100
"""A dense tensor may have so many elements, and so many for each that is stored."""
_ATTRIBUTE = "sparse_value"


def densify(graph: onnx.GraphProto, folder: Path, file: str) -> None:
    """Replaces the sparse tensors of a graph and of the bodies of its nodes by dense ones.

    Args:
        graph: The graph; changed in place.
        folder: Where its external data lies.
        file: File name, for messages.

    Raises:
        ModelFileError: External data cannot be read.
        InvalidModelError: Indices do not fit the values, the shape, or each other.
        UnsupportedModelError: Dense it would be out of proportion to the file.
    """
    _initializers(graph, folder, file)
    for node in all_nodes(graph.node):
        for inner in subgraphs(node):
            _initializers(inner, folder, file)
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            for attribute in node.attribute:
                if attribute.name == _ATTRIBUTE:
                    where = f"{file}, Constant '{node.output[0]}'"
                    dense = _densified(attribute.sparse_tensor, folder, where)
                    attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _initializers(graph: onnx.GraphProto, folder: Path, file: str) -> None:
    for tensor in graph.sparse_initializer:
        graph.initializer.append(_densified(tensor, folder, f"{file}, sparse initializer"))
    graph.ClearField("sparse_initializer")


def _densified(tensor: onnx.SparseTensorProto, folder: Path, where: str) -> onnx.TensorProto:
    """Source: ONNX's ``SparseTensorProto``: indices are places in order, or one per axis."""
    name = tensor.values.name
    stored = constant_from_proto(tensor.values, folder, where)
    where = f"{where} '{name}'" if name else where
    indices = constant_from_proto(tensor.indices, folder, where).numpy()
    shape, count = tuple(tensor.dims), int(np.prod(list(tensor.dims), dtype=object))
    if stored.dtype is DType.STRING or min(shape, default=0) < 0 or len(stored.shape) != 1:
        raise _invalid(where, f"it has {stored.dtype}{list(stored.shape)} for {list(shape)}")
    if count > _MOST + _SPARSEST * stored.size:
        raise UnsupportedModelError(
            "a sparse tensor is too sparse to be made dense",
            where=where,
            why=f"it would have {count} elements, and stores {stored.size}",
            fix="replace it by operators on what it stores",
        )
    places = _places(indices, shape, stored.size, where)
    if len(places) and not 0 <= places.min() <= places.max() < count:
        raise _invalid(where, f"an index lies outside of {list(shape)}")
    if len(np.unique(places)) != len(places):
        raise _invalid(where, "an index is there twice")
    values = stored.numpy()
    dense = np.zeros(count, values.dtype)
    dense[places] = values
    return proto_from_constant(name, Constant.of(dense.reshape(shape)))


def _places(
    indices: NDArray[Any], shape: tuple[int, ...], count: int, where: str
) -> NDArray[np.int64]:
    """Returns the places of the stored elements in the dense tensor, in row-major order."""
    if indices.shape == (count,) and indices.dtype == np.int64:
        return indices
    if indices.shape != (count, len(shape)) or indices.dtype != np.int64:
        raise _invalid(where, f"its indices are {indices.dtype}{list(indices.shape)}")
    if ((indices < 0) | (indices >= np.asarray(shape, np.int64))).any():
        raise _invalid(where, f"an index lies outside of {list(shape)}")
    return np.asarray(np.ravel_multi_index(tuple(indices.T), shape), np.int64)


def _invalid(where: str, why: str) -> InvalidModelError:
    return InvalidModelError(
        "a sparse tensor makes no sense", where=where, why=why, fix="export the model again"
    )
